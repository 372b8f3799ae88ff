"""Gradient statistics taken during the backward pass: squared norms, noise scale, pre-conditioners, finiteness.

Start at `hooks`; `noise` has the estimators.
"""
