"""`plait network`: networks of clusters, and what they are worth to jobs.

Start at `commands`, which declares the commands; their results are in its sibling modules.
"""
