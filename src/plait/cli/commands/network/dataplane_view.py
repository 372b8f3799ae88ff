"""Output of `plait network status` for one switch or aggregation server, from its control socket."""

from __future__ import annotations

from typing import Any

from rich.table import Table

from plait.cli.render.console import console
from plait.core.errors import InputError
from plait.core.words import counted
from plait.live.dataplane.control import SwitchControl


def read_statistics(path: str) -> dict[str, Any]:
    """The statistics of the process behind a control socket; raises `InputError` if there is none."""
    try:
        with SwitchControl(path) as control:
            return control.statistics()
    except OSError as error:
        raise InputError(
            f"--control {path}: {error.strerror or error}; is a switch or server running there?"
        ) from error


def show_statistics(found: dict[str, Any]) -> None:
    """Print what the process is and dropped, and a row for each job."""
    data = ":".join(map(str, found["data"]))
    if "switch" in found:
        server = ":".join(map(str, found["server"])) if found["server"] else "no server"
        console().print(
            f"switch {found['switch']} at {data}, {server}: {found['held']} of "
            f"{counted(found['aggregators'], 'aggregator')} of {found['payload']} B held"
        )
        columns = ("aggregated", "collided", "evicted", "aged", "stale", "duplicates", "outside")
    else:
        console().print(
            f"server {found['server']} at {data}: payload of {found['payload']} B, windows up to "
            f"{found['window']}, {counted(found['places'], 'place')} for jobs"
        )
        columns = ("results", "answered", "added", "replaced", "dropped", "stale", "broken")
    console().print(
        f"dropped: {found['malformed']} malformed, {found['foreign']} foreign, {found['refused']} wrong secret, "
        f"{found['kernel_drops']} by the kernel, {found['unsent']} not sent"
    )
    if not found["jobs"]:
        console().print("no jobs")
        return
    ours = ("ranks", "held") if "switch" in found else ("switch", "incomplete")
    grid = Table("job", "mode", "regions", *ours, "packets in", "packets out", *columns)
    for job in found["jobs"]:
        regions = ", ".join(f"{epoch}: {at[0]}+{at[1]}" for epoch, at in job["regions"].items()) or "none"
        grid.add_row(
            f"{job['job']} {job['name']}", job["mode"], regions, *_who(job, "switch" in found),
            str(job["packets_in"]), str(job["packets_out"]),
            *(str(job[name]) for name in columns),
        )  # fmt: skip
    console().print(grid)


def _who(job: dict[str, Any], switch: bool) -> tuple[str, str]:
    """Who has introduced themselves for a job, and what is held for it."""
    if switch:
        return f"{job['greeted']}/{job['workers']}", str(job["held"])
    return "connected" if job["connected"] else "waiting", str(job["open"])
