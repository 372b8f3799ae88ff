"""The simulator: a backend whose events come from a model of time instead of a cluster.

Start at `run.simulate`.
"""
