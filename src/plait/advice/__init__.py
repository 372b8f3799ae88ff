"""Advice from a history: what other policies, cluster sizes and quotas would have changed, and how sure that is.

A past is first simulated with its own policy, to validate the simulation. Start reading at `advise.py`.
"""
