"""LRA-mini: the kinds of tasks of the Long Range Arena, short enough to train to completion on a laptop."""
