"""`lra-spt inspect`: what is in a prepared set."""
