"""Figures that only some runs have: by job class, and of a network. Start at `metrics`, which asks for them."""
