"""When a waiting job will start: the live queue is simulated from its present state, and later compared with the truth.

Start at `queue.foresee`.
"""
