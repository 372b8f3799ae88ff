"""Output of `plait network status` for a cluster: its switches, and how its jobs exchange gradients."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import typer
from rich.table import Table

from plait.cli.connection import print_table
from plait.cli.render.console import console
from plait.cli.render.tables import plain_lines
from plait.core.errors import InputError
from plait.core.words import counted
from plait.live.dataplane.control import SwitchControl

if TYPE_CHECKING:
    from plait.live.api.cluster import NetworkOfCluster
    from plait.live.api.jobs import JobAggregation, Region


def show_cluster(found: NetworkOfCluster) -> None:
    """Print the switches with who serves them, and the jobs with what they have of them; `found` of the service."""
    if found.network is None:
        typer.echo("this cluster has no network; declare one with: plait up --network leaf-spine:aggregators=4096")
        return
    typer.echo(plain_lines(f"network {found.network}"))
    if not found.grants:
        policy = plain_lines(found.policy)
        typer.echo(f"policy {policy} grants no memory of switches: choose one with ina=, e.g. plait:ina=inalloc")
    rows = [
        (
            one.switch, one.state, one.node or "-", one.aggregators, one.granted, f"{one.held:g}",
            one.restarts, ", ".join(job.id for job in one.jobs) or "-", one.trouble or "",
        )
        for one in found.switches
    ]  # fmt: skip
    heads = ("SWITCH", "STATE", "SERVED BY", "AGGREGATORS", "GRANTED ALONE", "HELD", "RESTARTS", "JOBS", "TROUBLE")
    print_table(heads, rows, "none of its switches aggregates; give them memory with aggregators=4096")
    jobs = [
        (
            one.id, one.switch or "-", region_text(one.region), one.protocol or "-",
            one.mode_used or "-", rate_text(one.bits_per_s), share_text(one.fallback_share),
            share_text(one.gloo_share), one.trouble or one.reason,
        )
        for one in found.jobs
    ]  # fmt: skip
    columns = ("JOB", "SWITCH", "REGION", "PROTOCOL", "USES", "RATE", "FALLBACK", "BY GLOO", "WHY")
    print_table(columns, jobs, "no job exchanges gradients")


def ina_lines(ina: JobAggregation) -> list[str]:
    """Lines of `plait explain` on the exchange of gradients of a running job."""
    if ina.granted:
        has = f"{region_text(ina.region)} of {ina.switch}, {ina.protocol}, epoch {ina.epoch}"
    else:
        has = f"no memory of a switch: {ina.reason}"
    lines = [f"  aggregation: {has}"]
    if ina.trouble and ina.trouble not in ina.reason:
        lines.append(f"    waits for another region: {ina.trouble}")
    if ina.mode_used is not None:
        used = "a switch adds its gradients up" if ina.mode_used == "aggregation" else "its gradients go by gloo"
        why = f" ({ina.reason})" if ina.granted and ina.mode_used == "gloo" else ""
        shares = f"fallback {share_text(ina.fallback_share)}, by gloo {share_text(ina.gloo_share)}"
        lines.append(f"    {used}{why}: {rate_text(ina.bits_per_s)} a rank, {shares} so far")
    return lines


def region_text(region: Region | None) -> str:
    """A region: aggregators, and whose they are.

    >>> from plait.live.api.jobs import Region
    >>> region_text(Region(offset=64, size=128, mode="dedicated", exclusive=True))
    '128 from 64'
    """
    if region is None:
        return "-"
    if not region.size:
        return "what all share"
    return f"{region.size} from {region.offset}" + ("" if region.exclusive else ", shared")


def share_text(share: float | None) -> str:
    """A share in percent."""
    return "-" if share is None else f"{100 * share:.1f} %"


def rate_text(bits_per_s: float | None) -> str:
    """A rate of gradients.

    >>> rate_text(2.5e9), rate_text(4.2e7)
    ('2.50 Gb/s', '42 Mb/s')
    """
    if bits_per_s is None:
        return "-"
    return f"{bits_per_s / 1e9:.2f} Gb/s" if bits_per_s >= 1e9 else f"{bits_per_s / 1e6:.0f} Mb/s"


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
