"""A training that is resized trains on while its next ranks start; whatever dies in between, no sample is lost."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from adaptive_world import SCRIPT, Paced, samples_of

from plait.live.api.jobs import WholeJob
from plait.live.layout import Layout
from plait.live.store import Store
from plait.live.system import procs
from plait.live.system.procs import Process
from plait.outlook.log_replay import replay, stored_rows
from plait.testing import Cluster, leaks
from plait.testing.cluster import workers

pytestmark = pytest.mark.engines

SAMPLES, EPOCHS = 512, 40
#: Elastic jobs have all that they may while everybody fits so, else the least.
POLICY, FOLDER = "resizing:Resizing", Path(__file__).parents[1] / "contract"


class Resized:
    """Two slots and a training on them, which shrinks when another job comes and grows when that goes.

    While the file `hold` is there, what waits for the next attempt is not ready: it imports `held_import`.
    """

    def __init__(self, home: Path) -> None:
        self.home, self.out = home, home.parent / "out"
        self.out.mkdir()
        self.hold = self.out / "hold"
        options = {"policy": POLICY, "round": 0.5, "overlap": 600}
        self.cluster = Cluster(home, nodes=1, slots=2, options=options)
        self.other = ""
        self.attempt = 1

    def __enter__(self) -> Resized:
        self.cluster.__enter__()
        training = Paced(0.0, EPOCHS, most_gpus=2, samples=SAMPLES).request(self.out, 1000.0) | {"retries": 3}
        training["checkpoint_s"] = 5.0
        training["env"] |= {"PYTHONPATH": str(SCRIPT.parent), "HELD_IMPORT": str(self.hold)}
        with self.cluster.client() as client:
            self.name = client.submit([training])[0].id
        self.until(lambda: self.steps(1) > 5)
        path = self.cluster.layout.job(0) / "start.json"
        record = json.loads(path.read_text())
        path.write_text(json.dumps(record | {"modules": [*record["modules"], "held_import"]}))
        return self

    def __exit__(self, *error: object) -> None:
        self.cluster.stop()

    def until(self, true: Callable[[], bool]) -> None:
        """Keep the cluster up until this is so."""
        give_up_s = time.monotonic() + 300.0
        while not true():
            assert time.monotonic() < give_up_s, self.job()
            self.cluster.maintain()
            time.sleep(0.02)

    def job(self) -> WholeJob:
        with self.cluster.client() as client:
            return client.job(self.name)

    def steps(self, attempt: int) -> int:
        return sum(len(path.read_text().splitlines()) for path in self.out.glob(f"{self.name}-e{attempt}-r0.txt"))

    def resize(self) -> list[Process]:
        """Let the policy give another number of slots to the training; returns the processes that wait, with `hold`."""
        self.hold.touch()
        with self.cluster.client() as client:
            if self.other:
                client.cancel(self.other)
                self.other = ""
            else:
                self.other = client.submit([{"command": ["sleep", "1000"], "gpus": 1}])[0].id
        self.until(lambda: len(self.waiting()) == (1 if self.other else 2))
        return [child for runner in self.waiting() for child in children(runner)]

    def waiting(self) -> list[Process]:
        """Runners of processes that wait for the next attempt."""
        begun = {runner.pid for runner, _ in workers(self.cluster.layout)}
        found = [Process.of(pid) for pid in procs.pids() if pid not in begun and self._waits(pid)]
        return [process for process in found if process is not None and children(process)]

    def _waits(self, pid: int) -> bool:
        try:
            words = Path(f"/proc/{pid}/cmdline").read_bytes()
        except OSError:
            return False
        lease = procs.environment(pid).get("PLAIT_LEASE", "")
        return b"successor_runner" in words and lease == str(self.cluster.layout.lease("n0"))

    def next_attempt(self, steps: int = 5) -> None:
        self.attempt += 1
        self.until(lambda: self.steps(self.attempt) > steps)


@pytest.fixture
def resized(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Resized]:
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(FOLDER), *filter(None, [os.environ.get("PYTHONPATH")])]))
    monkeypatch.syspath_prepend(str(FOLDER))  # the policy, for the replay
    with Resized(tmp_path / "home") as made:
        yield made
    assert leaks(Layout((tmp_path / "home").resolve())) == []


def children(runner: Process) -> list[Process]:
    found = [Process.of(pid) for pid in procs.children(runner.pid)]
    return [process for process in found if process is not None]


def check_end(resized: Resized, *, once: bool) -> None:
    """The training finishes, and its log makes sense; `once`: it has used every sample once in each pass."""
    resized.until(lambda: resized.job().state == "finished")
    resized.cluster.stop()
    epochs = samples_of(resized.out, 0)
    assert sorted(epochs) == list(range(EPOCHS))
    for samples in epochs.values():
        assert len(samples) == SAMPLES
        assert set(samples.values()) == {1} or not once
    store = Store.open(resized.home.resolve() / "plait.db")
    rows = list(stored_rows(store))
    store.close()
    found = replay(rows)
    assert found.difference is None, str(found.difference)


def test_ranks_train_on_while_others_start_and_no_fault_in_between_loses_a_sample(resized: Resized) -> None:
    processes, begin = resized.resize(), resized.steps(1)
    resized.until(lambda: resized.steps(1) > begin + 5)  # for as long as it takes
    assert len(resized.waiting()) == 1
    resized.hold.unlink()
    resized.next_attempt()
    begun = {child.pid for _, child in workers(resized.cluster.layout) if child is not None}
    assert {process.pid for process in processes} <= begun  # they are its ranks now

    for process in resized.resize():  # what waits is killed
        process.send(signal.SIGKILL)
    resized.next_attempt()
    resized.resize()
    for runner in resized.waiting():
        runner.send(signal.SIGKILL)
    resized.next_attempt()

    processes = resized.resize()  # the agent is: what waits ends with it, and the next agent begins again
    agent = resized.cluster.agent("n0")
    agent.send(signal.SIGKILL)
    resized.until(lambda: not any(process.alive for process in processes))
    resized.hold.unlink()
    resized.next_attempt()

    resized.resize()  # the service is
    service = resized.cluster.service
    service.send(signal.SIGKILL)
    resized.hold.unlink()
    resized.next_attempt()
    assert resized.job().failures == 0
    check_end(resized, once=True)


def test_a_training_that_dies_while_others_wait_goes_on_from_its_checkpoint(resized: Resized) -> None:
    waiting = resized.resize()
    for runner, _ in workers(resized.cluster.layout):
        runner.send(signal.SIGKILL)
    resized.until(lambda: resized.job().failures == 1)
    resized.hold.unlink()
    resized.until(lambda: not any(process.alive for process in waiting) or resized.steps(2) > 5)
    resized.until(lambda: max(map(resized.steps, range(2, 6))) > 5)
    check_end(resized, once=False)
