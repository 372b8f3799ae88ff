"""Packets of in-network aggregation, one event a hop: the protocol of `plait.network.protocol` between links.

A scenario has jobs, a network and what goes wrong in it; its results are the same each time. Start at `run.simulate`.
"""
