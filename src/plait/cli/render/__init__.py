"""Results in a terminal: tables, panels, progress bars. Nothing here calls the service or runs a simulation.

Start at `tables`.
"""
