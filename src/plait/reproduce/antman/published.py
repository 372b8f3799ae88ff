"""Published results of AntMan's experiments: ratios, not times. The trace and the simulator were not released."""

from __future__ import annotations

from collections.abc import Mapping

SOURCE = "Xiao et al., AntMan: Dynamic Scaling on GPU Clusters for Deep Learning, OSDI 2020"

#: (baseline, metric) -> the baseline over AntMan on 64 V100 GPUs, nine workloads, two tenants.
RATIOS: Mapping[tuple[str, str], float] = {
    ("yarn-cs", "avg_jct_s"): 2.05,
    ("yarn-cs", "makespan_s"): 1.76,
    ("gandiva", "avg_jct_s"): 1.84,
    ("gandiva", "makespan_s"): 1.67,
}
#: Share of opportunistic jobs that were killed, by policy.
KILLED: Mapping[str, float] = {"yarn-cs, preempting": 0.46, "antman": 0.0}
#: Guaranteed completion time of AntMan over that of YARN with preemption.
GUARANTEED = 1.0

#: Production, December 2019 to April 2020, thousands of GPUs: context, without a comparable simulation here.
PRODUCTION: Mapping[str, str] = {
    "GPUs for opportunistic jobs": "+17.1 %",
    "GPU memory in use": "+42 %",
    "GPU compute in use": "+34 %",
    "mean queueing delay": "2.05 times shorter",
    "guaranteed jobs without a visible slowdown (about 10 ms a step)": "99 %",
    "GPUs that used more than half of their memory, before": "20 %",
    "GPUs that used more than 80 % of their compute, before": "10 %",
}
