"""Which samples a step takes, on any number of ranks and with any batch size: every sample once a pass.

Start at `plan`.
"""
