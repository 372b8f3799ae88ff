"""What `plait simulate`, `sweep`, `demo` and `reproduce` do: find the runs that are needed, run them, show and write the results.

Start at `simulation.run_simulations`.
"""
