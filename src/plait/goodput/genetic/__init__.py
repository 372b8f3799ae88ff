"""The published search for an allocation: NSGA-II over matrices of GPUs (Pollux, OSDI'21, section 4.2).

Start at `search`.
"""
