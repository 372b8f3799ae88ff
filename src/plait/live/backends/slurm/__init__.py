"""Nodes on loan from Slurm: each allocation holds an agent, and there are as many as the jobs want.

Start at `backend.plan_allocations`, which decides how many, without a clock or commands.
"""
