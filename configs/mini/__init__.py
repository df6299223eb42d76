"""LRA-mini: the kinds of tasks of the Long Range Arena, short enough to be trained to the end on a laptop."""
