"""The record of a rehearsed run."""

from __future__ import annotations

import ast
import contextlib
import json
import math
import os
import random
import signal
import subprocess
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from queue import SimpleQueue
from threading import Thread
from typing import Any

from plait.core.errors import InputError
from plait.live.agent.processes.launch import environment, free_port, prepare
from plait.live.layout import Layout, make_private
from plait.live.protocol.wire import GroupInfo, Run
from plait.live.system import procs
from plait.training.rehearsal import RehearsalOrder, restored, trace_of
from plait.training.stopping import PREEMPTED

Step = dict[str, Any]


@dataclass
class Trace:
    """The records of one rank over all attempts of one run.

    `steps` by their position from 1, the newest where a step was repeated; `resumed`: the position at which each later
    attempt continued; `ends`: how each attempt ended, "" for a killed one; `repeated`: steps taken twice.
    """

    steps: dict[int, Step] = field(default_factory=dict)
    resumed: list[int] = field(default_factory=list)
    ends: list[str] = field(default_factory=list)
    last: Step = field(default_factory=dict)
    repeated: int = 0

    @property
    def length(self) -> int:
        """The number of the last step."""
        return max(self.steps, default=0)

    @property
    def finished(self) -> bool:
        """True if the script came to its own end."""
        return bool(self.ends) and self.ends[-1] == "finished"

    @property
    def batched(self) -> bool:
        """True if some step took a batch of a wrapped loader."""
        return any("batches" in step for step in self.steps.values())


def read_trace(folder: Path, rank: int) -> Trace:
    """The records of a rank below `folder`; an empty trace if the process recorded nothing."""
    trace, path = Trace(), trace_of(folder, rank)
    for text in path.read_text(encoding="utf-8").splitlines() if path.exists() else []:
        try:
            line = json.loads(text)
        except ValueError:  # the process was killed while it wrote
            continue
        if "begin" in line:
            trace.ends.append("")
        elif "resumed" in line:
            if len(trace.ends) > 1:
                trace.resumed.append(line["resumed"])
        elif "end" in line:
            trace.ends[-1], trace.last = line["end"], line
        else:
            trace.repeated += line["n"] in trace.steps
            trace.steps[line["n"]] = line
    return trace


#: Compared parts of a step, in the order in which one leads to the next.
KINDS = ("batches", "streams", "rates", "losses", "state", "length")
#: Differences up to so many times that of two undisturbed runs are noise.
NOISE = 4.0


@dataclass(frozen=True)
class StepDifference:
    """`step` of a run differs from that of the undisturbed run in `kind`: `expected` there, `got` here."""

    step: int
    kind: str
    expected: str
    got: str


@dataclass
class LossNoise:
    """How two undisturbed runs differ: the kinds, the names of state, and the largest relative differences."""

    kinds: set[str] = field(default_factory=set)
    names: set[str] = field(default_factory=set)
    variables: set[str] = field(default_factory=set)
    loss: float = 0.0
    size: float = 0.0
    first: int | None = None

    @classmethod
    def between(cls, one: Trace, other: Trace) -> LossNoise:
        """From two undisturbed runs."""
        noise = cls()
        for number in sorted(one.steps.keys() & other.steps.keys()):
            a, b = one.steps[number], other.steps[number]
            found = {kind for kind, _, _ in _differences(a, b, cls())}
            if found - {"streams"} and noise.first is None:  # unseeded streams harm nothing unless drawn from
                noise.first = number
            noise.kinds |= found
            noise.names |= differing(a.get("state"), b.get("state"))
            for when in ("before", "after"):
                noise.variables |= differing(a.get(when), b.get(when))
            noise.loss = max([noise.loss, *map(_apart, a.get("losses", ()), b.get("losses", ()))])
            noise.size = max(noise.size, _apart(a.get("size", 0.0), b.get("size", 0.0)))
        if one.length != other.length:
            noise.kinds.add("length")
        return noise


def first_difference(expected: Trace, got: Trace, noise: LossNoise) -> StepDifference | None:
    """The first step of `got` that differs from `expected` by more than `noise`; None if none does."""
    for number in range(1, max(expected.length, got.length) + 1):
        a, b = expected.steps.get(number), got.steps.get(number)
        if a is None or b is None:
            if "length" in noise.kinds:
                return None
            return StepDifference(number, "length", f"{expected.length} steps", f"{got.length} steps")
        for kind, left, right in _differences(a, b, noise):
            return StepDifference(number, kind, left, right)
    ends = expected.last.get("state"), got.last.get("state")
    if all(ends) and expected.finished and got.finished:
        for name in sorted(differing(*ends) - noise.names):
            return StepDifference(expected.length, "state", f"{name} at the end", "another")
    return None


def differing(a: dict[str, Any] | None, b: dict[str, Any] | None) -> set[str]:
    """Names in both whose values differ; of (digest, text) the digest counts."""
    left, right = a or {}, b or {}
    return {name for name in left.keys() & right.keys() if _mark(left[name]) != _mark(right[name])}


def _differences(a: Step, b: Step, noise: LossNoise) -> Iterator[tuple[str, str, str]]:
    """(kind, expected, got) of a step, in the order of `KINDS`."""
    if "batches" not in noise.kinds and a.get("batches") != b.get("batches"):
        yield "batches", batches(a), batches(b)
    if "streams" not in noise.kinds and "before" in a and a.get("streams") != b.get("streams"):
        yield "streams", "", ""
    if "rates" not in noise.kinds and a.get("rates") != b.get("rates"):
        yield "rates", *rates(a, b)
    losses = a.get("losses", []), b.get("losses", [])
    if len(losses[0]) != len(losses[1]):
        yield "losses", f"{len(losses[0])} backward passes", f"{len(losses[1])}"
    for left, right in zip(*losses, strict=False):
        if left != right and not _apart(left, right) <= NOISE * noise.loss:
            yield "losses", f"{left:.6g}", f"{right:.6g}"
    if a.get("optimizer") != b.get("optimizer"):
        yield "state", f"a step of {a.get('optimizer')}", f"one of {b.get('optimizer')}"
    names = differing(a.get("state"), b.get("state")) - noise.names
    if noise.names and _apart(a.get("size", 0.0), b.get("size", 0.0)) > NOISE * noise.size:
        names.add("the size of the weights")
    if names:
        yield "state", ", ".join(sorted(names)), "another"


def batches(step: Step) -> str:
    given = step.get("batches") or []
    return ", ".join(f"batch {number} of {length or '?'} of {name!r}" for name, number, length, _ in given) or "none"


def rates(a: Step, b: Step) -> tuple[str, str]:
    """The first learning rates that differ."""
    left, right = (str(step.get("rates")) for step in (a, b))
    for ours, theirs in zip(a.get("rates") or [], b.get("rates") or [], strict=False):
        for one, other in zip(ours, theirs, strict=False):
            if one != other:
                return f"{one:.6g}", f"{other:.6g}"
    return left, right


def _mark(value: Any) -> Any:
    return value[0] if isinstance(value, list) else value


def _apart(a: float, b: float) -> float:
    if a == b or (math.isnan(a) and math.isnan(b)):
        return 0.0
    return abs(a - b) / max(abs(a), abs(b), 1e-12) if math.isfinite(a) and math.isfinite(b) else math.inf


#: Variables that a sentence lists.
MOST = 6
BUFFER = "a buffer with persistent=False"


def causes(expected: Trace, got: Trace, difference: StepDifference, noise: LossNoise, script: str) -> list[str]:
    """Likely causes, the most likely first; at least one. `script`: its source, "" if unknown."""
    place = max((at for at in got.resumed if at < difference.step), default=None)
    if place is None:
        return ["the runs differ before the first stop, so the script is not deterministic"]
    a, b = expected.steps.get(place + 1, {}), got.steps.get(place + 1, {})
    found = [*_from_buffers(a, b), *_from_variables(a, b, noise, script)]
    if difference.kind == "batches":
        found.insert(0, _from_batches(expected, got, difference))
    if "cycle(" in script:
        found.append(
            "cycle() repeats batches that it holds itself; over a stream no resume can load them again: write a "
            "generator that begins the loader again, while True: yield from loader"
        )
    if not expected.batched and "DataLoader(" in script:
        found.append(
            "no loader is wrapped, so each resumed epoch starts at its first batch: loader = job.wrap_loader(loader)"
        )
    return found or [_from_kind(difference)]


def suspects(expected: Trace, got: Trace, noise: LossNoise, script: str) -> list[str]:
    """Sentences on variables that differ after a resume, whether or not that changed the training."""
    found: list[str] = []
    for at in got.resumed:
        a, b = expected.steps.get(at + 1, {}), got.steps.get(at + 1, {})
        found += [text for text in _from_variables(a, b, noise, script) if text not in found]
    return found


def source_of(command: Iterable[str]) -> str:
    """The source of the script in a command; "" without one."""
    for word in command:
        if word.endswith(".py") and Path(word).is_file():
            return Path(word).read_text(encoding="utf-8", errors="replace")
    return ""


def counters_of(script: str) -> set[str]:
    """Names that `for NAME, ... in enumerate(...)` counts.

    >>> counters_of("for i, (x, y) in enumerate(loader):\\n    pass")
    {'i'}
    """
    try:
        tree = ast.parse(script)
    except (SyntaxError, ValueError):
        return set()
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.For) and isinstance(node.target, ast.Tuple) and isinstance(node.iter, ast.Call):
            inner = [node.iter, *(part for part in node.iter.args if isinstance(part, ast.Call))]
            named = any(isinstance(call.func, ast.Name) and call.func.id == "enumerate" for call in inner)
            first = node.target.elts[0]
            if named and isinstance(first, ast.Name):
                found.add(first.id)
    return found


def _from_buffers(a: Step, b: Step) -> list[str]:
    names = {name for name in differing(a.get("state"), b.get("state")) if "." in name}
    names |= {name for name in differing(a.get("before"), b.get("before")) if a["before"][name][1] == BUFFER}
    if not names:
        return []
    text = f"{_list(names)}: a buffer with persistent=False is in no state_dict(), so no checkpoint has it"
    return [text + "; make it persistent, or register it: job.register_state(name=buffer)"]


def _from_variables(a: Step, b: Step, noise: LossNoise, script: str) -> list[str]:
    """Differences of variables at the first step after the resume, and of the counters of `enumerate` after it."""
    found = []
    counted = counters_of(script) & differing(a.get("after"), b.get("after")) - noise.variables
    if counted:
        values = ", ".join(_both(name, a["after"], b["after"]) for name in sorted(counted))
        found.append(
            f"the counter of enumerate() does not go on after a resume in mid-epoch: {values}; count with the library: "
            "for i, batch in job.batches(loader)"
        )
    before = differing(a.get("before"), b.get("before")) - noise.variables - counted
    carried = sorted(name for name in before if a["before"][name][1] != BUFFER)
    if carried:
        values = ", ".join(_both(name, a["before"], b["before"]) for name in carried[:MOST])
        more = f" and {len(carried) - MOST} more" if len(carried) > MOST else ""
        found.append(
            f"variables of the script that no checkpoint has: {values}{more}; keep them in a registered dict: "
            'state = {...}; job = attach(..., state=state), then state["NAME"]'
        )
    return found


def _from_batches(expected: Trace, got: Trace, difference: StepDifference) -> str:
    ours = expected.steps[difference.step].get("batches") or []
    theirs = got.steps[difference.step].get("batches") or []
    for (name, number, length, _), (other, now, _, _) in zip(ours, theirs, strict=False):
        if (name, number) != (other, now):
            return (
                f"{name!r} is at batch {now} and would be at batch {number} of {length or '?'} undisturbed: a pass "
                "ended early or began again after the resume (an iterator around the loader, as of zip and cycle, "
                "holds a place that no checkpoint has)"
            )
    if len(ours) != len(theirs):
        return f"a step takes {len(theirs)} batches after the resume and {len(ours)} undisturbed"
    return (
        "the place in the data is right, but the samples are others: the order comes from a sampler or a dataset with "
        "state of its own, or from random numbers that are drawn elsewhere"
    )


def _from_kind(difference: StepDifference) -> str:
    return {
        "streams": "random numbers: the streams are at another place after the resume, so something draws more or "
        "fewer numbers in a process that resumes",
        "rates": "the learning rate is computed from something that no checkpoint has: register the scheduler, or "
        "derive the rate from job.step",
        "length": "the number of steps depends on something that no checkpoint has, such as the counters of early "
        "stopping",
    }.get(
        difference.kind,
        "state that is neither registered nor a variable of the script: an attribute of an unregistered object, a "
        "global of a library, a cache; register all that changes",
    )


def _both(name: str, a: dict[str, list[str]], b: dict[str, list[str]]) -> str:
    left, right = a[name][1], b[name][1]
    return f"{name} ({left} undisturbed, {right} resumed)" if left != right else f"{name} ({left}, other values)"


def _list(names: Iterable[str]) -> str:
    return ", ".join(sorted(names)[:MOST])


def next_attempt(layout: Layout) -> int:
    """The number of a new attempt, which is noted in the job's folder."""
    make_private(layout.home)
    epochs = layout.epoch_file(0)
    epoch = (int(epochs.read_text()) if epochs.exists() else 0) + 1
    make_private(layout.job(0))
    epochs.write_text(str(epoch))
    return epoch


def start(
    command: list[str],
    layout: Layout,
    epoch: int,
    *,
    checkpoint_s: float,
    rank: int = 0,
    world: int = 1,
    port: int = 0,
    also: Mapping[str, str] | None = None,
    **options: Any,
) -> tuple[subprocess.Popen[Any], Path]:
    """Start rank `rank` of `world` of the attempt `epoch`; returns the process and the folder of the rank.

    `also`: variables on top of the caller's; `options` are passed to `subprocess.Popen`. Raises `InputError` if the
    program cannot be run.
    """
    task = Run(
        *(0, epoch, rank, world, command, [], GroupInfo("alone"), str(Path.cwd())),
        env=dict(os.environ),
        checkpoint_s=checkpoint_s,
        local_rank=rank,
        local_world=world,
        master_port=port,
    )
    place = prepare(task, layout)
    env = environment(task, layout, None, 0)
    for name in (procs.MARK, "CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "OMP_NUM_THREADS"):  # a service chooses these
        env.pop(name, None)
        if name in os.environ:
            env[name] = os.environ[name]
    try:
        return subprocess.Popen(command, env=env | dict(also or {}), **options), place
    except OSError as error:
        raise InputError(f"cannot run {command[0]!r}: {error.strerror}; give the program after --") from error


#: No checkpoints by the clock: the checkpoints of the stops are rehearsed.
NEVER_S = 1e9


@dataclass
class ScriptRun:
    """A run of the script over all its attempts: traces by rank, exit codes by attempt, last words of a failure."""

    traces: list[Trace]
    codes: list[int] = field(default_factory=list)
    error: str = ""

    @property
    def failed(self) -> bool:
        """True if the last attempt ended by neither its end nor a stop."""
        return self.codes[-1] not in (0, PREEMPTED)


@dataclass
class Rehearsal:
    """Runs `command` with `ranks` processes below `scratch`; `written` collects the files that were put back."""

    command: list[str]
    scratch: Path
    ranks: int = 1
    written: set[str] = field(default_factory=set)

    def run(self, name: str, stops: Sequence[int], end_at: int) -> ScriptRun:
        """ScriptRun the script, stop it after each of the steps `stops`, resume it, and exit after step `end_at`.

        An attempt that fails, or does not stop, is the last one.
        """
        folder = self.scratch / name
        folder.mkdir()
        run = ScriptRun([])
        try:
            for stop_at in (*stops, 0):
                code = self._attempt(folder, stop_at, end_at, run)
                run.codes.append(code)
                if code != (PREEMPTED if stop_at else 0):
                    break
        finally:
            files: list[str] = []
            restored(folder, written=files)
            self.written.update(files)
        run.traces = [read_trace(folder, rank) for rank in range(self.ranks)]
        return run

    def _attempt(self, folder: Path, stop_at: int, end_at: int, run: ScriptRun) -> int:
        """One attempt; returns the worst exit code of its ranks, or that of the first rank that fails.

        Ranks that still run when one has failed may wait for it for ever, so they are killed. Nothing else ends a rank.
        """
        layout = Layout((folder / "home").resolve())
        epoch = next_attempt(layout)
        order = RehearsalOrder(str(folder.resolve()), stop_at, end_at).write(folder / "order.json")
        port = free_port() if self.ranks > 1 else 0
        logs = [folder / f"log-{epoch}-{rank}.txt" for rank in range(self.ranks)]
        children: list[subprocess.Popen[bytes]] = []
        try:
            for rank, log in enumerate(logs):
                with log.open("wb") as file:
                    options = {"stdin": subprocess.DEVNULL, "stdout": file, "stderr": subprocess.STDOUT}
                    child, _ = start(
                        self.command,
                        layout,
                        epoch,
                        checkpoint_s=NEVER_S,
                        rank=rank,
                        world=self.ranks,
                        port=port,
                        also=order,
                        **options,
                    )
                children.append(child)
            codes, bad = _wait(children)
        finally:
            for child in children:
                with contextlib.suppress(OSError):
                    if child.poll() is None:
                        child.send_signal(signal.SIGKILL)
                        child.wait()
        if bad is None:
            return max(codes.values())
        run.error = last_line(logs[bad])
        if self.ranks > 1:
            run.error = f"rank {bad} ended with exit code {codes.pop(bad)}: {run.error}"
            if early := [str(rank) for rank, code in codes.items() if code == 0]:
                run.error += f"; before it had ended with exit code 0: rank {', '.join(early)}"
        return children[bad].returncode


def _wait(children: list[subprocess.Popen[bytes]]) -> tuple[dict[int, int], int | None]:
    """Wait until all ranks have ended, or one has failed: the exit codes in that order, and the rank that failed."""
    ended: SimpleQueue[tuple[int, int]] = SimpleQueue()
    for rank, child in enumerate(children):
        Thread(target=lambda rank=rank, child=child: ended.put((rank, child.wait())), daemon=True).start()
    codes: dict[int, int] = {}
    for _ in children:
        rank, code = ended.get()
        codes[rank] = code
        if code not in (0, PREEMPTED):
            return codes, rank
    return codes, None


def last_line(log: Path) -> str:
    """The last line of a log that is not empty, at most 400 characters."""
    lines = [line.strip() for line in log.read_text(errors="replace").splitlines() if line.strip()]
    return lines[-1][:400] if lines else "no output"


def checked(run: ScriptRun) -> ScriptRun:
    """The undisturbed run itself; raises `InputError` if it shows nothing to compare."""
    if run.failed:
        raise InputError(f"the script fails without any stop: {run.error} (exit code {run.codes[-1]})")
    if not run.traces[0].length:
        raise InputError(
            "no training step was seen: the script neither calls step() of a torch optimizer nor loops over job.steps, "
            "job.epochs or a wrapped loader (plait.training.attach)"
        )
    return run


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
    difference: StepDifference | None = None
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
    """ScriptRun `command` undisturbed and with `stops` stops, and compare at most `steps` steps.

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
        _compare(verdict, plain, stopped, LossNoise(), script)
        if verdict.problem or verdict.notes:
            report("training undisturbed again: are two such runs alike?")
            again = checked(rehearsal.run("again", (), steps))
            noises = [LossNoise.between(a, b) for a, b in zip(plain.traces, again.traces, strict=True)]
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
    several = max((len(step.get("batches") or []) for step in trace.steps.values()), default=0)
    done = sum(len(trace.steps.get(n, {}).get("batches") or []) for n in range(1, step + 1))
    factor = _smallest_factor(step)
    return several > 1 and done % several != 0, MANY if factor == step else min(factor, MANY - 1)


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


def _failure(run: ScriptRun, places: list[int]) -> tuple[str, str] | None:
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
    verdict: Verdict,
    plain: ScriptRun,
    stopped: ScriptRun,
    noise: LossNoise,
    script: str,
    noises: list[LossNoise] | None = None,
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
            before, after = difference.expected, difference.got
            words = {
                "batches": f"it trains on {after}, undisturbed on {before}"
                if after != before
                else "it trains on other samples",
                "streams": "the random streams are at another place",
                "rates": f"the learning rate is {after}, undisturbed {before}",
                "losses": f"the loss is {after}, undisturbed {before}",
                "state": f"after it {before} is another" if after == "another" else f"{after}, undisturbed {before}",
                "length": f"{after} were taken or begun, undisturbed {before}",
            }[difference.kind]
            verdict.problem = f"step {difference.step}{where} differs: {words}"
            verdict.causes = causes(expected, got, difference, own, script)
    if verdict.problem:
        verdict.notes = [text for text in verdict.notes if text not in verdict.causes]
