"""Goodput: how fast an adaptive job makes progress with given GPUs, and who should get how many (Pollux, OSDI'21)."""
