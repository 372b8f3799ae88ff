"""How agents get onto nodes: processes on this machine, actors of Ray, allocations of Slurm.

Start at `base.NodeBackend`.
"""
