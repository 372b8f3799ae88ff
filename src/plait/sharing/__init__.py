"""Sharing of one GPU: a guaranteed job at its dedicated speed, opportunistic jobs in the time that it leaves.

Pure decisions from the standard library alone: no clock, thread, file, NumPy or random number. After AntMan (Xiao et
al., OSDI 2020); the feedback laws, which were never published, are plait's own. Start reading at `coordinator.decide`.
"""
