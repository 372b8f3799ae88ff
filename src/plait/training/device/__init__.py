"""The GPU of a rank: torch's, the GPU stage of scripts that do not mark it, and slower devices emulated for tests.

Start at `gpu_stage`.
"""
