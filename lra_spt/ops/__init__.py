"""Numerical kernels: arrays in, arrays out. They know no model, no config and no task."""
