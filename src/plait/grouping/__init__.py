"""Which jobs share GPUs, and what an iteration of the group takes.

Start at `group.group`.
"""
