"""Contents of prepared sets, for `lra-spt inspect`."""
