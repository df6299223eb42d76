"""`lra-spt compile`: does a train step fit on a device, and what does it cost?"""
