"""Where gradients are added up on their way: an aggregation switch and a route for each worker.

Start at `grid.grid`, after the description of GRID, or `shortest.shortest`, fixed routes; `problem` has what both take
and give.
"""
