"""Draw the pictures of the README and the documentation again, from real runs.

python docs/pictures.py                  those of `make demo-simulate`; the screenshot only where there is a Chromium
python docs/pictures.py DATA rows.json   those about Muri, from its traces and `plait reproduce muri --json rows.json`

Needs the package with [sim].
"""

import json
import shutil
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

from plait import Cluster, load_jobs, make_world
from plait.report.bars import GroupedBar, grouped_bars_svg
from plait.report.figures import cdf_svg, policy_bars_svg
from plait.report.html import write_html
from plait.reproduce.muri.own import HARDWARE, PLACEMENT, ROUND_S
from plait.reproduce.muri.own import POLICIES as MURI_POLICIES
from plait.sim.cases import Case, run_case
from plait.traces.formats import read_trace
from plait.traces.synthetic import generate

ASSETS = Path(__file__).parent / "assets"
POLICIES = ("fifo", "fifo-backfill", "sjf", "srtf", "srsf", "2d-las", "tiresias-l", "themis")


def muri(data: Path, rows: Path) -> None:
    """Average completion time on trace 3, and what Muri gains in three worlds."""
    jobs = load_jobs(read_trace(data / "trace3.csv", "muri")).jobs
    world = replace(make_world("plait"), round_s=ROUND_S)
    results = []
    for name in ("Themis", "Tiresias", "SRTF", "SRSF", "Muri-L", "Muri-S"):
        policy, cluster = MURI_POLICIES[name], Cluster.parse(HARDWARE)
        case = Case("trace3", jobs, policy, cluster, world, placement=PLACEMENT, labels={"policy": name})
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


def demo() -> None:
    """The comparison of `make demo-simulate`: bars, distributions, and the report as a browser shows it."""
    jobs = load_jobs(generate("philly", 2000, 64, 1.0, 1, models="uniform")).jobs
    cluster, world = Cluster.parse("8x8"), make_world("plait")
    cases = [Case(trace="philly.csv", jobs=jobs, policy=p, cluster=cluster, world=world) for p in POLICIES]
    results = [run_case(case) for case in cases]
    chosen = [r for r in results if r.summary["policy"] in ("fifo", "fifo-backfill", "tiresias-l", "srsf")]
    (ASSETS / "demo-jct-cdf.svg").write_text(cdf_svg(chosen), encoding="utf-8")
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
    if len(sys.argv) == 3:
        muri(Path(sys.argv[1]), Path(sys.argv[2]))
    else:
        demo()
