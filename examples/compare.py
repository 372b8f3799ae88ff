"""The Python API in one page: make a trace, run three policies, print figures, write a report."""

from plait import Cluster, load_jobs, make_world
from plait.report.html import write_html
from plait.sim.studies.cases import Case, run_case
from plait.traces.synthetic import generate

cluster = Cluster.parse("8x8")
world = make_world("plait")
jobs = load_jobs(generate("philly", jobs=500, gpus=cluster.gpus, load=1.0, seed=1, models="uniform")).jobs

results = [
    run_case(Case(trace="philly", jobs=jobs, policy=policy, cluster=cluster, world=world))
    for policy in ("fifo-backfill", "tiresias-l", "srsf")
]
for result in results:
    figures = result.summary
    print(
        f"{figures['policy']:14} mean {figures['avg_jct_s'] / 3600:6.2f} h, "
        f"p99 {figures['p99_jct_s'] / 3600:7.2f} h, {figures['preemptions']} preemptions"
    )
write_html(results, "compare.html")
print("wrote compare.html")
