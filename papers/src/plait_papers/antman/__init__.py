"""AntMan's cluster experiment in plait's own world, and the published ratios next to ours (Xiao et al., OSDI'20).

The simulator behind the paper's evaluation was never released, and neither was its trace; so this is another experiment
of the same shape, and the tables show under which shapes of trace the published ratios appear.

    workload       64 GPUs, two tenants, nine models: the traces
    variants       compared variants: policies, AntMan with parts taken away, and shapes of traces
    in_order       AntMan without backfilling
    runs           one run as a value, and how it is made
    compare        `points`, where to start: all runs; and our figures next to the published ones
    muri_artifact  the unfinished AntMan of Muri's artifact, exact
"""
