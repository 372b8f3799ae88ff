"""Rehearse a script: does it resume?"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from plait.cli.rehearsal.causes import causes, source_of, suspects
from plait.cli.rehearsal.comparing import Difference, Noise, first_difference
from plait.cli.rehearsal.running import Rehearsal, Run, checked
from plait.cli.rehearsal.traces import Trace
from plait.core.errors import InputError

#: Steps that a resumed run may take beyond the end of the undisturbed one, to show that it is longer.
BEYOND = 16
#: The rank of a prime number of steps, and one above the best of other numbers.
MANY = 8


@dataclass
class Verdict:
    """Whether a script resumes.

    `steps` were compared, of a script that `finished` by itself or was cut there; `stops`: the steps after which it
    was stopped. `noise_from`: the first step in which two undisturbed runs differ, None if they are alike. `problem`
    is empty if the script resumes; `difference` is the first one. `untried`: what these stops cannot show.
    """

    steps: int
    finished: bool
    stops: list[int]
    problem: str = ""
    difference: Difference | None = None
    causes: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    noise_from: int | None = None
    repeated: int = 0
    untried: list[str] = field(default_factory=list)
    put_back: list[str] = field(default_factory=list)

    @property
    def resumes(self) -> bool:
        """True if the stopped run trained as the undisturbed one."""
        return not self.problem

    def to_json(self) -> dict[str, Any]:
        """All fields, with `resumes` and `deterministic`."""
        return {"resumes": self.resumes, "deterministic": self.noise_from is None} | asdict(self)


def rehearse(
    command: list[str],
    scratch: Path,
    *,
    steps: int,
    stops: int = 1,
    seed: int = 0,
    ranks: int = 1,
    report: Callable[[str], object] = lambda text: None,
) -> Verdict:
    """Run `command` undisturbed and with `stops` stops, and compare at most `steps` steps.

    `scratch`: an empty folder for checkpoints and records; `report` receives what begins. Raises `InputError` for a
    script that fails by itself or takes too few steps.
    """
    rehearsal = Rehearsal(command, scratch, ranks)
    report("training undisturbed")
    plain = checked(rehearsal.run("undisturbed", (), steps))
    expected = plain.traces[0]
    places = draw_stops(expected, stops, seed)
    report(f"training with a stop after step {', '.join(map(str, places))} of {expected.length}")
    end_at = expected.length + BEYOND if expected.finished else steps
    stopped = rehearsal.run("stopped", places, end_at)
    script = source_of(command)
    verdict = Verdict(expected.length, expected.finished, places, untried=untried(expected, places))
    verdict.repeated = sum(trace.repeated for trace in stopped.traces)
    if (failure := _failure(stopped, places)) is not None:
        verdict.problem, verdict.causes = failure[0], [failure[1]]
    else:
        _compare(verdict, plain, stopped, Noise(), script)
        if verdict.problem or verdict.notes:
            report("training undisturbed again: are two such runs alike?")
            again = checked(rehearsal.run("again", (), steps))
            noises = [Noise.between(a, b) for a, b in zip(plain.traces, again.traces, strict=True)]
            verdict.noise_from = min((n.first for n in noises if n.first is not None), default=None)
            _compare(verdict, plain, stopped, noises[0], script, noises)
    verdict.put_back = sorted(rehearsal.written)
    return verdict


def draw_stops(trace: Trace, count: int, seed: int) -> list[int]:
    """Steps after which to stop: drawn by `seed`, in the middle of an epoch and of a late one if there are several.

    A counter that begins at 0 again differs only if its period does not divide where it stood. So a prime number of
    steps is preferred, and a number of batches in which the batches of a step do not fit.
    """
    low, high = (0.5, 0.85) if count == 1 else (0.25, 0.9)
    width = (high - low) / count
    chance = random.Random(seed)
    drawn = []
    for part in range(count):
        first, last = (round(trace.length * (low + width * at)) for at in (part, part + 1))
        free = [n for n in range(1, trace.length) if n not in drawn]
        inside = [n for n in free if first <= n < max(last, first + 1)]
        if not inside:
            raise InputError(
                f"{trace.length} steps are too few for {count} stops: give a script that trains for longer"
            )
        middle = [n for n in inside if _in_epoch(trace, n)] or [n for n in free if _in_epoch(trace, n)][-1:]
        best = max(_shows(trace, n) for n in middle or inside)
        drawn.append(chance.choice([n for n in middle or inside if _shows(trace, n) == best]))
    return sorted(drawn)


def _shows(trace: Trace, step: int) -> tuple[bool, int]:
    """How many periods a stop after this step shows: whether that of the batches of a step, and all below a number."""
    several = _batches_a_step(trace)
    done = sum(len(trace.steps.get(n, {}).get("batches") or []) for n in range(1, step + 1))
    factor = _smallest_factor(step)
    return several > 1 and done % several != 0, MANY if factor == step else min(factor, MANY - 1)


def _batches_a_step(trace: Trace) -> int:
    return max((len(step.get("batches") or []) for step in trace.steps.values()), default=0)


def _smallest_factor(number: int) -> int:
    """The smallest factor above 1 of a number.

    >>> [_smallest_factor(n) for n in (1, 12, 13, 35)]
    [1, 2, 13, 5]
    """
    return next((n for n in range(2, number + 1) if number % n == 0), 1)


def untried(trace: Trace, stops: list[int]) -> list[str]:
    """Limits of a rehearsal with these stops, each in a line."""
    found = []
    if not trace.finished:
        found.append(f"what happens after step {trace.length}: --steps")
    periods = [n for n in range(2, min(stops) + 1) if all(stop % n == 0 for stop in stops)]
    if periods:
        words = ", ".join(map(str, periods[:4])) + (" ..." if len(periods) > 4 else "")
        found.append(
            f"counters with a period of {words} steps, which end where the stops are: another --seed, --stops 2"
        )
    middle = [_in_epoch(trace, stop) for stop in stops]
    if all(middle) and not all(_in_epoch(trace, step) for step in range(1, trace.length)):
        found.append("a stop at the end of an epoch")
    elif not any(middle) and trace.batched:
        found.append("a stop in the middle of an epoch: the steps had none")
    return found


def _in_epoch(trace: Trace, step: int) -> bool:
    """True if the step after `step` continues the same pass of the loader."""
    first: dict[str, int] = {}
    for name, number, *_ in trace.steps.get(step + 1, {}).get("batches") or []:
        first.setdefault(name, number)
    return any(number > 1 for number in first.values())


def _failure(run: Run, places: list[int]) -> tuple[str, str] | None:
    """(problem, cause) of a run that cannot be compared; None if all attempts came to their ends."""
    attempt, trace = len(run.codes), run.traces[0]
    loops = "loop over job.steps, job.epochs or a wrapped loader"
    if attempt <= len(places):  # an attempt that was to be stopped ended otherwise
        place = places[attempt - 1]
        if "deaf" in trace.ends or (run.codes[-1] == 0 and trace.length > place):
            cause = f"no boundary at which the job could save and stop is reached any more: {loops}"
            return f"SIGTERM after step {place} is not obeyed: the script trains on to step {trace.length}", cause
        if run.codes[-1] == 0:
            cause = f"the script handles SIGTERM by itself, or no boundary is reached: {loops}"
            return f"the script ends with exit code 0 after SIGTERM at step {place}, without a stop", cause
        cause = "the job could not save and leave: does the script handle SIGTERM by itself, or never call attach?"
        return f"the script fails when it is stopped after step {place}: {run.error}", cause
    if run.failed:
        return (
            f"the resumed script fails: {run.error}",
            "the checkpoint of the stop does not fit the script at its start",
        )
    if len(trace.resumed) < attempt - 1:
        cause = "nothing resumes: loop over job.steps(n) or job.epochs(n), or call job.resume() and start there"
        return "the script starts at its first step after a stop", cause
    if 0 in trace.resumed:
        cause = "too little is registered: job = attach(model=model, optimizer=optimizer)"
        return "the stop saved no checkpoint, so the script starts at its first step", cause
    return None


def _compare(
    verdict: Verdict, plain: Run, stopped: Run, noise: Noise, script: str, noises: list[Noise] | None = None
) -> None:
    """Put the first difference of any rank, with its causes, into the verdict."""
    verdict.problem, verdict.difference, verdict.causes = "", None, []
    verdict.notes = suspects(plain.traces[0], stopped.traces[0], noise, script)
    for rank, (expected, got) in enumerate(zip(plain.traces, stopped.traces, strict=True)):
        own = noises[rank] if noises else noise
        difference = first_difference(expected, got, own)
        if difference is not None and (verdict.difference is None or difference.step < verdict.difference.step):
            verdict.difference = difference
            where = f" of rank {rank}" if len(plain.traces) > 1 else ""
            verdict.problem = f"step {difference.step}{where} differs: {_words(difference)}"
            verdict.causes = causes(expected, got, difference, own, script)
    if verdict.problem:
        verdict.notes = [text for text in verdict.notes if text not in verdict.causes]


def _words(difference: Difference) -> str:
    expected, got = difference.expected, difference.got
    return {
        "batches": f"it trains on {got}, undisturbed on {expected}"
        if got != expected
        else "it trains on other samples",
        "streams": "the random streams are at another place",
        "rates": f"the learning rate is {got}, undisturbed {expected}",
        "losses": f"the loss is {got}, undisturbed {expected}",
        "state": f"after it {expected} is another" if got == "another" else f"{got}, undisturbed {expected}",
        "length": f"{got} were taken or begun, undisturbed {expected}",
    }[difference.kind]
