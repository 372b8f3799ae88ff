"""The GPU of a rank: CUDA, the GPU stage of scripts that do not mark it, and emulated devices for tests.

Start at `gpu_stage`.
"""
