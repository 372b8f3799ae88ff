"""Goodput: how fast an adaptive job makes progress with given GPUs, and who should get how many (Pollux, OSDI'21).

`model` says what an allocation is worth to a job, `allocate` divides the GPUs, `genetic` is the published search.

Start at `model.batch.best_batch`.
"""
