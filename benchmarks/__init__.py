"""Benchmarks, each a command of its own: `python -m benchmarks NAME --help`, from the checkout."""
