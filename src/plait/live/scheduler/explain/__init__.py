"""Answers for people, computed from the state: why a job waits, what would start it, how jobs, nodes and the cluster are.

Nothing here changes the state. Start at `waiting`.
"""
