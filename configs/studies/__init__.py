"""Study files, for `lra-spt study`."""
