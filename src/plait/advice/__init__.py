"""Advice from a history: what other policies, cluster sizes and quotas would have changed, and how sure that is.

A past is simulated as it was first, to see whether the simulation can be believed. Start reading at `advise.py`.
"""
