"""Networks of a cluster and the aggregation of gradients in their switches: pure functions of values and arrays.

Nothing here has a clock, a file or a thread. `plait.core.cluster` has the hardware.
Start at `topology`; `fluid` computes the rates of jobs that share links; `protocol` has what switches, servers and
workers do with each packet of gradients, and `packets` simulates them between links.
"""
