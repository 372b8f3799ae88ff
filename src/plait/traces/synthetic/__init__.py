"""Seeded synthetic traces: arrivals, durations, models, classes and deadlines as a pure function of parameters and seed.

Start at `generate.generate`.
"""
