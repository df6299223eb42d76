"""`lra-spt compile`: does a train step fit a device, and what does it cost."""
