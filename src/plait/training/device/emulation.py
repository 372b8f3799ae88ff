"""Emulate devices slower than those of this machine, for demonstrations and tests on CPU slots.

    PLAIT_SLOWER=cpu=2,gpu=40ms     a CPU stage takes twice the processor time of its thread, a GPU stage 40 ms

`SlowerStages` wraps the marks of stages; `make_stages` takes it only where something is declared.
Where `PLAIT_FIFO_GPU` is set the GPU is a queue that several processes share (`fifo_stages`), whatever this says.
A stage still does its real work and then holds its resource until the declared device would have finished. Declared
stages take the same time whatever other programs run, as long as there are enough cores, so the pace of several jobs
depends only on how they take turns.
"""

from __future__ import annotations

import math
import os
import threading
import time
from collections.abc import Callable
from typing import Any

from plait.core.errors import InputError
from plait.core.resources import Resource
from plait.runtime.page import Page
from plait.runtime.stage_gate import NullGate, StageGate
from plait.training.device.fifo_stages import FifoStages, declared_fifo
from plait.training.stages import Stages

VARIABLE = "PLAIT_SLOWER"


class SlowDevices:
    """Waits at the end of stages on the declared resources. A stage belongs to one thread."""

    def __init__(self, factors: dict[Resource, float], least_s: dict[Resource, float] | None = None) -> None:
        """By resource: a factor of the processor time of a stage's thread, and the least seconds of a stage."""
        self._factors, self._least_s = factors, least_s or {}
        self._begun: dict[Resource, tuple[int, float, float]] = {}

    @classmethod
    def declared(cls, text: str | None = None) -> SlowDevices:
        """Read the declaration `text`, by default from the environment; raises `InputError` if it is invalid."""
        text = os.environ.get(VARIABLE, "") if text is None else text
        known = {r.name.lower(): r for r in (Resource.CPU, Resource.GPU)}
        factors: dict[Resource, float] = {}
        least_s: dict[Resource, float] = {}
        for part in filter(None, text.split(",")):
            name, _, value = part.partition("=")
            fixed = value.endswith("ms")
            try:
                number = float(value.removesuffix("ms"))
            except ValueError:
                number = math.nan
            if name not in known or not (0 if fixed else 1) <= number <= 1000:
                ways = "cpu=2 (times, from 1 to 1000) or gpu=40ms (up to 1000)"
                raise InputError(f"{VARIABLE}={text!r}: {part!r} is not like {ways}")
            if fixed:
                least_s[known[name]] = number / 1e3
            else:
                factors[known[name]] = number
        return cls(factors, least_s)

    def __bool__(self) -> bool:
        """True if any resource is slower."""
        return bool(self._factors or self._least_s)

    def begin(self, resource: Resource) -> None:
        """Begin or continue the stage in this thread."""
        if resource in self._factors or resource in self._least_s:
            self._begun[resource] = threading.get_ident(), time.perf_counter(), time.thread_time()

    def end(self, resource: Resource) -> None:
        """End or pause the stage: wait until the declared device would have finished."""
        begun = self._begun.pop(resource, None)
        if begun is not None and begun[0] == threading.get_ident():
            computed_s = self._factors.get(resource, 0.0) * (time.thread_time() - begun[2])
            done_s = begun[1] + max(computed_s, self._least_s.get(resource, 0.0))
            time.sleep(max(0.0, done_s - time.perf_counter()))


class SlowerStages(Stages):
    """Stages that end, pause and give way only when the declared devices would have finished."""

    may_sample = False

    def __init__(self, slower: SlowDevices, *args: Any, **options: Any) -> None:
        """`slower`: the declared devices; other arguments are those of `Stages`."""
        super().__init__(*args, **options)
        self._slower = slower

    def enter(self, resource: Resource, *, gated: bool = True, weight: int = 1) -> None:
        """See `Stages.enter`."""
        super().enter(resource, gated=gated, weight=weight)
        self._slower.begin(resource)

    def leave(self, resource: Resource, *, sync: bool = False) -> None:
        """See `Stages.leave`."""
        self._slower.end(resource)
        super().leave(resource, sync=sync)

    def sleep(self, resource: Resource) -> None:
        """See `Stages.sleep`."""
        self._slower.end(resource)
        super().sleep(resource)

    def wake(self, resource: Resource) -> bool:
        """See `Stages.wake`."""
        slept = super().wake(resource)
        if slept:
            self._slower.begin(resource)
        return slept

    def _give_way(self) -> float:
        for resource in Resource:
            self._slower.end(resource)
        return super()._give_way()

    def _go_on(self, gave_way_s: float) -> None:
        super()._go_on(gave_way_s)
        for resource in filter(self.is_open, Resource):
            self._slower.begin(resource)


def make_stages(page: Page | None, *, refresh: Callable[[StageGate], StageGate], **options: Any) -> Stages:
    """The stages of this process, on devices as slow as the environment declares them; `options` as for `Stages`.

    Raises `InputError` for what is no declaration.
    """
    if (fifo := declared_fifo()) is not None:
        return FifoStages(fifo, page, NullGate(), refresh=refresh, **options)
    slower = SlowDevices.declared()
    if slower:
        return SlowerStages(slower, page, NullGate(), refresh=refresh, **options)
    return Stages(page, NullGate(), refresh=refresh, **options)
