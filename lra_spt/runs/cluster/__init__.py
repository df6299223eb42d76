"""`lra-spt doctor --cluster`: the acceptance of a machine with several devices, or of a cluster."""
