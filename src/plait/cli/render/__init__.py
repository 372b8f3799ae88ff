"""How results look in a terminal: tables, panels, progress bars. Nothing here asks the service or runs a simulation.

Start at `tables`.
"""
