"""Draw the pictures of the README and the documentation again, from real runs: python docs/pictures.py.

Needs the package with [sim]; the screenshot is taken only where there is a Chromium.
"""

import shutil
import subprocess
import tempfile
from pathlib import Path

from plait import Cluster, load_jobs, make_world
from plait.report.figures import cdf_svg, policy_bars_svg
from plait.report.html import write_html
from plait.sim.cases import Case, run_case
from plait.traces.synthetic import generate

ASSETS = Path(__file__).parent / "assets"
POLICIES = ("fifo", "fifo-backfill", "sjf", "srtf", "srsf", "2d-las", "tiresias-l", "themis")


def main() -> None:
    """The comparison of `make demo`: bars, distributions, and the report as a browser shows it."""
    jobs = load_jobs(generate("philly", 2000, 64, 1.0, 1, models="uniform")).jobs
    cluster, world = Cluster.parse("8x8"), make_world("plait")
    cases = [Case(trace="philly.csv", jobs=jobs, policy=p, cluster=cluster, world=world) for p in POLICIES]
    results = [run_case(case) for case in cases]
    strip = [r for r in results if r.summary["policy"] != "fifo"]
    (ASSETS / "demo-avg-jct.svg").write_text(policy_bars_svg(strip), encoding="utf-8")
    chosen = [r for r in results if r.summary["policy"] in ("fifo", "fifo-backfill", "tiresias-l", "srsf")]
    (ASSETS / "demo-jct-cdf.svg").write_text(cdf_svg(chosen), encoding="utf-8")
    browser = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if browser is None:
        print("no Chromium here: the screenshot stays as it is")
        return
    with tempfile.TemporaryDirectory() as folder:
        page = Path(folder) / "report.html"
        write_html(results, page, title="make demo")
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
    main()
