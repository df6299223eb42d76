"""`lra-spt compile`: says if a train step fits on a device, and how much it costs."""
