"""The Slurm backend without Slurm: what its commands answer, what is to be done, and that the two go together."""

import math
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from plait.core.errors import InputError
from plait.live.api.cluster import ClusterStatus, NodeRow
from plait.live.backends.fitting import PENDING, RUNNING, AllocationLimits, Held, Moves, plan_allocations
from plait.live.backends.registry import open_backend
from plait.live.backends.slurm.backend import SlurmBackend, SlurmOptions, job_of
from plait.live.backends.slurm.commands import ENDING, OVER, Job, SlurmCli, SlurmError, read_jobs
from plait.live.backends.slurm.node import MARK, node_name
from plait.live.client.transport import Refused
from plait.live.layout import NODE_NAME, Layout
from sample_answers import sample

ANSWERS = Path(__file__).parent / "slurm_answers"
NAME = "plait-0123456789ab"
FOUR = AllocationLimits(gpus=4, min_nodes=0, max_nodes=3, idle_s=60)


# ---- reading ----


def test_jobs_of_22_05_as_they_were_recorded():
    over, running, pending = read_jobs((ANSWERS / "squeue-22.05.json").read_text(), NAME, "ada")
    assert (over.state, over.word) == (OVER, "CANCELLED")
    assert running == Job(1, RUNNING, "RUNNING", "", "n0", 1795271407.0, 1795271527.0)
    assert (pending.id, pending.state, pending.reason, pending.node) == (2, PENDING, "BeginTime", "")
    assert pending.end_s == math.inf  # what Slurm guesses of it is no time limit


def test_jobs_of_a_newer_slurm_mean_the_same():
    old = read_jobs((ANSWERS / "squeue-22.05.json").read_text(), NAME, "ada")
    new = read_jobs((ANSWERS / "squeue-24.05.json").read_text(), NAME, "ada")
    assert new[1:] == old[1:]
    assert new[0].state == ENDING  # two words there: cancelled, and still being ended


@pytest.mark.parametrize("text", ["", "[]", '{"jobs": [{"name": "plait-0123456789ab"}]}', '{"jobs": null}', "slurm"])
def test_an_answer_that_cannot_be_read_is_no_empty_queue(text):
    with pytest.raises(SlurmError, match="squeue --json answered what cannot be read"):
        read_jobs(text, NAME, "ada")


def tool(folder: Path, name: str, script: str) -> dict[str, str]:
    path = folder / name
    path.write_text(f"#!/bin/sh\n{script}\n", encoding="ascii")
    path.chmod(0o755)
    passwords = dict.fromkeys(("PLAIT_TOKEN", "PLAIT_DB", "PGPASSWORD"), "secret")
    return {"PATH": f"{folder}:/usr/bin:/bin", **passwords}


def test_errors_name_the_command_and_what_it_said(tmp_path):
    env = tool(tmp_path, "sbatch", "echo 'sbatch: error: invalid partition specified: gpu' >&2; exit 1")
    with pytest.raises(
        SlurmError, match=r"^sbatch --parsable -p gpu: sbatch: error: invalid partition specified: gpu$"
    ):
        SlurmCli(env).submit("#!/bin/sh\n", ["-p", "gpu"])


def test_a_command_that_does_not_answer_is_given_up(tmp_path, monkeypatch):
    monkeypatch.setattr("plait.live.backends.slurm.commands.PATIENCE_S", 0.2)
    with pytest.raises(SlurmError, match=r"squeue .*: no answer in 0.2 s"):
        SlurmCli(tool(tmp_path, "squeue", "exec sleep 60")).jobs(NAME)


def test_the_number_of_a_submitted_job_is_read_and_no_secret_goes_along(tmp_path):
    cli = SlurmCli(tool(tmp_path, "sbatch", f"cat > {tmp_path}/script; env > {tmp_path}/env; echo '17;east'"))
    assert cli.submit("#!/bin/sh\ntrue\n", []) == 17
    assert (tmp_path / "script").read_text() == "#!/bin/sh\ntrue\n"
    assert "secret" not in (tmp_path / "env").read_text()
    with pytest.raises(SlurmError, match="not the number of a job"):
        SlurmCli(tool(tmp_path, "sbatch", "echo hello")).submit("", [])


def test_a_missing_slurm_and_an_unknown_partition_are_said_at_the_start(tmp_path):
    with pytest.raises(InputError, match="sbatch, squeue, scancel, sinfo is not in PATH"):
        SlurmCli({"PATH": str(tmp_path)}).check(None)
    for name in ("sbatch", "squeue", "scancel"):
        tool(tmp_path, name, "true")
    env = tool(tmp_path, "sinfo", "echo cpu; echo gpu; echo gpu")
    SlurmCli(env).check("gpu,cpu")
    with pytest.raises(InputError, match="no partition 'gpus' in this Slurm; there are: cpu, gpu"):
        SlurmCli(env).check("gpus")


# ---- options and names ----


def test_options_are_read_from_words():
    given = {"gpus-per-node": "8", "partition": "gpu", "time-limit": "1-0", "max-nodes": "9", "idle": "60",
             "sbatch": "--account=ml --mem=0"}  # fmt: skip
    options = SlurmOptions.read(given)
    assert options.limits == AllocationLimits(8, 0, 9, 60.0)
    assert (options.cuda, options.partition, options.sbatch) == (True, "gpu", ("--account=ml", "--mem=0"))
    assert SlurmOptions.read({"fake": True}).cuda is False
    assert SlurmOptions.read({"min-nodes": 9}).max_nodes == 9


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"gpus-per-node": "many"}, "gpus-per-node=many"),
        ({"max-nodes": 0}, "max-nodes=0"),
        ({"min-nodes": "x"}, "min-nodes=x"),
        ({"idle": "-1"}, "idle=-1"),
        ({"min-nodes": 5, "max-nodes": 2}, "min-nodes=5 is more than max-nodes=2"),
        ({"idel": "5"}, "no option 'idel'"),
    ],
)
def test_options_that_cannot_be_are_refused_by_name(given, said):
    with pytest.raises(InputError, match=said):
        SlurmOptions.read(given)


@given(host=st.text(max_size=80), job=st.integers(0, 10**9))
def test_a_node_is_named_after_its_host_and_known_by_its_allocation(host, job):
    name = node_name(host, job)
    assert NODE_NAME.fullmatch(name)
    assert job_of(name) == job


def test_the_backend_is_picked_by_its_name(tmp_path):
    assert isinstance(open_backend(Layout(tmp_path), {"backend": "slurm", "fake": True}), SlurmBackend)


# ---- what is to be done ----


def up(job: int, **changes: object) -> Held:
    return Held(job, RUNNING, **{"joined": True, "used": 1, **changes})


def test_allocations_are_asked_for_up_to_the_limit_and_no_more_than_jobs_want():
    assert plan_allocations([], 0, FOUR) == Moves()
    assert plan_allocations([], 5, FOUR) == Moves(submit=2)
    assert plan_allocations([], 500, FOUR) == Moves(submit=3)
    assert plan_allocations([up(1), Held(2, PENDING)], 12, FOUR) == Moves(submit=1)
    assert plan_allocations([up(1), Held(2, PENDING)], 8, FOUR) == Moves()
    assert plan_allocations([], 0, AllocationLimits(gpus=4, min_nodes=2)) == Moves(submit=2)


def test_what_is_not_wanted_leaves_the_queue_first_then_goes_when_idle():
    assert plan_allocations([up(1), Held(2, PENDING), Held(3, PENDING)], 8, FOUR) == Moves(cancel=(3,))
    idle = up(2, used=0, idle_s=61.0)
    assert plan_allocations([up(1), idle], 3, FOUR) == Moves(drain=(2,))
    assert plan_allocations([up(1), idle], 5, FOUR) == Moves()  # jobs want it
    assert plan_allocations([up(1), up(2, used=0, idle_s=59.0)], 3, FOUR) == Moves()
    assert plan_allocations([up(1), up(2)], 1, FOUR) == Moves()  # jobs are on it
    assert plan_allocations([up(1), up(2, drained=True, used=0)], 3, FOUR) == Moves(release=(2,))
    assert plan_allocations([up(1), up(2, drained=True)], 3, FOUR) == Moves()  # its jobs are being stopped


def test_nodes_with_jobs_are_emptied_when_jobs_are_worth_fewer_those_with_least_on_them_first():
    three = [up(1, used=4), up(2, used=1), up(3, used=2)]
    assert plan_allocations(three, 4, FOUR) == Moves()
    assert plan_allocations(three, 8, FOUR, empty=True) == Moves(drain=(2,))
    assert plan_allocations(three, 4, FOUR, empty=True) == Moves(drain=(2, 3))
    asked = [three[0], up(2, used=1, refused=2), up(3, used=2, refused=1)]  # of jobs that cannot resume
    assert plan_allocations(asked, 4, FOUR, empty=True) == Moves(drain=(1, 3))
    rested = [three[0], up(2, used=0, idle_s=90.0, refused=1), up(3, used=0, idle_s=61.0)]  # 2: jobs of cores alone
    assert plan_allocations(rested, 8, FOUR) == Moves(drain=(3,))
    idle = up(4, used=0, idle_s=61.0)
    assert plan_allocations([*three, idle], 12, AllocationLimits(4, 0, 4, 60.0), empty=True) == Moves(drain=(4,))
    assert plan_allocations(three, 4, AllocationLimits(4, 3, 3, 60.0), empty=True) == Moves()
    assert plan_allocations([*three[:2], Held(5, PENDING)], 8, FOUR, empty=True) == Moves(cancel=(5,))


def test_a_time_limit_is_met_by_a_successor_and_the_old_one_is_emptied_when_that_works():
    old = up(1, left_s=50.0, replace_s=60.0)
    one = AllocationLimits(gpus=4, max_nodes=1)
    assert plan_allocations([up(1, left_s=70.0, replace_s=60.0)], 4, one) == Moves()
    assert plan_allocations([old], 4, one) == Moves(submit=1)
    assert plan_allocations([old, Held(2, PENDING)], 4, one) == Moves()
    assert plan_allocations([old, Held(2, RUNNING)], 4, one) == Moves()  # its agent has not joined yet
    assert plan_allocations([old, up(2, used=0)], 4, one) == Moves(drain=(1,))
    assert plan_allocations([old], 0, one) == Moves(drain=(1,))  # nobody wants it, so nobody follows it
    two = [old, up(2, left_s=55.0, replace_s=60.0), up(3), Held(4, PENDING)]
    assert plan_allocations(two, 8, FOUR) == Moves(drain=(1,))  # one successor works: the one that ends first goes


def test_an_allocation_whose_agent_is_silent_for_long_is_ended():
    assert plan_allocations([up(1, joined=False, silent_s=60.0)], 4, FOUR) == Moves()
    assert plan_allocations([up(1, joined=False, silent_s=130.0)], 4, FOUR) == Moves(submit=1, end=(1,))
    unborn = Held(1, RUNNING, silent_s=math.inf, age_s=20.0)
    assert plan_allocations([unborn], 4, FOUR) == Moves()
    assert plan_allocations([Held(1, RUNNING, silent_s=math.inf, age_s=400.0)], 4, FOUR) == Moves(submit=1, end=(1,))


held = st.builds(
    Held, st.integers(1, 10**6), st.sampled_from([PENDING, RUNNING, ENDING]), st.booleans(), st.booleans(),
    st.integers(0, 4), st.floats(0, 100), st.sampled_from([0.0, 200.0, math.inf]), st.floats(0, 1000),
    st.floats(0, 200), st.just(60.0),
)  # fmt: skip


@given(
    there=st.lists(held, max_size=8, unique_by=lambda one: one.job),
    wanted=st.integers(0, 50),
    least=st.integers(0, 3),
    more=st.integers(1, 4),
)
def test_the_plan_stays_within_its_limits(there, wanted, least, more):
    limits = AllocationLimits(4, least, least + more, 60.0)
    moves = plan_allocations(there, wanted, limits)
    lasting = [one for one in there if one.state == RUNNING and not (one.stuck or one.drained or one.expiring)]
    waiting = [one for one in there if one.state == PENDING and one.job not in moves.cancel]
    assert moves.submit == 0 or len(lasting) + len(waiting) + moves.submit <= limits.max_nodes
    assert len(waiting) + moves.submit <= max(math.ceil(wanted / 4), least)
    by = {one.job: one for one in there}
    assert all(by[job].state == PENDING for job in moves.cancel)
    assert all(by[job].drained and not by[job].used for job in moves.release)
    assert all(by[job].joined and not by[job].drained for job in moves.drain)
    assert len({*moves.cancel, *moves.drain, *moves.release, *moves.end}) == sum(
        map(len, (moves.cancel, moves.drain, moves.release, moves.end))
    )
    kept = [one for one in lasting if one.job not in moves.drain]
    assert len(kept) >= min(len(lasting), limits.min_nodes)


# ---- one look ----


class FakeSlurm(SlurmCli):
    """Slurm as a list of jobs."""

    def __init__(self) -> None:
        super().__init__({})
        self.there: dict[int, Job] = {}
        self.last = 10
        self.told: list[tuple[str, int]] = []
        self.words: list[str] = []

    def check(self, partition):
        return None

    def jobs(self, name):
        return sorted(self.there.values(), key=lambda job: job.id)

    def submit(self, script, words):
        number = self.last = 1 + max(self.there, default=self.last)
        self.there[number] = Job(number, PENDING, "PENDING")
        self.words = [script, *words]
        return number

    def cancel(self, jobs):
        self.told += [("cancel", job) for job in jobs]
        for job in jobs:
            self.there[job] = Job(job, OVER, "CANCELLED", "", self.there[job].node)

    def notify(self, jobs):
        self.told += [("notify", job) for job in jobs]
        for job in jobs:
            self.there[job] = Job(job, OVER, "COMPLETED", "", self.there[job].node)


class FakeService:
    """The service as a list of nodes, and what it was told."""

    def __init__(self, layout: Layout) -> None:
        self.layout = layout
        self.there: dict[str, NodeRow] = {}
        self.wanted, self.wanted_by = 0, "jobs"
        self.told: list[tuple[str, str]] = []
        #: Nodes with a job that would lose work if they were drained.
        self.keeps: set[str] = set()

    def join(self, name, ours=True, **changes):
        folder = self.layout.node(name)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "journal.jsonl").write_text('{"what": "term", "term": 1}\n', encoding="ascii")
        if ours:
            (folder / MARK).touch()
        self.there[name] = sample(NodeRow, **{"id": name, "state": "ready", **changes})

    def status(self):
        wanted = {"gpus": self.wanted, "by": self.wanted_by}
        return sample(ClusterStatus, gpus={"wanted": self.wanted}, wanted=wanted)

    def nodes(self):
        return list(self.there.values())

    def drain(self, node, *, may_lose_work=False):
        if node in self.keeps and not may_lose_work:
            raise Refused("j-3 would lose 3 h 20 min of work; nothing was done", 409)
        self.told.append(("drain", node))
        self.change(node, drained=True)

    def change(self, node, **fields):
        self.there[node] = structs.replace(self.there[node], **fields)

    def node_gone(self, node, why, *, certain=True):
        self.told.append(("gone", node))

    def forget_node(self, node):
        self.told.append(("forget", node))
        del self.there[node]


@pytest.fixture
def world(tmp_path):
    slurm, service, now = FakeSlurm(), FakeService(Layout(tmp_path)), [1000.0]
    given = {"fake": True, "gpus-per-node": 4, "max-nodes": 2, "idle": 60, "sbatch": ["--mem=0"]}

    def backend():
        return SlurmBackend(Layout(tmp_path), given, cli=slurm, clock=lambda: now[0])

    return slurm, service, now, backend


def test_an_allocation_from_the_queue_to_its_end(world):
    slurm, service, now, make = world
    backend = make()
    assert backend.start() == []
    service.wanted = 3
    assert backend.maintain(service) == ["requested allocation 11"]
    assert {"--exclusive", "--signal=B:TERM@60"} <= set(slurm.words)
    assert slurm.words[-1] == "--mem=0"
    assert backend.maintain(service) == []  # too soon to look again
    slurm.there[11] = Job(11, RUNNING, "RUNNING", "", "n0", now[0])
    service.join("n0-11")
    service.wanted = 0
    for _ in range(2):
        now[0] += 50.0
        said = backend.maintain(service)
    assert said == []  # idle for 50 s, as far as anybody has seen
    now[0] += 50.0
    assert backend.maintain(service) == ["node n0-11 is drained, to be given back to Slurm"]
    now[0] += 5.0
    backend.maintain(service)
    assert slurm.told == [("notify", 11)]
    service.change("n0-11", state="lost")
    now[0] += 5.0
    assert backend.maintain(service) == ["node n0-11 is gone"]
    assert service.there == {}


@pytest.mark.parametrize("by", ["jobs", "policy"])
def test_a_policy_that_finds_nodes_too_many_for_long_has_busy_ones_drained(world, by):
    slurm, service, now, make = world
    backend, drained = make(), []
    for job, used in ((11, 4), (12, 1)):
        slurm.there[job] = Job(job, RUNNING, "RUNNING", "", f"n{job}", now[0])
        service.join(f"n{job}-{job}", gpus_used=used)
    service.wanted_by = by
    for service.wanted in (4, 4, 8, 4, 4, 4, 4):  # 20 s, then once not, and 60 s in the end
        now[0] += 20.0
        drained += backend.maintain(service)
    assert drained == (["node n12-12 is drained, to be given back to Slurm"] if by == "policy" else [])


def test_a_node_whose_job_would_lose_work_is_not_given_back_before_it_has_ended(world):
    slurm, service, now, make = world
    backend, said = make(), []
    for job, used in ((11, 4), (12, 1)):
        slurm.there[job] = Job(job, RUNNING, "RUNNING", "", f"n{job}", now[0])
        service.join(f"n{job}-{job}", gpus_used=used)
    service.wanted_by, service.wanted, service.keeps = "policy", 4, {"n12-12"}
    for _ in range(6):
        now[0] += 20.0
        said += backend.maintain(service)
    assert said == [
        "node n12-12 is not given back yet: j-3 would lose 3 h 20 min of work; nothing was done",
        "node n11-11 is drained, to be given back to Slurm",
    ]
    assert not service.there["n12-12"].drained


def test_an_allocation_of_a_version_without_marks_is_kept(world):
    slurm, service, now, make = world
    slurm.there[11] = Job(11, RUNNING, "RUNNING", "", "n0", now[0] - 1000.0)
    service.join("n0-11", ours=False, gpus_used=4)
    service.wanted = 4
    assert make().maintain(service) == []
    assert slurm.told == []
    slurm.there[11] = Job(11, OVER, "TIMEOUT", "", "n0")
    now[0] += 5.0
    assert "node n0-11: Slurm job 11 is TIMEOUT" in make().maintain(service)


def test_another_keeper_finds_what_the_first_asked_for(world):
    _, service, _, make = world
    service.wanted = 8
    make().maintain(service)
    assert make().maintain(service) == []


def test_nodes_of_dead_allocations_are_drained_and_reported_those_of_others_left_alone(world):
    slurm, service, _, make = world
    slurm.there[11] = Job(11, OVER, "NODE_FAIL", "", "n0")
    service.join("n0-11", gpus_used=1)
    service.join("n0", ours=False)
    service.join("gpu-7", ours=False)  # somebody's own agent, of a name like ours
    assert make().maintain(service) == ["node n0-11: Slurm job 11 is NODE_FAIL"]
    assert service.told == [("drain", "n0-11"), ("gone", "n0-11")]


def test_a_queue_that_cannot_be_read_changes_nothing(world, monkeypatch):
    slurm, service, _, make = world
    service.join("n0-11", gpus_used=1)

    def fail(name):
        raise SlurmError("squeue: slurmctld is away")

    monkeypatch.setattr(slurm, "jobs", fail)
    with pytest.raises(SlurmError, match="slurmctld is away"):
        make().maintain(service)
    assert service.told == []


@pytest.mark.parametrize("word", ["FAILED", "OUT_OF_MEMORY", "NODE_FAIL", "TIMEOUT", "CANCELLED", "BOOT_FAIL"])
def test_allocations_that_end_before_their_agent_joins_are_not_asked_for_in_a_loop(world, word):
    slurm, service, now, make = world
    service.wanted = 1
    backend, asked = make(), []
    for _ in range(2000):  # nearly three hours, in which Slurm forgets each job after two minutes
        for line in backend.maintain(service):
            if line.startswith("requested allocation"):
                asked.append(now[0])
                number = max(slurm.there)
                slurm.there[number] = Job(number, OVER, word, "", "n0", now[0], now[0] + 1)
        slurm.there = {number: job for number, job in slurm.there.items() if now[0] - job.end_s < 120}
        now[0] += 5.0
    pauses = [later - sooner for sooner, later in pairwise(asked)]
    assert pauses[:4] == [15.0, 25.0, 45.0, 85.0]
    assert max(pauses) == pytest.approx(601, abs=5)
    assert pauses[7:] == pauses[7:8] * len(pauses[7:])


def test_an_allocation_that_joins_ends_the_pause_and_a_withdrawn_one_begins_none(world):
    slurm, service, now, make = world
    service.wanted = 1
    slurm.there[11] = Job(11, OVER, "OUT_OF_MEMORY", "", "n0", now[0] - 1, now[0])
    backend = make()
    (said,) = backend.maintain(service)
    assert said.startswith(
        "allocation 11 ended before its agent joined, as OUT_OF_MEMORY; the next is requested after 10"
    )
    slurm.there[12] = Job(12, RUNNING, "RUNNING", "", "n0", now[0])
    service.join("n0-12", gpus_used=4)
    service.wanted = 8
    now[0] += 5.0
    assert backend.maintain(service) == ["requested allocation 13"]
    slurm.cancel([13])  # it never had a node
    now[0] += 5.0
    assert backend.maintain(service) == ["requested allocation 14"]


def test_an_allocation_that_worked_and_was_forgotten_is_no_failure_for_another_keeper(world):
    slurm, service, now, make = world
    service.wanted = 1
    service.join("n0-11")
    del service.there["n0-11"]
    slurm.there[11] = Job(11, OVER, "TIMEOUT", "", "n0", now[0] - 60, now[0])  # Slurm remembers it for a while
    assert make().maintain(service) == ["requested allocation 12"]


def test_stopping_gives_all_back_or_leaves_all(world, capsys):
    slurm, _, now, make = world
    slurm.there = {11: Job(11, RUNNING, "RUNNING", "", "n0", now[0]), 12: Job(12, PENDING, "PENDING")}
    make().stop(jobs=False)
    assert slurm.told == []
    assert "allocations of Slurm stay: 11, 12" in capsys.readouterr().err
    assert [place.state for place in make().list_nodes()] == ["up", "coming"]
    make().layout.node("n0-11").mkdir(parents=True)
    make().stop(jobs=True)
    assert slurm.told == [("cancel", 12), ("notify", 11)]
    assert make().list_nodes() == []
