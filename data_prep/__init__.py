"""Makes the prepared sets that `lra_spt.data` reads: generators, importers, their shared TFDS builder."""
