"""The training process's side of sharing a GPU: it follows the directives of its agent and reports its steps.

`runtime.guest_gate` decides when a guest may use the GPU. This package has memory limits, spilling to host memory,
yield points for scripts without them, and reports of steps. Start at `shared_gpu.SharedGpu`.
"""
