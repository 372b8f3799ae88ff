"""One run as a value: what a case is, how it is run, and many of them over processes.

The results of a list of cases come in the order of the list, whatever the number of processes.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, BrokenExecutor, Future, wait
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from plait.control.controller import Controller
from plait.control.drive import ENDS, Block
from plait.control.history import History
from plait.control.log import EventLog
from plait.control.messages import Command, Event, JobFinished, Refuse
from plait.control.metrics import RunResult, Value, Window, measure
from plait.control.prices import Prices
from plait.core.cluster import Cluster
from plait.core.errors import InputError, PlaitError, SimulationError
from plait.core.jobs import JobBatch
from plait.core.plan import NodeReservation
from plait.core.preemption import DEFAULT_RULE, PreemptionRule
from plait.policies.catalog import make_policy, placement, row_of, rows
from plait.sim.failures import ElasticNodes, NodeChange
from plait.sim.run import Step, simulate
from plait.sim.world import World

if TYPE_CHECKING:
    from concurrent.futures import ProcessPoolExecutor

Clock = Callable[[], float]
A = TypeVar("A")
B = TypeVar("B")


@dataclass(frozen=True, eq=False)
class Case:
    """Everything one run needs. `trace` is a label; `labels` go into the summary as they are.

    `placement` replaces that of the policy if it has the option. `log` is where the event log goes. `rule` says which
    running jobs the policy may stop or move. With `prices` the result has costs. Nodes of `elastic` come and go,
    and `reservations` keep nodes for a project.
    """

    trace: str
    jobs: JobBatch
    policy: str
    cluster: Cluster
    world: World
    seed: int = 0
    placement: str | None = None
    window: Window | None = None
    node_changes: tuple[NodeChange, ...] | None = None
    check: bool = False
    log: str | None = None
    labels: Mapping[str, Value] = field(default_factory=dict)
    rule: PreemptionRule = DEFAULT_RULE
    prices: Prices | None = None
    elastic: ElasticNodes | None = None
    reservations: tuple[NodeReservation, ...] = ()


def policy_text(policy: str, place: str | None, seed: int = 0) -> str:
    """`policy` with the placement `place` (None: its own) where it has that option; the text as given otherwise.

    `seed` goes to placements that draw.

    >>> policy_text("tiresias-l:knob=8", "counting")
    'tiresias-l:knob=8,placement=counting'
    >>> policy_text("gandiva", "counting")
    'gandiva'
    """
    if place is None:
        return policy
    placement(place)  # an unknown name is an error for every policy
    name, colon, _ = policy.partition(":")
    row = row_of(name)
    if row is None or "placement" not in row.options:
        return policy
    text = f"{policy}{',' if colon else ':'}placement={place}"
    drawn = place == "random" and "seed" in row.options and "seed=" not in policy
    return f"{text},seed={seed}" if drawn else text


def has_placement(policy: str) -> bool:
    """Whether `policy_text` can change where this policy places jobs."""
    row = rows().get(policy.partition(":")[0])
    return row is not None and "placement" in row.options


def run_case(case: Case, *, clock: Clock | None = None, ended: Callable[[int], None] | None = None) -> RunResult:
    """Run one case and measure it.

    `clock` gives wall seconds for `wall_s`, which is unknown without it. `ended(n)` is called whenever `n` more
    jobs have ended.
    """
    policy = make_policy(policy_text(case.policy, case.placement, case.seed))
    histories: list[History] = []
    about: dict[str, Any] = {
        "trace": case.trace, "world": case.world.name, "seed": case.seed, "round_s": case.world.round_s,
    }  # fmt: skip
    if case.rule != DEFAULT_RULE:
        about["preemption"] = case.rule.to_json()
    log = None if case.log is None else EventLog(case.log, policy=case.policy, cluster=case.cluster, **about)

    def observe(controller: Controller) -> list[Step]:
        histories.append(History(controller))
        steps: list[Step] = [histories[0]]
        if log is not None:
            steps.append(log)
        if ended is not None:
            steps.append(_Counter(ended))
        return steps

    begin = clock() if clock else 0.0
    try:
        run = simulate(
            case.jobs,
            case.cluster,
            policy,
            case.world,
            seed=case.seed,
            node_changes=case.node_changes,
            check=case.check,
            observe=observe,
            rule=case.rule,
            elastic=case.elastic,
            reservations=case.reservations,
        )
    except BaseException:
        if log is not None:
            log.close(keep=False)
        raise
    if log is not None:
        log.close()
    labels: dict[str, Value] = {} if clock is None else {"wall_s": round(clock() - begin, 3)}
    labels |= {"trace": case.trace, "policy": case.policy, "world": case.world.name, "seed": case.seed}
    labels |= {"cluster": str(case.cluster), **case.labels}
    truth = case.jobs if case.world.profile_noise else None
    adaptive, isolated = run.backend.adaptive, None
    if adaptive is not None:
        from plait.sim.training import isolated_s

        isolated = partial(isolated_s, case.jobs, adaptive.training, case.cluster)
    result = measure(
        run.controller,
        histories[0],
        window=case.window,
        truth=truth,
        isolated=isolated,
        prices=case.prices,
        pays_down=case.elastic is None,
        **labels,
    )
    return result if adaptive is None or not adaptive.history else replace(result, training=adaptive.recorded())


@dataclass(frozen=True)
class _Counter:
    """Calls `ended` with the number of jobs that have just ended."""

    ended: Callable[[int], None]

    def __call__(self, event: Event, commands: Sequence[Command]) -> None:
        if isinstance(event, JobFinished):
            self.ended(len(event.jobs))
        for command in commands:
            if isinstance(command, Refuse):
                self.ended(len(command.jobs))

    def take(self, block: Block) -> None:
        if finished := int((block.kind == ENDS).sum()):
            self.ended(finished)


# -- many ------------------------------------------------------------------------------------------------


class RemoteError(PlaitError):
    """An error plait raised on purpose in a worker process, with its message and exit code."""

    def __init__(self, message: str, exit_code: int) -> None:
        """Replace the original error, which may not survive pickling."""
        super().__init__(message)
        self.exit_code = exit_code

    def __reduce__(self) -> tuple[Any, ...]:
        """Both arguments, for pickling."""
        return RemoteError, (str(self), self.exit_code)


class StudyWorkers:
    """Processes that stay for several lists of items, and to which `shared` is sent once, when they start.

    They start with the first list of more than one item; with one process everything happens here, in order. Leaving
    the block ends them; an error or Ctrl-C ends them at once.
    """

    def __init__(self, processes: int, shared: Any = None) -> None:
        """At most `processes` at a time; raises `InputError` for none."""
        if processes < 1:
            raise InputError(f"processes must be at least 1, got {processes}")
        self._processes, self._shared = processes, shared
        self._others: set[Any] = set()
        self._pool: ProcessPoolExecutor | None = None

    def __enter__(self) -> StudyWorkers:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if self._pool is None:
            return
        if kind is not None and not issubclass(kind, BrokenExecutor):
            import multiprocessing

            for child in set(multiprocessing.active_children()) - self._others:
                child.terminate()
            # The pool waits for the rest of a result whose sender was ended, as long as anybody could still write it.
            self._pool._result_queue._writer.close()  # type: ignore[attr-defined]
        self._pool.shutdown(wait=True, cancel_futures=True)
        self._pool = None

    def over(self, work: Callable[[Any, A], B], items: Sequence[A]) -> Iterator[tuple[int, B]]:
        """Yield (position, `work(shared, item)`) as results come; `work` and the items must be picklable.

        Raises `SimulationError` if a process died.
        """
        if self._processes == 1 or len(items) < 2:
            for i, item in enumerate(items):
                yield i, work(self._shared, item)
            return
        if self._pool is None:
            import multiprocessing
            from concurrent.futures import ProcessPoolExecutor

            self._others = set(multiprocessing.active_children())
            self._pool = ProcessPoolExecutor(
                self._processes, mp_context=multiprocessing.get_context("spawn"), initializer=_worker,
                initargs=(self._shared,),
            )  # fmt: skip
        try:
            yield from _collect(self._pool, work, items, 2 * self._processes)
        except BrokenExecutor as error:
            raise SimulationError(
                "a worker process died; it may have run out of memory: use fewer --processes"
            ) from error


def over_processes(work: Callable[[A], B], items: Sequence[A], processes: int) -> Iterator[tuple[int, B]]:
    """Yield (position, result) as results come, at most `processes` at a time.

    `work` and the items must be picklable. Closing the generator, an error or Ctrl-C ends the workers. With one
    process everything happens here, in order.
    """
    with StudyWorkers(min(processes, len(items)) if items else processes) as workers:
        yield from workers.over(partial(_alone, work), items)


def _alone(work: Callable[[A], B], _: None, item: A) -> B:
    """The work of an item that shares nothing."""
    return work(item)


def _collect(
    pool: ProcessPoolExecutor, work: Callable[[Any, A], B], items: Sequence[A], ahead: int
) -> Iterator[tuple[int, B]]:
    """Keep a few tasks queued, so that a long list is not copied to the workers at once."""
    pending: dict[Future[B], int] = {}
    todo = iter(enumerate(items))
    while True:
        while len(pending) < ahead and (entry := next(todo, None)) is not None:
            pending[pool.submit(_sent, work, entry[1])] = entry[0]
        if not pending:
            return
        for future in wait(pending, return_when=FIRST_COMPLETED).done:
            yield pending.pop(future), future.result()


#: What this process was given when it started as one of `StudyWorkers`.
_given: Any = None


def _sent(work: Callable[[Any, A], B], item: A) -> B:
    try:
        return work(_given, item)
    except PlaitError as error:
        raise RemoteError(str(error), error.exit_code) from None


def _worker(shared: Any) -> None:
    """Keep what all items share, and ignore Ctrl-C: the parent handles it."""
    global _given
    _given = shared
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def parse_range(text: str, what: str) -> tuple[int, ...]:
    """Read `N`, `N..M` (both ends count) or a list of these.

    >>> parse_range("0..2,7", "seed")
    (0, 1, 2, 7)
    """
    out: list[int] = []
    for part in text.split(","):
        first, dots, last = part.strip().partition("..")
        try:
            low = int(first)
            high = int(last) if dots else low
        except ValueError:
            raise InputError(f"{what} {part.strip()!r} is not a whole number; write 0, 0..4 or 0,3,7") from None
        if not 0 <= low <= high:
            raise InputError(f"{what} {part.strip()!r}: give N..M with 0 <= N <= M")
        if high - low >= 10_000:
            raise InputError(f"{what} {part.strip()!r}: that would be {high - low + 1} runs")
        out.extend(range(low, high + 1))
    return tuple(dict.fromkeys(out))
