"""Answers for people, computed from the state: why a job waits, what would start it, how the cluster is used.

Nothing here changes the state. Start at `waiting`.
"""
