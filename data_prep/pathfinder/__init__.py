"""Pathfinder, Path-X: the generator, and importers of published images."""
