"""Reports of run folders: scores, statistics, tables, plots, the page. Does not import jax."""
