"""What `plait simulate`, `sweep`, `demo` and `reproduce` do: find the runs needed, run them, show the results.

Start at `simulation.answer`.
"""
