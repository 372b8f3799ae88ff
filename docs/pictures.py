"""Draw the pictures of the README and the documentation again, from real runs.

python docs/pictures.py                  pictures of `make demo-simulate`; the screenshot only where there is a Chromium
python docs/pictures.py goodput          pictures of goodput, from plait's fit of ResNet18 on CIFAR-10
python docs/pictures.py DATA rows.json   pictures of Muri, from its traces and `plait reproduce muri --json rows.json`
python docs/pictures.py antman rows.json pictures of AntMan, from `plait reproduce antman --json rows.json`

Needs the package with [sim].
"""

import json
import math
import shutil
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

import numpy as np

from plait import Cluster, load_jobs, make_world
from plait.cli.experiments.simulated_demo import CLUSTERS, JOBS, batches, traces
from plait.core.preemption import FREELY
from plait.goodput.batch import goodput_table
from plait.goodput.jobs import GoodputJobs
from plait.goodput.throughput import efficiency, throughput
from plait.report.charts import ChartLine, GroupedBar, grouped_bars_svg, lines_svg
from plait.report.html import write_html
from plait.report.sections import policy_bars_svg
from plait.sim.studies.cases import Case, run_case
from plait.traces.formats.registry import read_trace
from plait_papers.muri.fair_world import HARDWARE, PLACEMENT, ROUND_S
from plait_papers.muri.fair_world import POLICIES as MURI_POLICIES

ASSETS = Path(__file__).parent / "assets"
POLICIES = ("fifo", "fifo-backfill", "sjf", "srtf", "srsf", "2d-las", "tiresias-l", "themis")


def muri(data: Path, rows: Path) -> None:
    """Average completion time on trace 3, and what Muri gains in three worlds."""
    jobs = load_jobs(read_trace(data / "trace3.csv", "muri")).jobs
    world = replace(make_world("plait"), round_s=ROUND_S)
    results = []
    for name in ("Themis", "Tiresias", "SRTF", "SRSF", "Muri-L", "Muri-S"):
        policy, cluster = MURI_POLICIES[name], Cluster.parse(HARDWARE)
        labels = {"policy": name}
        case = Case("trace3", jobs, policy, cluster, world, placement=PLACEMENT, rule=FREELY, labels=labels)
        results.append(run_case(case))
    (ASSETS / "muri-avg-jct.svg").write_text(policy_bars_svg(results), encoding="utf-8")
    bars = json.loads(rows.read_text(encoding="utf-8"))["bars"]
    for metric, title in (
        ("avg_jct_s", "Mean JCT"),
        ("p99_jct_s", "99th percentile of JCT"),
        ("makespan_s", "Makespan"),
    ):
        shown = []
        for row in bars:
            if (row["figure"], row["bar"]) in (("9", "SRSF"), ("10", "Tiresias")) and row["metric"] == metric:
                group = f"{row['bar']}, {row['trace'].replace('trace', 'trace ').replace('_pr', chr(39))}"
                shown += [
                    GroupedBar(group, "as published", row["ratio"]),
                    GroupedBar(group, "artifact's world, guard on", row["consistent_ratio"]),
                    GroupedBar(group, "plait's world", row["own_ratio"]),
                ]
        svg = grouped_bars_svg(f"{title}: SRSF over Muri-S, Tiresias over Muri-L", shown, width=900)
        (ASSETS / f"muri-worlds-{metric.removesuffix('_s')}.svg").write_text(svg, encoding="utf-8")


def antman(rows: Path) -> None:
    """Times of other policies relative to AntMan's by the offered load, and the published ratios."""
    found = [row for row in json.loads(rows.read_text(encoding="utf-8"))["rows"] if row["section"] == "load"]
    for what, title in (("jct", "Mean JCT over AntMan's"), ("makespan", "Makespan over AntMan's")):
        bars = []
        for row in found:
            if row["variant"] != "antman":
                published = row[what]["published"] or math.nan
                bars.append(GroupedBar(row["at"], row["variant"], row[what]["ours"], published, published))
        text = f"{title}, durations up to 6 h; the line across a bar is the published ratio"
        (ASSETS / f"antman-{what}.svg").write_text(grouped_bars_svg(text, bars, width=900), encoding="utf-8")


def goodput() -> None:
    """Throughput, efficiency and goodput of one model over its batch, and its best goodput over the GPUs."""
    theta = np.array([[0.01866, 0.0006798, 0.09152, 0.002525, 0.01540, 5e-8, 1.277]])  # docs/explanation/pollux.md
    initial, batch = 128, 128 * 2.0 ** np.arange(0, 5.01, 0.125)
    early, late = 72.0, 38_660.0  # gradient noise scale in the first and in the last epoch, examples
    by_gpus = [ChartLine(f"{k} GPUs", batch, throughput(theta, -(-k // 4), k, batch / k, 0)) for k in (4, 8, 16)]
    worth = [
        ChartLine(f"{when} (noise scale {phi:,.0f})", batch, efficiency(1.0, phi / initial, batch / initial))
        for when, phi in (("first epoch", early), ("last epoch", late))
    ]
    speed = throughput(theta, 2, 8, batch / 8, 0)
    useful = [ChartLine(line.name, batch, speed * np.asarray(line.y), mark_best=True) for line in worth]
    gpus = np.array([1, 2, 4, 8, 16, 32, 64])
    sizes = []
    for line, phi in zip(worth, (early, late), strict=True):
        job = GoodputJobs(theta, [1.0], [phi / initial], [initial], [4096], [32], [1024], [True])
        table = goodput_table(job, np.stack([-(-gpus // 4), gpus], axis=1))
        sizes.append(ChartLine(line.name, gpus, table[0] / table[0, 0]))
    for name, picture in {
        "throughput": lines_svg("Throughput", by_gpus, "total batch, examples", "examples/s"),
        "efficiency": lines_svg("Statistical efficiency", worth, "total batch, examples", "share"),
        "product": lines_svg("Goodput on 8 GPUs", useful, "total batch, examples", "useful examples/s"),
        "gpus": lines_svg("Best goodput, relative to 1 GPU", sizes, "GPUs, on nodes of 4", "times"),
    }.items():
        (ASSETS / f"goodput-{name}.svg").write_text(picture, encoding="utf-8")


def demo() -> None:
    """The comparison of `make demo-simulate`: bars, distributions, and the report as a browser shows it."""
    jobs = dict(batches(traces()))[JOBS]
    cluster, world = Cluster.parse(CLUSTERS[JOBS]), make_world("plait")
    cases = [Case(trace=JOBS, jobs=jobs, policy=p, cluster=cluster, world=world) for p in POLICIES]
    results = [run_case(case) for case in cases]
    browser = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if browser is None:
        print("no Chromium here: the screenshot stays as it is")
        return
    with tempfile.TemporaryDirectory() as folder:
        page = Path(folder) / "report.html"
        write_html(results, page, title="make demo-simulate")
        command = [
            browser,
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--hide-scrollbars",
            "--virtual-time-budget=8000",
        ]
        picture = f"--screenshot={ASSETS / 'report.png'}"
        subprocess.run([*command, "--window-size=1440,1210", picture, page.as_uri()], check=True, capture_output=True)


if __name__ == "__main__":
    if sys.argv[1:] == ["goodput"]:
        goodput()
    elif sys.argv[1:2] == ["antman"]:
        antman(Path(sys.argv[2]))
    elif len(sys.argv) == 3:
        muri(Path(sys.argv[1]), Path(sys.argv[2]))
    else:
        demo()
