"""Data loading that marks its stages and resumes in the middle of a pass with the same batches.

Start at `loader`.
"""
