"""Communication of a rank: the network stage under DDP, buckets that resume exactly, transfers, process groups.

Start at `network`.
"""
