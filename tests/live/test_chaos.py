"""Everything is killed, stopped or filled up at random moments, and no job is lost, done twice, or changed by a bit.

Hosts and guests on the same slots are disturbed likewise, and nobody is stopped for somebody else. `make chaos` is the
long form of both: 30 jobs, 50 faults; PLAIT_SLOW=1 takes 6 jobs and 10 faults, not 4 and 8. CHAOS_SEED is the plan of
faults (it is printed), PLAIT_CHAOS=1 switches the long form on.
"""

import json
import os
import random
import socket
import sqlite3
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from plait.core.errors import PlaitError
from plait.live.scheduler.state import State
from plait.live.store import Store
from plait.outlook.log_replay import LoggedEntry, replay, stored_rows
from plait.testing import Chaos, Cluster, leaks, plan_faults

pytestmark = pytest.mark.engines

SCRIPT = Path(__file__).parent / "scripts" / "chaos_job.py"
#: A line about how far it is so often, seconds.
SAY_S = 15.0
SEED = int(os.environ.get("CHAOS_SEED", "1"))
MIXES = [
    {"storage": 0.03, "cpu": 0.01, "gpu": 0.01},
    {"storage": 0.01, "cpu": 0.03, "gpu": 0.01},
    {"cpu": 0.01, "gpu": 0.03, "network": 0.01},
    {"cpu": 0.01, "gpu": 0.01, "network": 0.03},
]


@dataclass
class Undisturbed:
    """What a training gives when nothing happens to it, by number of ranks and seed; each is run once."""

    folder: Path
    running: dict[tuple[int, int], list[subprocess.Popen]] = field(default_factory=dict)

    def start(self, world: int, seed: int) -> None:
        out = self.folder / f"{world}-{seed}"
        if (world, seed) in self.running:
            return
        out.mkdir(parents=True)
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        base = {k: v for k, v in os.environ.items() if not k.startswith("PLAIT_")}
        base |= {"WORLD_SIZE": str(world), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "OMP_NUM_THREADS": "1"}
        command = [sys.executable, str(SCRIPT), str(out), str(seed), "0"]
        self.running[world, seed] = [
            subprocess.Popen(command, env=base | {"RANK": str(r)}, stdout=subprocess.DEVNULL) for r in range(world)
        ]

    def weights(self, world: int, seed: int) -> list[bytes]:
        assert [process.wait(120) for process in self.running[world, seed]] == [0] * world
        out = self.folder / f"{world}-{seed}"
        return [(out / f"alone-e0-r{rank}.bin").read_bytes() for rank in range(world)]

    def close(self) -> None:
        for process in (p for group in self.running.values() for p in group):
            process.kill()
            process.wait()


@dataclass
class Trial:
    """So many jobs of up to `widest` ranks, so many faults."""

    tmp: Path
    jobs: int
    faults: int
    widest: int
    patience_s: float
    every_s: float
    pause_s: float
    submit_s: float
    lost_s: float
    seeds: int = 1  # different trainings of each width
    seed: int = SEED
    slots: int = 4
    policy: str = "muri-l"
    classes: Sequence[str] = ("guaranteed",)

    def run(self) -> None:
        draw = random.Random(self.seed)
        worlds = [1 + i % self.widest for i in range(self.jobs)]
        draw.shuffle(worlds)
        shapes = [(world, draw.randrange(self.seeds)) for world in worlds]
        out = self.tmp / "out"
        out.mkdir()
        options = {"policy": self.policy, "round": 2, "lost": self.lost_s, "grace": 5}
        cluster = Cluster(self.tmp / "home", nodes=2, slots=self.slots, options=options)
        undisturbed = Undisturbed(self.tmp / "alone")
        begin = time.monotonic()
        plan = plan_faults(self.seed, self.faults, every_s=self.every_s, longest_s=2.0 * self.lost_s)
        try:
            with cluster:
                chaos = Chaos(cluster, plan, self.tmp / "faults.jsonl")
                people = threading.Thread(target=self._submit, args=(cluster, shapes, out), daemon=True)
                people.start()
                try:
                    numbers = self._until_over(cluster, chaos)
                finally:
                    chaos.end()
                people.join()
                self._run_undisturbed(undisturbed, shapes)
            starts = sum(epoch for _, _, _, epoch in _jobs(cluster.layout.database))
            kinds = ", ".join(f"{count} x {kind}" for kind, count in Counter(f.kind for f in chaos.done).most_common())
            print(f"chaos: seed {self.seed}: {self.jobs} jobs in {starts} attempts, {time.monotonic() - begin:.0f} s")
            print(
                f"chaos: {len(chaos.done)} faults: {kinds}; the service was started {cluster.starts} times", flush=True
            )
            assert leaks(cluster.layout) == []
            assert len(chaos.done) == self.faults
            self._check_log(cluster)
            for i, (world, seed) in enumerate(shapes):
                self._check_weights(out, numbers[f"chaos-{i}"], self._right(undisturbed, world, seed))
        finally:
            undisturbed.close()

    def _run_undisturbed(self, undisturbed: Undisturbed, shapes: list[tuple[int, int]]) -> None:
        for world, seed in shapes:
            undisturbed.start(world, seed)

    def _right(self, undisturbed: Undisturbed, world: int, seed: int) -> list[bytes]:
        return undisturbed.weights(world, seed)

    def _command(self, out: Path, seed: int) -> list[str]:
        return [sys.executable, str(SCRIPT), str(out), str(seed), str(self.pause_s)]

    def _submit(self, cluster: Cluster, shapes: list[tuple[int, int]], out: Path) -> None:
        """One by one, as people do; whoever gets no answer looks whether the job is there before asking again."""
        for i, (world, seed) in enumerate(shapes):
            job = {
                "name": f"chaos-{i}",
                "command": self._command(out, seed),
                "gpus": world,
                "class": self.classes[i % len(self.classes)],
                "retries": 100,
                "checkpoint_s": 0.5,
                "profile": MIXES[i % len(MIXES)],
                # While a process's disk is full, Python leaves torn bytecode behind for whoever imports it next.
                "env": {"PYTHONDONTWRITEBYTECODE": "1"},
            }
            unsure = False
            while True:
                try:
                    with cluster.client() as client:
                        if not (unsure and job["name"] in {j.name for j in client.jobs(limit=1000)}):
                            client.submit([job])
                    break
                except PlaitError:
                    unsure = True
                    time.sleep(0.2)
            time.sleep(self.submit_s)

    def _until_over(self, cluster: Cluster, chaos: Chaos) -> dict[str, int]:
        """Make faults until all jobs have ended; their numbers by name."""
        begin_s = said_s = time.monotonic()
        until = begin_s + self.patience_s
        while True:
            chaos.step()
            jobs = _jobs(cluster.layout.database)
            if time.monotonic() >= said_s + SAY_S:
                said_s = time.monotonic()
                states = ", ".join(f"{count} {state}" for state, count in Counter(j[2] for j in jobs).most_common())
                print(
                    f"chaos: {said_s - begin_s:4.0f} s, fault {len(chaos.done)} of {self.faults}: {states}", flush=True
                )
            over = [job for job in jobs if job[2] in ("finished", "failed", "cancelled")]
            if len(over) == self.jobs and chaos.over:
                assert [job for job in jobs if job[2] != "finished"] == []
                return {name: number for number, name, _, _ in jobs}
            if time.monotonic() > until:
                pytest.fail(f"not over in {self.patience_s} s, {len(chaos.done)} faults made; see {self.tmp}: {jobs}")
            time.sleep(0.15)

    def _check_log(self, cluster: Cluster) -> None:
        """Each job finished exactly once, and every decision is derived again."""
        store = Store.open(cluster.layout.database)
        try:
            finished, over = Counter(), Counter()
            for row in store.entries():
                event = json.loads(row.entry)
                assert event["type"] != "JobCancelled", event
                if event["type"] == "JobFinished":
                    finished.update(event["jobs"])
                if event["type"] == "AttemptOver" and event["outcome"] == "finished":
                    over[event["job"]] += 1
            assert finished == Counter(range(self.jobs))
            assert over == Counter(range(self.jobs))
            assert replay(stored_rows(store)).difference is None
        finally:
            store.close()

    def _check_weights(self, out: Path, number: int, right: list[bytes]) -> None:
        """Whatever attempt came to the end has the weights of an undisturbed run, and all ranks of one have."""
        for rank, weights in enumerate(right):
            written = list(out.glob(f"j-{number}-e*-r{rank}.bin"))
            assert written, f"job {number} rank {rank} has finished and left no weights"
            assert [p.name for p in written if p.read_bytes() != weights] == []


@dataclass
class GuestTrial(Trial):
    """The same for hosts and guests: nobody is stopped for somebody else, nobody runs out of memory."""

    slots: int = 2
    policy: str = "antman:max_per_gpu=2"
    classes: Sequence[str] = ("guaranteed", "opportunistic", "auto")

    def _check_log(self, cluster: Cluster) -> None:
        super()._check_log(cluster)
        store = Store.open(cluster.layout.database)
        try:
            entries = [json.loads(row.entry) for row in store.entries()]
            asked = Counter(e["why"] for e in entries if e["type"] == "StopAsked")
            assert asked.keys() <= {"failed", "start", "requeue", "lost"}, asked
            assert [e for e in entries if "GPU memory" in str(e.get("reason"))] == []
            shared, last = Counter(), {}

            def watch(state: State, row: LoggedEntry) -> None:
                """How often a host and a guest had a GPU together, and which guests became hosts."""
                for here in state.groups.shared.values():
                    shared["shared"] += len({state.groups.by_job[job].guest for job in here}) == 2
                for job, group in state.groups.by_job.items():
                    attempt = state.jobs[job].live
                    if attempt is not None:
                        shared["promoted"] += last.get((job, attempt.epoch)) is True and not group.guest
                        last[job, attempt.epoch] = group.guest

            assert replay(stored_rows(store), observe=watch).difference is None
            print(f"chaos: {shared['promoted']} promotions; stops: {dict(asked)}", flush=True)
            assert shared["shared"] > 0
        finally:
            store.close()


class PageTrial(GuestTrial):
    """With jobs that are no trainings: they report steps by hand, and are done sooner."""

    def _command(self, out: Path, seed: int) -> list[str]:
        return [sys.executable, str(SCRIPT.with_name("page_job.py")), str(out), str(400 + 100 * seed)]

    def _run_undisturbed(self, undisturbed: Undisturbed, shapes: list[tuple[int, int]]) -> None:
        pass

    def _right(self, undisturbed: Undisturbed, world: int, seed: int) -> list[bytes]:
        return [b"the end"] * world


def _jobs(database: Path) -> list[tuple[int, str, str, int]]:
    """Number, name, state and epoch of all jobs, read beside the service, which may be dead or stopped just now."""
    with closing(sqlite3.connect(f"file:{database}?mode=ro", uri=True, timeout=5.0)) as store:
        return store.execute("SELECT number, name, state, epoch FROM jobs ORDER BY number").fetchall()


def test_nothing_is_lost_whatever_is_killed(tmp_path):
    jobs, faults = (6, 10) if os.environ.get("PLAIT_SLOW") else (4, 8)
    Trial(
        tmp_path,
        jobs=jobs,
        faults=faults,
        widest=2,
        patience_s=400,
        every_s=1.2,
        pause_s=0.08,
        submit_s=1.0,
        lost_s=8.0,
    ).run()


@pytest.mark.skipif(not os.environ.get("PLAIT_SLOW"), reason="set PLAIT_SLOW=1")
def test_no_guest_is_ended_for_its_host_whatever_is_killed(tmp_path):
    PageTrial(
        tmp_path, jobs=9, faults=12, widest=2, patience_s=300, every_s=1.0, pause_s=0.0, submit_s=0.5, lost_s=8.0
    ).run()


@pytest.mark.slow
@pytest.mark.skipif(os.environ.get("PLAIT_CHAOS") != "1", reason="the long form: make chaos")
def test_guests_train_beside_their_hosts_whatever_is_killed_for_minutes(tmp_path):
    GuestTrial(
        tmp_path, jobs=30, faults=50, widest=3, patience_s=1500, every_s=6.0, pause_s=0.1, submit_s=3.0, lost_s=6.0
    ).run()


@pytest.mark.slow
@pytest.mark.skipif(os.environ.get("PLAIT_CHAOS") != "1", reason="the long form: make chaos")
def test_nothing_is_lost_whatever_is_killed_for_minutes(tmp_path):
    Trial(
        tmp_path, jobs=30, faults=50, widest=4, patience_s=1500, every_s=6.0, pause_s=0.1, submit_s=3.0, lost_s=6.0
    ).run()
