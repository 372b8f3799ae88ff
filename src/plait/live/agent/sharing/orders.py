"""The directives of the processes on shared GPUs: from the decision for a GPU's jobs to the words of each page."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from plait.live.agent.journal import Key
from plait.live.agent.sharing.gpu_processes import GpuProcess
from plait.live.agent.sharing.reports import process_throttle, reports_nothing
from plait.live.layout import job_name
from plait.live.protocol.wire import Sharing
from plait.runtime.page import Page
from plait.sharing import Action, Directive
from plait.sharing.memory_state import MemoryState

#: Seconds for which a guest may run after a period.
LEASE_S = 3.0


def hold_back(page: Path) -> None:
    """Before a guest starts: it gets nothing until the coordinator has seen it, and pauses if that never happens."""
    with Page.open(page, mapped=False) as words:
        words.share, words.share_until = 0.0, time.monotonic() + LEASE_S


def until_it_starts(host: str, directives: Mapping[str, Directive], memory: MemoryState) -> dict[str, Directive]:
    """Directives of guests until the process of their host starts: they have the whole GPU.

    The host may wait for the memory that they free at the end of their steps; without a share they would not get there.
    """
    busy = [
        name
        for name, one in directives.items()
        if name != host and (one.action is Action.RUN or holds_more(memory, name))
    ]
    return {name: replace(directives[name], share=1.0 / len(busy)) for name in busy}


def holds_more(memory: MemoryState, name: str) -> bool:
    """Whether a job may still use more memory than its limit."""
    return name in memory.jobs and memory.jobs[name].held_bytes > memory.jobs[name].cap_bytes


def of_processes(
    jobs: Mapping[str, Sequence[GpuProcess]], directives: Mapping[str, Directive], limited: bool
) -> dict[Key, Directive]:
    """The directive of each process of these jobs: they share their limit, if memory is `limited`."""
    orders: dict[Key, Directive] = {}
    for name, directive in directives.items():
        limit = directive.memory_limit_bytes
        if limit is not None:
            limit = limit // len(jobs[name]) if limited else None
        orders |= {process.key: replace(directive, memory_limit_bytes=limit) for process in jobs[name]}
    return orders


def of_gangs(processes: Sequence[GpuProcess], orders: Mapping[Key, Directive]) -> dict[Key, Directive]:
    """The same for gangs: each process gets what the worst GPU of its attempt gives, and leaves if one has to.

    A process with a request to end finishes its step at full share, so that it reaches its checkpoint.
    """
    attempts: dict[str, list[Directive]] = {}
    for process in processes:
        if process.key in orders:
            attempts.setdefault(process.name, []).append(orders[process.key])
    out = {}
    for process in processes:
        if process.key not in orders:
            continue
        all_ = attempts[process.name]
        share, action = min(d.share for d in all_), max((d.action for d in all_), key=lambda a: a.value)
        if process.stopping:
            share, action = 1.0, Action.RUN
        out[process.key] = replace(orders[process.key], share=share, action=action)
    return out


def for_library(page: Page, process: GpuProcess, directive: Directive) -> Directive:
    """The directive as the training library of a process understands it.

    One of the version before keeps to a share at the end of each step, takes a share of 0 for all, and knows `pause`
    instead. It cannot spill, so that a limit would end the job.
    """
    if not reports_nothing(page):
        return directive
    page.pause = int(process.guest and (directive.share == 0 or directive.action is Action.PAUSE))
    return replace(directive, memory_limit_bytes=None)


def as_said(
    process: GpuProcess, here: Sequence[GpuProcess], directive: Directive, late_s: float | None, page: Page | None
) -> Sharing:
    """The directive of a process among the ones `here` on its GPU, in the form for the service.

    `late_s`: for so many seconds, too many, it has not done what the guaranteed job waits for; None if it has. `page`:
    of the process, which shows whether its runner throttles it.
    """
    beside = list(dict.fromkeys(one.key[0] for one in here if one.name != process.name))
    others, leaves = ", ".join(job_name(job) for job in beside) or "others", ""
    if directive.action is Action.CHECKPOINT:
        leaves = f"its GPU memory does not fit next to {others}"
    elif late_s is not None:
        leaves = f"it was to free GPU memory for {others} and has not come to the end of a step for {late_s:.0f} s"
    return Sharing(
        guest=process.guest,
        share=directive.share,
        limit_bytes=float(directive.memory_limit_bytes or 0),
        action=directive.action.name.lower(),
        beside=beside,
        leaves=leaves,
        throttled=(throttled := process_throttle(page)),
        duty=page.number("throttle_duty") if throttled and page is not None else None,
    )
