"""Whether a plan can be carried out: its jobs and GPUs, what nodes and GPUs have room for, and its reservations.

Start at `check.check_plan`, which also returns the changes.
"""
