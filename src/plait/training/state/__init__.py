"""Checkpoints: what a job registers, copies taken at step boundaries, folders complete or absent, random streams.

A checkpoint is committed in `checkpoint_store`. Start at `checkpoint`.
"""
