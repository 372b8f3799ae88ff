"""Maximum-weight matching of general graphs: exact (kernels and a plain reference) and greedy.

Start at `blossom.maximum_weight_matching`.
"""
