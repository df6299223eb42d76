"""The commands of `lra-spt`, a module each: `parser()` says what it takes, `main(argv)` does it.

What computes is imported inside `main`, after the flags are read: help and wrong flags need no jax.
"""
