"""What run folders say: scores, statistics, tables, plots, the page. Does not import jax."""
