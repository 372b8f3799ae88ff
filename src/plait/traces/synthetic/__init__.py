"""Seeded synthetic traces: arrivals, durations, models, classes, deadlines; a function of parameters and seed.

Start at `generate.generate`.
"""
