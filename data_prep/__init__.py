"""Makes the prepared sets that `lra_spt.data` reads: generators, importers and the TFDS builder they share."""
