"""Numerical kernels: arrays in, arrays out. They know no model, config or task."""
