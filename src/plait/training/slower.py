"""Devices that are declared slower than this machine's, for demonstrations and tests on CPU slots.

    PLAIT_SLOWER=cpu=2,gpu=2      stages on the CPU and the GPU take twice the time of a core

A stage still computes in earnest and then holds its resource until it has taken so many times the processor time that
its thread used. Stages so declared take the same time whether or not other programs want the cores too, as long as
the cores are not short by more than the factor: what several jobs do then depends on how they take turns.
"""

from __future__ import annotations

import math
import os
import threading
import time

from plait.core.errors import InputError
from plait.core.resources import Resource

VARIABLE = "PLAIT_SLOWER"


class Slower:
    """Waits at the end of stages on the resources that have a factor above 1. A stage belongs to one thread."""

    def __init__(self, factors: dict[Resource, float]) -> None:
        """`factors`: how many times the processor time of its thread a stage on the resource takes."""
        self._factors = factors
        self._begun: dict[Resource, tuple[int, float, float]] = {}

    @classmethod
    def declared(cls, text: str | None = None) -> Slower:
        """As the environment says; raises `InputError` for what is no declaration."""
        text = os.environ.get(VARIABLE, "") if text is None else text
        known = {r.name.lower(): r for r in (Resource.CPU, Resource.GPU)}
        factors = {}
        for part in filter(None, text.split(",")):
            name, _, value = part.partition("=")
            try:
                factor = float(value)
            except ValueError:
                factor = math.nan
            if name not in known or not 1 <= factor <= 1000:
                raise InputError(f"{VARIABLE}={text!r}: {part!r} is not like cpu=2 or gpu=2.5 (factors from 1 to 1000)")
            factors[known[name]] = factor
        return cls(factors)

    def begin(self, resource: Resource) -> None:
        """The stage begins, or goes on, in this thread."""
        if resource in self._factors:
            self._begun[resource] = threading.get_ident(), time.perf_counter(), time.thread_time()

    def end(self, resource: Resource) -> None:
        """It ends or pauses: wait until the declared device would be done."""
        begun = self._begun.pop(resource, None)
        if begun is not None and begun[0] == threading.get_ident():
            done_s = begun[1] + self._factors[resource] * (time.thread_time() - begun[2])
            time.sleep(max(0.0, done_s - time.perf_counter()))
