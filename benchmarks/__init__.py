"""Measurements and their results: `python -m benchmarks` lists them, from the checkout."""
