"""How fast an adaptive job makes progress: throughput, statistical efficiency, their fit, the best batch, speed-up.

Start at `batch.best_batch`.
"""
