"""Jobs that slow each other down: on the GPUs that they share (`neighbours`), and on the network (`network`).

Start at `network.NetworkPhysics` for how slow jobs are, at `neighbours.GpuNeighbours` for who gets a new pace.
"""
