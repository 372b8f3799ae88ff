"""Hosts, guests and devices that the share law is judged by: what a row is, and what it has to reach.

`rows()` has those of virtual time alone; `recorded` makes one of steps that a real job made.
"""

from __future__ import annotations

import csv
import math
import random
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from plait.sharing.directive import StepStats
from plait.sharing.share_law import decided
from plait.sharing.share_state import Guests, ShareState
from plait.sim.gpu.micro_model import run
from plait.sim.gpu.scenario import (
    MS,
    PATTERNS,
    Hardware,
    Kernel,
    Mode,
    Opportunistic,
    Pattern,
    Phase,
    Reporting,
    Scenario,
    Variation,
)

#: The promise: mean slowdown of the guaranteed job, and that of its worst minute; of a server the tail of latencies.
MEAN, MINUTE, TAIL = 1.02, 1.05, 1.05
#: Virtual seconds of a row, of a server, and of a drift.
SECONDS, SERVER_S, DRIFT_S = 900.0, 600.0, 3600.0
BASE = PATTERNS["100+100"]
DENSE = PATTERNS["20x5 then 100 host"]
BURST = Pattern("100+20", (Kernel(100 * MS, 20 * MS),))
#: Nothing is reported but the seconds of whole steps; nor do guests acknowledge.
BARE = Reporting(stages=False, stamps=False, returns=False, acknowledged=False)
COUNTED = Reporting()
PLAIN = Hardware()
#: Opportunistic quanta of the table, in seconds.
QUANTA_S = (0.001, 0.004, 0.02)


def drawn(number: int, seed: int) -> list[tuple[Pattern, float]]:
    """Random patterns, each with an opportunistic quantum in seconds, to test models on.

    Steps of 30 to 500 ms with a slack of 0.1 to 0.9 and 1 to 12 kernels, evenly spaced or without a gap but the last;
    quanta of 0.5 to 30 ms. Steps and quanta are spread evenly on a logarithmic scale.
    """
    chance, out = random.Random(seed), []
    for _ in range(number):
        step_ms = 30.0 * (500 / 30) ** chance.random()
        host_ms = step_ms * chance.uniform(0.1, 0.9)
        times, dense = chance.randint(1, 12), chance.random() < 0.5
        gpu_ms, quantum_s = (step_ms - host_ms) / times, 0.5 * MS * 60.0 ** chance.random()
        if dense:
            kernels = (Kernel(gpu_ms * MS, 0.0, False),) * (times - 1) + (Kernel(gpu_ms * MS, host_ms * MS),)
            pattern = Pattern(f"{times}x{gpu_ms:.1f} then {host_ms:.0f} host", kernels)
        else:
            pattern = Pattern(
                f"{times}x({gpu_ms:.1f}+{host_ms / times:.1f})", (Kernel(gpu_ms * MS, host_ms / times * MS),) * times
            )
        out.append((pattern, quantum_s))
    return out


@dataclass(frozen=True, slots=True)
class Row:
    """A scenario and what it has to reach.

    least   part of the slack that guests get at least; None: only the host counts
    tail    for a server: most of p99 over that without guests; None where p99 is not promised
    """

    name: str
    scenario: Scenario
    least: float | None = None
    mode: Mode = Mode.LAW
    mean: float = MEAN
    minute: float = MINUTE
    tail: float | None = None


@dataclass(frozen=True, slots=True)
class Result:
    """What a row gave: slowdown in the mean and the worst minute, p99 over alone (servers), part of the slack."""

    slowdown: float
    minute: float
    tail: float
    share: float
    alarms: int

    def misses(self, row: Row) -> list[str]:
        """What it does not reach, in words."""
        out = []
        if not row.scenario.latency and self.slowdown > row.mean:
            out.append(f"slowdown {self.slowdown:.4f} > {row.mean:g}")
        if not row.scenario.latency and self.minute > row.minute:
            out.append(f"worst minute {self.minute:.3f} > {row.minute:g}")
        if row.tail is not None and self.tail > row.tail:
            out.append(f"p99 {self.tail:.3f} > {row.tail:g}")
        if row.least is not None and self.share < row.least:
            out.append(f"share {self.share:.2f} < {row.least:g}")
        return out


def result(row: Row, seed: int) -> Result:
    """Simulate a row."""
    outcome = run(row.scenario, row.mode, seed)
    tail = 1.0
    if row.scenario.latency:
        alone = Scenario(row.scenario.phases, (), row.scenario.seconds, load=row.scenario.load)
        tail = outcome.latency_s() / run(alone, Mode.PACKED, seed).latency_s()
    return Result(
        outcome.slowdown(), outcome.worst_minute(), tail, outcome.slack_share(), outcome.state.share.alarms
    )  # fmt: skip


def beside(
    quanta_ms: Iterable[float],
    *,
    pattern: Pattern = BASE,
    cv: float = 0.01,
    varied: Variation | None = None,
    phases: tuple[Phase, ...] = (),
    seconds: float = SECONDS,
    hardware: Hardware = PLAIN,
    reporting: Reporting = BARE,
    load: float = 0.0,
) -> Scenario:
    """A host of this pattern or phases beside a guest for each quantum in milliseconds."""
    guests = tuple(Opportunistic(f"guest-{i}", quantum_ms * MS) for i, quantum_ms in enumerate(quanta_ms))
    variation = None if load else varied or Variation(cv=cv)
    return Scenario(
        phases or (Phase(pattern, variation=variation),), guests, seconds, hardware=hardware, reporting=reporting,
        load=load,
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Alarms:
    """False alarms of the law: the cost of the guest is that of its grant. Also contrasts, and the mean share of on."""

    alarms: int
    contrasts: int
    share: float


def false_alarms(hours: float, seed: int, cv: float = 0.05) -> Alarms:
    """Steps of 200 ms with independent noise beside quanta of 2 ms, for so many hours: the law alone, no kernels.

    A step is delayed by what is left of a quantum, which the host meets as often as guests have the GPU.
    """
    chance = random.Random(f"{seed} alarms")
    state, now_s, step_s, quantum_s = ShareState(chance=seed), 0.0, 0.2, 2 * MS
    guests = Guests((quantum_s,), (1.0,), acknowledged=True)
    contrasts, shares_s, before = 0, 0.0, 0.0
    for number in range(round(hours * 3600.0 / step_s)):
        met = chance.random() < state.allowed
        took_s = step_s * max(chance.gauss(1.0, cv), 0.05) + met * chance.random() * quantum_s
        now_s += took_s
        shares_s += took_s * state.allowed
        state = decided(state, now_s, (StepStats(number, took_s, ended_s=now_s),), guests)
        contrasts += state.contrasts != before
        before = state.contrasts
    return Alarms(state.alarms, contrasts, shares_s / now_s)


def rows() -> list[Row]:
    """All rows that need no data."""
    parts = (_noise, _patterns, _irregular, _several, _varying, _reports, _broken, _counted, _gated, _servers)
    return [row for part in parts for row in part()]


def _noise() -> Iterator[Row]:
    for cv in (0.01, 0.02, 0.03):
        yield Row(f"100+100 CV {cv:.0%} q 2", beside([2], cv=cv), 0.85)
    for cv, least in ((0.05, 0.85), (0.1, 0.70), (0.2, 0.50)):
        for q in (1, 2, 5):
            yield Row(f"100+100 CV {cv:.0%} q {q}", beside([q], cv=cv), least)
    # At 40 % a contrast of 2.9 s has an error of 0.4 sqrt(1.5 / 6) = 0.2 of a step. A minute at a tenth of the grant
    # shows what a share costs to within 0.45 of it, and the error that ends the ramp, 0.017, takes 140 contrasts, 7
    # minutes, at full share: half of 15 minutes is missed. A host that counts its returns needs no ramp.
    for name, cv, reporting, wanted in (
        ("lognormal 20% q 2", 0.2, BARE, 0.50),
        ("lognormal 40% q 2", 0.4, BARE, 0.50),
        ("lognormal 40% q 2, counted", 0.4, COUNTED, 0.50),
    ):
        yield Row(name, beside([2], varied=Variation(cv=cv, lognormal=True), reporting=reporting), wanted)
    for cv in (0.01, 0.05, 0.1, 0.2):
        yield Row(f"100+100 CV {cv:.0%} q 20", beside([20], cv=cv), 0.30 if cv <= 0.1 else None)
    for cv in (0.01, 0.05, 0.1, 0.2):
        yield Row(f"100+100 CV {cv:.0%} q 300", beside([300], cv=cv))
    yield Row("25+25 CV 1% q 300", beside([300], pattern=BASE.scaled(0.25)))


def _patterns() -> Iterator[Row]:
    for name, cycle in cycles().items():
        yield Row(f"{name} q 2", beside([2], varied=Variation(cv=0.01, cycle=cycle)), 0.80)
    yield Row("warm-up q 2", beside([2], varied=Variation(cv=0.01, warm_up=0.1)), 0.80)
    for drift in (0.3, -0.3):
        varied = Variation(cv=0.01, drift_h=drift)
        yield Row(f"drift {drift:+.0%}/h q 2", beside([2], varied=varied, seconds=DRIFT_S), 0.80)
    for q, least in ((2, 0.80), (20, 0.15)):
        yield Row(f"dense bursts q {q}", beside([q], phases=bursts()), least)


def cycles() -> dict[str, tuple[tuple[float, float], ...]]:
    """Hosts whose steps repeat: factors of GPU and host time."""
    even = (1.0, 1.0)
    return {
        "alternating 150/250": ((0.75, 0.75), (1.25, 1.25)),
        "alternating loader": ((1.0, 0.5), (1.0, 1.5)),
        "every 4th +400": (even,) * 3 + ((3.0, 3.0),),
        "every 10th +400": (even,) * 9 + ((3.0, 3.0),),
        "every 16th +400": (even,) * 15 + ((3.0, 3.0),),
        "evaluation every 50th": (even,) * 49 + ((11.0, 11.0),),
        "evaluation 60 of 300": (even,) * 240 + ((0.6, 0.6),) * 60,
    }


def _irregular() -> Iterator[Row]:
    for name, (steps, least) in irregular().items():
        yield Row(f"{name} q 2", beside([2], varied=Variation(cv=0.03, cycle=steps)), least)


def irregular(seed: int = 1, steps: int = 18_000) -> dict[str, tuple[tuple[tuple[float, float], ...], float]]:
    """Hosts whose steps follow no short cycle, as factors of GPU and host time, and what guests get at least.

    An hour of steps each; a run begins at a random place.
    """
    chance = random.Random(seed)
    wave = [1.0 + 0.2 * math.sin(2.0 * math.pi * n / 3000.0) for n in range(steps)]
    # Two jobs with periods of 7.3 and 8.1 steps use the same data loader: the sum swells every 74 steps.
    beat = [1.0 + 0.3 * sum(math.sin(2.0 * math.pi * n / period) for period in (7.3, 8.1)) for n in range(steps)]
    slow, now, level = list[float](), 0.0, list[float]()
    while len(slow) < steps:
        now = 0.95 * now + chance.gauss(0.0, 0.1 * math.sqrt(1.0 - 0.95**2))
        slow.append(max(1.0 + now, 0.3))
    while len(level) < steps:
        level += [chance.choice((0.7, 1.0, 1.4))] * math.ceil(chance.expovariate(1.0 / 150.0))
    pareto = [chance.paretovariate(3.0) / 1.5 for _ in range(steps)]
    rare = [1.0 + (chance.random() < 0.02) * chance.paretovariate(1.5) for _ in range(steps)]
    saved, next_save = [1.0] * steps, 0.0
    while (next_save := next_save + chance.uniform(800.0, 1200.0)) < steps:
        saved[int(next_save)] = chance.uniform(30.0, 80.0)
    return {
        "wave of 20 % in 600 s": (tuple((x, x) for x in wave), 0.80),
        # A contrast varies as with independent noise of 8 to 10 %, whose bound it has.
        "noise of 10 % that lasts 20 steps": (tuple((x, x) for x in slow), 0.70),
        "two beats in the host's part": (tuple((1.0, x) for x in beat), 0.70),
        "phases of 0.7, 1, 1.4 at random": (tuple((x, x) for x in level), 0.50),
        "Pareto pauses (3) in each step": (tuple((1.0, x) for x in pareto), 0.50),
        "Pareto pauses (1.5) in 2 %": (tuple((1.0, x) for x in rare), 0.80),
        "checkpoint of 3 to 8 s every 200 s": (tuple((1.0, x) for x in saved), 0.80),
    }


def bursts(seed: int = 1, seconds: float = SECONDS) -> tuple[Phase, ...]:
    """A host that leaves a fifth of its slack for 2 to 20 s now and then; unlabelled."""
    chance, now_s, out = random.Random(seed), 0.0, list[Phase]()
    varied = Variation(cv=0.01)
    while now_s < seconds:
        now_s += chance.expovariate(1 / 40.0)
        out.append(Phase(BASE, now_s, variation=varied))
        now_s += chance.uniform(2.0, 20.0)
        out.append(Phase(BURST, now_s, variation=varied))
    return (*out, Phase(BASE, variation=varied))


def _several() -> Iterator[Row]:
    """Guests that wait for one another: two with half each leave a ninth idle, as their pauses vary by half.

    An eighth of the time is off beside noise of 10 %, which leaves 8/9 * 7/8 = 0.78; a ramp of up to 250 s, which one
    seed of three has, takes half of its time: 0.78 - 0.39 * 250 / 900 = 0.67.
    """
    for quanta, cv, least in (((2, 2), 0.01, 0.8), ((2, 20), 0.01, 0.5), ((4, 4, 4), 0.01, 0.8), ((2, 2), 0.1, 0.74)):
        yield Row(f"{'+'.join(map(str, quanta))} CV {cv:.0%}", beside(quanta, cv=cv), least)
        yield Row(f"{'+'.join(map(str, quanta))} CV {cv:.0%}, counted", beside(quanta, cv=cv, reporting=COUNTED))


def _varying() -> Iterator[Row]:
    """Guests whose quanta differ: pauses go by the least of late, so these guests have more than their share."""
    kinds = {
        "8 ms, lognormal 0.7": Opportunistic("guest-0", 8 * MS, spread=0.7),
        "8 ms, lognormal 1.2": Opportunistic("guest-0", 8 * MS, spread=1.2),
        "1 ms, one in 200 of 200 ms": Opportunistic("guest-0", 1 * MS, rare=200, rare_s=200 * MS),
        "2 ms, 100 ms after 400 s": Opportunistic("guest-0", 2 * MS, later=(400.0, 100 * MS)),
        "50 ms, one in 12 of 1 ms": Opportunistic("guest-0", 50 * MS, rare=12, rare_s=1 * MS),
        "2 ms that grow to 200 ms": Opportunistic("guest-0", 2 * MS, growth=math.log(100) / SECONDS),
        "2 ms that grow to 200 ms, 200 a step": Opportunistic(
            "guest-0", 2 * MS, quanta=200, growth=math.log(100) / SECONDS
        ),
    }
    for name, guest in kinds.items():
        for cv, reporting, how in (
            (0.05, BARE, ""), (0.2, BARE, ""), (0.05, COUNTED, ", counted"), (0.2, COUNTED, ", counted"),
        ):  # fmt: skip
            scenario = replace(beside([], cv=cv, reporting=reporting), opportunistic=(guest,))
            yield Row(f"quanta of {name}, CV {cv:.0%}{how}", scenario)


def _reports() -> Iterator[Row]:
    how = {
        "20 % lost": Reporting(stages=False, stamps=False, returns=False, acknowledged=False, lost=0.2),
        "2 s late": Reporting(stages=False, stamps=False, returns=False, acknowledged=False, late_s=2.0),
        "2 s late, stamped": Reporting(stages=False, returns=False, late_s=2.0),
    }
    for name, reporting in how.items():
        for q, least in ((4, 0.80), (20, 0.15)):
            yield Row(f"{name} q {q}", beside([q], reporting=reporting), least)
    for pattern, inside in (("80+20", 1), ("10+190", 4)):
        for q in (1, 4, 20):
            scenario = beside([q], pattern=PATTERNS[pattern])
            yield Row(f"{pattern} q {q}", scenario, 0.70 if q <= inside else None)


def _broken() -> Iterator[Row]:
    slices = Hardware(slices=True)
    for cv in (0.01, 0.05, 0.1):
        for q in (2, 4):
            yield Row(f"time slices CV {cv:.0%} q {q}", beside([q], cv=cv, hardware=slices))
    long = Pattern("160+40", (Kernel(160 * MS, 40 * MS),))
    yield Row("time slices 160+40 q 2", beside([2], pattern=long, hardware=slices))
    for more in (0.05, 0.1, 0.2):
        for cv in (0.01, 0.05, 0.1):
            scenario = beside([2], cv=cv, hardware=Hardware(interference=more))
            yield Row(f"interference {more:.0%} CV {cv:.0%} q 2", scenario)
    for cv in (0.05, 0.1, 0.2):
        for more in (0.1, 0.3, 2.0):
            scenario = beside([2], cv=cv, hardware=Hardware(elsewhere=more), reporting=COUNTED)
            # What whole steps show in 15 minutes: a contrast has an error of 0.45 CV.
            yield Row(
                f"cores {more:.0%} CV {cv:.0%} q 2, counted", scenario, mean=1.01 + 0.2 * cv, minute=1.04 + 0.3 * cv
            )
    for cv in (0.0, 0.02):
        clock = Variation(cv=cv, clock_s=0.05)
        frames = Pattern("100+97", (Kernel(100 * MS, 97 * MS),))
        for q, reporting, how in ((4, COUNTED, ", counted"), (4, BARE, "")):
            scenario = beside([q], pattern=frames, varied=clock, reporting=reporting)
            yield Row(f"clock CV {cv:.0%} q {q}{how}", scenario, mean=1.04, minute=1.06)
    later = Hardware(elsewhere=1.0, interference_s=400.0)
    yield Row("cores 100% from 400 s on CV 5%, counted", beside([2], cv=0.05, hardware=later, reporting=COUNTED))
    later = Hardware(interference=0.2, interference_s=300.0)
    yield Row("interference 20% from 300 s on CV 5% q 2", beside([2], cv=0.05, hardware=later))
    varied = Variation(cv=0.01)
    phases = (Phase(BASE, 400.0, variation=varied), Phase(DENSE, variation=varied))
    yield Row("one gap, from 400 s on 20 gaps q 4", beside([4], phases=phases))
    five = Pattern("5x(20+20)", (Kernel(20 * MS, 20 * MS),) * 5)
    for pattern, q in ((DENSE, 4), (PATTERNS["10x(5+5)"], 2), (five, 4)):
        for cv in (0.1, 0.2):
            yield Row(f"{pattern.name} CV {cv:.0%} q {q}, not counted", beside([q], pattern=pattern, cv=cv))


def _counted() -> Iterator[Row]:
    five = Pattern("5x(20+20)", (Kernel(20 * MS, 20 * MS),) * 5)
    for pattern in (PATTERNS["5x(4+3)"], DENSE):
        for q in (1, 4, 20):
            yield Row(f"{pattern.name} q {q}, counted", beside([q], pattern=pattern, reporting=COUNTED))
    for cv in (0.1, 0.2):
        yield Row(f"5x(20+20) CV {cv:.0%} q 4, counted", beside([4], pattern=five, cv=cv, reporting=COUNTED))
        yield Row(f"100+100 CV {cv:.0%} q 2, counted", beside([2], cv=cv, reporting=COUNTED), 0.70)
    yield Row("2+2 (4 ms) q 1, counted", beside([1], pattern=BASE.scaled(0.02), reporting=COUNTED, seconds=120.0))


def _gated() -> Iterator[Row]:
    for q in (1, 4):
        for cv in (0.01, 0.05, 0.1):
            scenario = beside([q], pattern=DENSE, cv=cv, reporting=COUNTED)
            yield Row(f"20x5 then 100 host CV {cv:.0%} q {q}, gate", scenario, 0.80, Mode.GATE)


def _servers() -> Iterator[Row]:
    for service_ms, quanta in ((5, (0.5, 1, 2, 5, 20)), (20, (0.5, 1, 2, 5, 20)), (100, (0.5, 1, 2, 5, 20))):
        pattern = Pattern(f"{service_ms}", (Kernel(service_ms * MS, 0.0),))
        for q in quanta:
            scenario = beside([q], pattern=pattern, load=0.5, seconds=SERVER_S, reporting=COUNTED)
            least = 0.5 if q <= service_ms / 4 else None
            yield Row(f"server {service_ms} ms q {q:g}, gate", scenario, least, Mode.GATE, tail=TAIL)
            tail = TAIL if q <= service_ms / 50 else None
            yield Row(f"server {service_ms} ms q {q:g}", scenario, None, Mode.LAW, tail=tail)


def recorded(path: Path) -> dict[str, tuple[tuple[float, float], ...]]:
    """Steps of each worker of a job by its name, as factors of their mean, alike for GPU and host time.

    The file is one of `pai-steps`: columns worker and batch_time_norm. Raises `OSError` if it is missing.
    """
    workers: dict[str, list[float]] = {}
    with path.open(newline="", encoding="utf-8") as file:
        for line in csv.DictReader(file):
            workers.setdefault(line["worker"], []).append(float(line["batch_time_norm"]))
    return {
        f"{path.stem} worker {name}": tuple((one * len(steps) / sum(steps),) * 2 for one in steps)
        for name, steps in workers.items()
    }
