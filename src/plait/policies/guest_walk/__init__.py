"""Placement under AntMan: hosts, reservations and guests of one decision, for thousands of jobs and GPUs.

Start at `walk.walk`.
"""
