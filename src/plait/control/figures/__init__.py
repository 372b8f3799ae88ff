"""Figures that only some runs have: by job class, and of a network. Start at `metrics`, which calls them."""
