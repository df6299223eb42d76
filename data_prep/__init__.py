"""Makes the prepared sets that `lra_spt.data` reads: generators, importers, and their shared TFDS builder."""
