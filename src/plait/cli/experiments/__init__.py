"""Implementation of `plait simulate`, `sweep`, `demo` and `reproduce`: find the runs needed, run and show them.

Start at `simulation.answer`.
"""
