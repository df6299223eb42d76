"""What run folders say: scores, statistics, tables, plots, the page. Imports no jax."""
