"""No job runs twice at once, whatever agents, nodes, networks and the service do for up to 40 s, and how long.

Simulated nodes under random faults, on a clock moved by hand; some seeds always, 1,000 of each setting with
`PLAIT_SLOW=1`. What runs is counted on the machines, whoever knows of it.
"""

import errno
import fcntl
import os
import random
import shutil
from collections import Counter, defaultdict
from collections.abc import Callable
from pathlib import Path

import pytest
from live_cases import Cluster

from plait.core.errors import InputError
from plait.live import fencing
from plait.live.fencing import Fences
from plait.live.layout import Layout, make_private
from plait.live.protocol.wire import Assignment, NodeInfo, Run
from plait.live.scheduler.options import Options
from plait.live.scheduler.records.attempts import JobRecord
from plait.live.store import Replaced, Store
from plait.testing.fleet import Fleet, MemoryDisk, Program, SimulatedAgent

SEEDS = 1000 if os.environ.get("PLAIT_SLOW") == "1" else 6
TICK_S = 0.5
LONGEST_S = 40.0
#: By which a node may be called lost during a fault, and may not.
QUICK, USUAL = Options(lost_s=15.0, lease_s=12.0), Options()


class Trial:
    """A cluster of three nodes, five jobs, and a fault every few seconds."""

    def __init__(self, home: Path, seed: int, options: Options) -> None:
        self.draw = random.Random(seed)
        disk = MemoryDisk()
        names = ["n0", "n1", "n2"]
        self.fleet = Fleet(
            home, [SimulatedAgent(NodeInfo(n, 2), self.program, disk) for n in names], policy="fifo-backfill",
            options=options, disk=disk,
        )  # fmt: skip
        self.fleet.deliver = self.deliver
        self.away: dict[str, float] = {}
        self.undo: list[tuple[float, Callable[[], object]]] = []
        self.old: dict[str, list[Assignment]] = defaultdict(list)
        self.overlaps: list[str] = []
        self.faults: Counter[str] = Counter()

    def program(self, run: Run) -> Program:
        return Program(steps=200, pace_s=1.0, every=10, stop_s=1.0, stubborn=run.job % 4 == 3)

    def deliver(self, agent: SimulatedAgent, answer: Assignment) -> list[Assignment]:
        """Now and then an older answer comes again, before or after the new one."""
        old = self.old[agent.node.id]
        old.append(answer)
        if self.draw.random() < 0.05:
            return self.draw.choice([[old[0], answer], [answer, old[-3] if len(old) > 2 else old[0]], []])
        del old[:-5]
        return [answer]

    def fault(self) -> None:
        fleet, now = self.fleet, self.fleet.now_s
        name = self.draw.choice(list(fleet.agents))
        agent, length_s = fleet.agents[name], self.draw.uniform(1.0, LONGEST_S)
        kind = self.draw.choice(["kill", "freeze", "partition", "crash", "service", "leave"])
        self.faults[kind] += 1
        if kind == "kill" and agent.alive:  # with whatever would start it again
            agent.kill()
            self.undo.append((now + length_s, agent.start))
        elif kind == "freeze" and agent.alive:
            agent.frozen = True
            self.undo.append((now + length_s, lambda: setattr(agent, "frozen", False)))
        elif kind == "partition":
            self.away[name] = now + length_s
        elif kind == "crash":
            agent.crash(now)
            self.undo.append((now + length_s, agent.start))
        elif kind == "service":
            until = now + length_s
            self.away |= dict.fromkeys(fleet.agents, until)  # nobody decides meanwhile either
            while fleet.now_s < until:
                self.step(decides=False)
            fleet.restart()
        elif kind == "leave" and agent.alive:
            agent.leave(now, grace_s=10.0)
            self.undo.append((now + length_s, lambda: (agent.kill(), agent.start())))

    def step(self, *, decides: bool = True) -> None:
        fleet = self.fleet
        fleet.now_s += TICK_S
        for at, undo in [entry for entry in self.undo if entry[0] <= fleet.now_s]:
            self.undo.remove((at, undo))
            undo()
        there = [name for name in fleet.agents if self.away.get(name, 0.0) <= fleet.now_s]
        if decides:
            fleet.sync(there)
        for name in set(fleet.agents) - set(there if decides else ()):
            fleet.agents[name].advance(fleet.now_s)
        live: dict[int, set[int]] = defaultdict(set)
        for agent in fleet.agents.values():
            for job, epoch, _ in agent.running():
                live[job].add(epoch)
        self.overlaps += [f"{fleet.now_s:g} s: job {j} in attempts {sorted(e)}" for j, e in live.items() if len(e) > 1]

    def run(self) -> list[str]:
        fleet = self.fleet
        jobs = [{"command": ["train"], "gpus": gpus, "retries": 50} for gpus in (1, 1, 2, 1, 3)]
        fleet.engine.submit(jobs, owner="ann", now_s=0.0)
        for _ in range(8):
            for _ in range(int(self.draw.uniform(2, 30))):
                self.step()
            self.fault()
        for _ in range(100):
            self.step()
        fleet.close()
        return self.overlaps


@pytest.mark.parametrize("options", [QUICK, USUAL], ids=["lost after 15 s", "usual"])
def test_no_job_runs_twice_at_once(tmp_path: Path, options: Options) -> None:
    found, faults = {}, Counter()
    for seed in range(SEEDS if options is QUICK else max(SEEDS // 3, 2)):
        (home := tmp_path / str(seed)).mkdir()
        trial = Trial(home, seed, options)
        if overlaps := trial.run():
            found[seed] = overlaps[0]
        faults += trial.faults
    print(f"{seed + 1} runs, {sum(faults.values())} faults: {dict(faults)}; two at once in {len(found)}")
    assert seed < 6 or len(faults) == 6
    assert found == {}


@pytest.mark.parametrize(("lost_s", "lease_s"), [(15.0, 15.0), (15.0, 600.0), (15.0, 14.9), (float("nan"), 1.0)])
def test_a_lease_that_outlasts_the_patience_of_the_service_is_refused(lost_s: float, lease_s: float) -> None:
    with pytest.raises(InputError, match="lease"):
        Options(lost_s=lost_s, lease_s=lease_s)


# -- the service is killed at each point of an exchange with an agent that lives: what runs there goes on, once ---


Make = Callable[..., Cluster]


class KilledError(Exception):
    """The process of the service has ended here."""


def dies(patch: pytest.MonkeyPatch, owner: type, name: str, do: Callable[[], object]) -> None:
    """Do something, in which the service is killed as it calls this method."""

    def killed(*_: object, **__: object) -> None:
        raise KilledError

    with patch.context() as within:
        within.setattr(owner, name, killed)
        with pytest.raises(KilledError):
            do()


def refuses(number: int) -> Callable[..., None]:
    """In place of `Fences.write`: this error."""

    def write(*_: object) -> None:
        raise OSError(number, "refused")

    return write


def begin(c: Cluster) -> None:
    """A decision is due, and commits the start of an attempt."""
    c.now += 1.1
    c.engine.tick(c.now)


def before_commit(c: Cluster, patch: pytest.MonkeyPatch) -> None:
    dies(patch, Store, "commit", lambda: begin(c))


def before_fence(c: Cluster, patch: pytest.MonkeyPatch) -> None:
    dies(patch, Fences, "write", lambda: begin(c))


def before_answer(c: Cluster, patch: pytest.MonkeyPatch) -> None:
    begin(c)
    c.engine.observe(c.nodes[0].observed(), c.now)  # the answer is lost


def after_answer(c: Cluster, patch: pytest.MonkeyPatch) -> None:
    begin(c)
    c.nodes[0].sync()


def before_commit_of_the_report(c: Cluster, patch: pytest.MonkeyPatch) -> None:
    after_answer(c, patch)
    dies(patch, Store, "commit", c.nodes[0].sync)


def after_the_report(c: Cluster, patch: pytest.MonkeyPatch) -> None:
    after_answer(c, patch)
    c.nodes[0].sync()


def after_an_agent_that_came_back(c: Cluster, patch: pytest.MonkeyPatch) -> None:
    after_the_report(c, patch)
    c.nodes[0].agent = "n0-b"


#: Where the service is killed, and whether the agent runs the attempt by then.
POINTS = {
    before_commit: False, before_fence: False, before_answer: False, after_answer: True,
    before_commit_of_the_report: True, after_the_report: True, after_an_agent_that_came_back: True,
}  # fmt: skip


@pytest.mark.parametrize("at", POINTS)
@pytest.mark.parametrize("silent_s", [0.0, 13.0])
@pytest.mark.parametrize("writable", [True, False], ids=["", "folder unwritable"])
def test_what_runs_goes_on_once_wherever_the_service_is_killed(
    at: Callable[[Cluster, pytest.MonkeyPatch], None], silent_s: float, writable: bool, cluster: Make,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """Folders that cannot be written any more keep new attempts from starting, and end none that runs."""
    c = cluster((1, 1), lost_s=30.0, lease_s=24.0)
    (job,) = c.submit({"gpus": 2, "retries": 3})
    at(c, monkeypatch)
    runs = POINTS[at]
    assert (job in c.nodes[0].jobs()) == runs
    if not writable:
        c.engine.layout.job(job).parent.mkdir(parents=True, exist_ok=True)
        monkeypatch.setattr(Fences, "write", refuses(errno.EACCES))
    c.restart()
    c.pass_s(silent_s, silent=["n0"])
    c.pass_s(4.0)
    if runs or writable:
        assert [node.jobs() for node in c.nodes] == [{job}, {job}]
        assert (c.types().count("AttemptBegan"), c.types().count("RankEnded")) == (1, 0)
        for node in c.nodes:
            node.end(job, 0)
        c.pass_s(2.0)
        assert c.state(job) == "finished"
    else:
        c.pass_s(60.0)
        assert not any(node.jobs() for node in c.nodes)
        assert c.state(job) == "failed"


def test_a_stopped_attempt_that_no_agent_knows_ends_though_the_disk_is_full(
    cluster: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The service was killed between its log and its fence; what its agent does not list, it does not run."""
    c = cluster((1,))
    (job,) = c.submit({})
    before_fence(c, monkeypatch)
    monkeypatch.setattr(Fences, "write", refuses(errno.ENOSPC))
    c.restart()
    c.engine.cancel(job, c.now)
    c.engine.tick(c.now)
    assert c.engine.state.live == {job}  # its agent may run it
    c.pass_s(3.0)
    assert c.engine.state.live == set()
    assert c.state(job) == "cancelled"


# -- what two leaders do to a job's folder: the one that was replaced, and comes late, changes nothing there ---


def contents(folder: Path) -> set[str]:
    return {str(p.relative_to(folder)) for p in folder.rglob("*")}


def test_a_leader_that_slept_leaves_alone_what_its_successor_has_started(cluster: Make) -> None:
    c = cluster((1,))
    first, second = c.submit({}, {}, then_s=3)
    assert (c.state(first), c.state(second)) == ("running", "waiting")
    c.now += 1.0
    c.submit({"gpus": 1})
    c.engine.tick(c.now)  # a decision: the next one is a second away
    c.nodes[0].end(first)
    c.nodes[0].sync()
    assert (c.state(first), c.state(second)) == ("finished", "waiting")
    sleeper, store = c.engine, c.store
    c.store = Store.open(c.home / "plait.db", exclusive=False)
    c.engine = c._engine(None)
    c.pass_s(4)
    assert c.state(second) == "running"
    folder = c.engine.layout.job(second)
    (folder / "checkpoints" / "step-1").mkdir(parents=True)
    before = contents(folder)
    with pytest.raises(Replaced):
        sleeper.tick(c.now)  # it would start the second job, of which its log says nothing yet
    assert contents(folder) == before
    store.close()


def test_a_leader_that_sleeps_before_it_fences_sets_no_epoch_back(cluster: Make) -> None:
    c = cluster((1,))
    (job,) = c.submit({}, then_s=2)
    late = Fences(c.engine.layout)
    c.nodes[0].end(job, 75, steps=1.0, then_s=3)
    folder = c.engine.layout.job(job)
    before = contents(folder)
    assert c.engine.layout.epoch_file(job).read_text() == "2\n"
    late.write(job, 1, 1)
    assert c.engine.layout.epoch_file(job).read_text() == "2\n"
    assert contents(folder) == before


def test_two_that_fence_the_same_job_take_turns(tmp_path: Path) -> None:
    layout = Layout(tmp_path)
    fences = Fences(layout)
    fences.write(0, 1, 1)
    with open(layout.job(0) / "EPOCH.lock", "ab") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        fences.write(0, 1, 1)  # nothing to do: whoever has the lock, and may be stopped, is not waited for
        with pytest.raises(OSError, match="locked by another service, which may be stopped"):
            fences.write(0, 2, 1)
        assert layout.epoch_file(0).read_text() == "1\n"
    fences.write(0, 2, 1)
    assert layout.epoch_file(0).read_text() == "2\n"


def test_an_epoch_that_cannot_be_read_is_not_taken_for_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    layout = Layout(tmp_path)
    make_private(layout.job(0).parent)
    layout.job(0).write_text("no folder")
    assert Fences(layout).next_epoch(0, 0) == 1  # what lies in its place is put aside
    assert [path.name.partition("-0.")[2][:4] for path in layout.job(0).parent.iterdir()] == ["odd-"]

    def fails(path: Path) -> int:
        raise OSError(errno.EIO, "input/output error")

    monkeypatch.setattr(fencing, "read_epoch", fails)
    with pytest.raises(OSError, match="input/output error"):
        Fences(layout).next_epoch(0, 0)


@pytest.mark.parametrize("put", [lambda at: at.write_text("no folder"), lambda at: at.symlink_to(at / "nowhere")])
def test_a_job_that_puts_something_in_the_place_of_its_folder_holds_nothing(
    put: Callable[[Path], object], cluster: Make
) -> None:
    c = cluster()
    (job,) = c.submit({"retries": 1})
    for _ in range(2):
        c.pass_s(3)
        assert c.nodes[0].jobs() == {job}
        shutil.rmtree(c.engine.layout.job(job))
        put(c.engine.layout.job(job))
        c.nodes[0].end(job, 1)
    c.pass_s(3)
    assert c.state(job) == "failed"


@pytest.mark.parametrize(("number", "state"), [(errno.EACCES, "failed"), (errno.ENOSPC, "starting")])
def test_a_folder_that_stays_unwritable_fails_its_job_unless_the_disk_is_full(
    cluster: Make, monkeypatch: pytest.MonkeyPatch, number: int, state: str
) -> None:
    c = cluster()
    write = Fences.write

    def refuses(fences: Fences, job: int, epoch: int, first: int) -> None:
        if job == 0:
            raise OSError(number, "refused", "jobs/j-0/EPOCH")
        write(fences, job, epoch, first)

    monkeypatch.setattr(Fences, "write", refuses)
    make_private(c.engine.layout.job(0).parent)  # that of all jobs is in order
    c.submit({"gpus": 2, "retries": None}, {"gpus": 2}, then_s=8)
    assert c.state(0) == "starting"  # a fault that passes in some seconds is no end
    c.pass_s(80)
    assert (c.state(0), c.state(1)) == (state, "waiting" if state == "starting" else "running")
    if state == "failed":
        stored = c.stored(0)
        assert "refused: 'jobs/j-0/EPOCH'; the folder of the job could not be written in 10 tries" in stored.row.reason
        return
    c.engine.cancel(0, c.now)  # nothing of it runs anywhere
    c.pass_s(3)
    assert (c.state(0), c.state(1)) == ("cancelled", "running")


def test_a_folder_of_another_job_is_put_aside_even_if_the_first_attempt_ended_before_its_fence(tmp_path: Path) -> None:
    layout = Layout(tmp_path)
    Fences(layout).write(0, 7, 7)
    (layout.job(0) / "checkpoints").mkdir()
    fences = Fences(layout)
    fences.write(0, 9, 8)
    assert contents(layout.job(0)) == {"EPOCH", "EPOCH.lock", "before-7", "before-7/checkpoints"}
    (layout.job(0) / "checkpoints").mkdir()
    fences.write(0, 10, 8)
    assert (layout.job(0) / "checkpoints").is_dir()


def test_a_restart_of_a_job_asks_the_store_nothing(cluster: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the store answers late, or not at all, ends a service that leads."""
    c = cluster()
    (job,) = c.submit({}, then_s=2)
    monkeypatch.setattr(Store, "reading", None)
    for _ in range(3):
        c.nodes[0].end(job, 75, steps=1.0, then_s=3)
    assert c.nodes[0].jobs() == {job}
    assert c.engine.layout.epoch_file(job).read_text() == "4\n"


def test_the_epoch_of_the_first_attempt_is_kept_and_without_it_a_folder_is_its_jobs_own(cluster: Make) -> None:
    c = cluster()
    (job,) = c.submit({})
    Fences(c.engine.layout).write(job, 7, 0)
    c.pass_s(2)
    c.nodes[0].end(job, 75, steps=1.0, then_s=3)
    record = c.engine.state.jobs[job]
    assert (record.first_epoch, record.epoch) == (8, 9)
    kept = record.to_json()
    assert JobRecord.from_json(kept).first_epoch == 8


def test_a_disk_that_fails_at_a_restart_stops_no_job_that_runs(cluster: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    c = cluster((2,))
    (job,) = c.submit({}, then_s=2)
    assert c.nodes[0].jobs() == {job}

    full, write = True, Fences.write

    def fence(self: Fences, number: int, epoch: int, first: int) -> None:
        if full:
            raise OSError("no space left on device")
        write(self, number, epoch, first)

    monkeypatch.setattr(Fences, "write", fence)
    c.restart()
    (other,) = c.submit({}, then_s=3)
    assert c.nodes[0].jobs() == {job}  # the new one is not begun before its fence is up
    assert c.engine.explain(other, c.now).summary == "no space left on device; waits until its folder can be written"
    full = False
    c.pass_s(3)
    assert c.nodes[0].jobs() == {job, other}
    assert c.engine.state.jobs[job].epoch == 1
