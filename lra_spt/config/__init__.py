"""Everything that defines a run; no jax. Config files, also those of users, call what is exported here."""

from lra_spt.config.loading import arguments, from_sources, load, register

__all__ = ['arguments', 'from_sources', 'load', 'register']
