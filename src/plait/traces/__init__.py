"""Traces: every public deep-learning cluster trace read into one canonical table, and seeded synthetic ones.

Start at `formats.registry.read_trace`.
"""
