"""Goodput: how fast an adaptive job makes progress with given GPUs, and how to divide GPUs (Pollux, OSDI'21).

`model` computes the worth of an allocation to a job, `allocate` divides the GPUs, `genetic` is the published search.

Start at `model.batch.best_batch`.
"""
