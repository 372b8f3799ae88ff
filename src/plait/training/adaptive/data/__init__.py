"""Assign samples to steps for any number of ranks and any batch size: every sample once a pass.

Start at `plan`.
"""
