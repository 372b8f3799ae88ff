"""Division of GPUs: a knapsack over a ladder of sizes, integer programs over all sizes, GPU kinds, cluster size.

Start at `knapsack.best_sizes`.
"""
