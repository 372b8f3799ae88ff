"""Communication of a rank: the network stage under DDP, and buckets that resume exactly.

Start at `network`, and at `ina_hook` for gradients that switches add up: its buckets pass through `aggregation_engine`,
which agrees with the other ranks and follows the grants (`aggregation_session`) and moves packets
(`aggregation_client`, `aggregation_kernels`).
"""
