"""A cluster under each backend, with the same handles: what `test_backends.py` needs to run one script on all of them.

A world has `nodes` base nodes of two GPUs each. Everything a script does goes through `World`; what one cannot do is in
`cannot`, with the reason. `Served` is any cluster of real processes whose home folder and agents are on this machine: a
backend of its own needs `make_backend` and how its nodes come and go.
"""

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar

import contract_job

from plait.core.errors import PlaitError
from plait.live.layout import Layout, make_private
from plait.live.protocol.wire import Seen
from plait.live.store import Store

SCRIPT = Path(contract_job.__file__).resolve()
#: The lease ends earlier by a fifth; a service that is started again takes some seconds, more on a busy machine.
GPUS, LOST_S = 2, 20.0
FINAL = ("finished", "failed", "cancelled")
#: Preempts larger gangs for smaller ones, at once.
POLICY = "resizing:Resizing"
Json = dict[str, Any]


class World(ABC):
    """A cluster of `base` nodes under some backend."""

    name = ""
    #: Seconds a script waits for anything.
    patience_s = 60.0
    #: Scenario -> why it is not for this backend.
    cannot: ClassVar[dict[str, str]] = {}
    nodes = 2
    #: A script looks this often.
    look_s = 0.05

    def __init__(self, home: Path) -> None:
        self.layout = Layout.at(home)
        make_private(self.layout.home)
        self.base = [f"n{i}" for i in range(self.nodes)]
        self._submitted: list[int] = []

    # -- what users do ------------------------------------------------------------------------------------

    @abstractmethod
    def submit(self, *words: str, **more: Any) -> int:
        """A job that does what `contract_job.py` does with these words; its number."""

    @abstractmethod
    def job(self, number: int) -> Json:
        """state, epoch, nodes, exit_code, reason, attempts."""

    @abstractmethod
    def held(self) -> list[str]:
        """Options of a job that goes on after its steps until `let_go`, however long other things take meanwhile."""

    @abstractmethod
    def let_go(self) -> None:
        """Let the jobs that were held end."""

    @abstractmethod
    def cancel(self, number: int) -> None: ...

    @abstractmethod
    def states(self) -> dict[str, str]:
        """The state of each node."""

    @abstractmethod
    def drain(self, node: str) -> None: ...

    @abstractmethod
    def resume(self, node: str) -> None: ...

    @abstractmethod
    def follow(self, number: int) -> Iterator[str]:
        """The log of a job as it grows."""

    @abstractmethod
    def attempt_log(self, number: int, epoch: int, rank: int = 0) -> str:
        """What a process of an attempt has written so far, read on the node."""

    @abstractmethod
    def term(self) -> int: ...

    @abstractmethod
    def log(self) -> list[Json]:
        """The entries of the event log."""

    # -- what happens to clusters -------------------------------------------------------------------------

    @abstractmethod
    def join(self) -> str:
        """One more node; its name."""

    @abstractmethod
    def leave(self, node: str) -> None:
        """The backend takes a node away: its jobs stop after a checkpoint."""

    @abstractmethod
    def lose(self, node: str) -> None:
        """The machine dies with all that runs on it, and does not come back before `mend`."""

    @abstractmethod
    def kill_agent(self, node: str) -> None:
        """The agent dies; the backend starts another."""

    @abstractmethod
    def freeze(self, node: str) -> None:
        """The agent stands still; processes go on."""

    @abstractmethod
    def thaw(self, node: str) -> None: ...

    @abstractmethod
    def restart(self) -> None:
        """The scheduler is killed and comes back."""

    @abstractmethod
    def tell(self, node: str, *seen: Seen, term: int | None = None, agent: str | None = None) -> None:
        """Words of an agent reach the service: late, repeated, or of an earlier agent."""

    @abstractmethod
    def confused(self) -> contextlib.AbstractContextManager[object]:
        """While it lasts, messages of agents come twice and they hear old answers after new ones."""

    @abstractmethod
    def processes(self, node: str) -> list[tuple[int, int, int]]:
        """What really runs on a node: (job, epoch, rank)."""

    @abstractmethod
    def pass_s(self, seconds: float) -> None:
        """Time goes on."""

    @abstractmethod
    def mend(self) -> None:
        """All base nodes are there and work again, others are gone."""

    @abstractmethod
    def close(self) -> None: ...

    # -- for scripts --------------------------------------------------------------------------------------

    def until(self, true: Callable[[], Any], what: str) -> Any:
        """Wait for something to come true; its value."""
        spent = 0.0
        while not (value := true()):
            assert spent < self.patience_s, f"waited {self.patience_s:g} s for {what}"
            spent += self.look_s
            self.pass_s(self.look_s)
        return value

    def until_state(self, number: int, *states: str, epoch: int = 0) -> Json:
        """Wait for a state of a job, in this attempt or a later one; what it is then."""
        self.until(
            lambda: (job := self.job(number))["state"] in states and job["epoch"] >= epoch,
            f"job {number} to be {' or '.join(states)} in attempt {epoch}; it is {self.job(number)}",
        )
        return self.job(number)

    def until_step(self, number: int, step: float) -> Json:
        """Wait until a job runs and has made so many steps."""
        what = f"step {step} of job {number}"
        self.until(lambda: (job := self.job(number))["state"] == "running" and job["iterations_done"] >= step, what)
        return self.job(number)

    def finished(self, number: int) -> int:
        """How often the log says that a job has finished."""
        return sum(e["type"] == "JobFinished" and number in e["jobs"] for e in self.log())

    def calm(self) -> None:
        """As at the beginning: nothing runs, base nodes are ready."""
        self.mend()
        for number in self._submitted:
            with contextlib.suppress(PlaitError):
                self.cancel(number)
        for number in self._submitted:
            self.until(lambda n=number: self.job(n)["state"] in FINAL, f"job {number} to end")
        self._submitted.clear()
        self.until(lambda: all(self.states().get(n) == "ready" for n in self.base), f"{self.base} to be ready")
        self.until(lambda: not any(self.processes(n) for n in self.base), "processes to end")


def verified(layout: Layout) -> str | None:
    """How the log of a closed world differs from what is derived from it again; None if it does not."""
    from plait.outlook.log_replay import replay, stored_rows

    store = Store.open(layout.database)
    try:
        difference = replay(stored_rows(store)).difference
        return None if difference is None else str(difference)
    finally:
        store.close()
