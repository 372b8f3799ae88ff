"""Exact groupings: integer programs over classes of equal jobs, and bounds on what any grouping can reach.

Start at `classes`.
"""
