"""Jobs merged into one process: they learn what they learn alone, and what happens to one stays with it."""

import os
import random
import signal
import socket
import subprocess
import sys
import threading
import time
import types
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")
nn = torch.nn

from plait.core.errors import InputError  # noqa: E402
from plait.core.resources import Resource  # noqa: E402
from plait.runtime.gate_choice import choose_gate  # noqa: E402
from plait.training.attachment import attach  # noqa: E402
from plait.training.job import Job  # noqa: E402
from plait.training.merged import InterleavePlan, Merged, Peers, Unmergeable, run_merged, thread_jobs  # noqa: E402
from plait.training.merged.jobs import JobThreads  # noqa: E402
from plait.training.merged.thread_jobs import ThreadJob  # noqa: E402

STORAGE, CPU, GPU, NETWORK = Resource


class Points(torch.utils.data.Dataset):
    """Augmented by the streams of three libraries."""

    def __len__(self) -> int:
        return 32

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        time.sleep(0.0005)  # somebody else's turn
        x = torch.full((8,), index / 32) + 0.1 * torch.rand(8) + random.random() + float(np.random.rand())  # noqa: NPY002
        return x, torch.tensor(index % 2)


def train(seed: int, losses: list[float], epochs: int = 2, workers: int = 0) -> Callable[[Job], None]:
    """A job with every stream there is; says its losses."""

    def work(job: Job) -> None:
        torch.manual_seed(seed)
        random.seed(seed)
        np.random.seed(seed)  # noqa: NPY002
        model = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.Dropout(0.3), nn.ReLU(), nn.Linear(16, 2))
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        job.register_state(model=model, optimizer=optimizer)
        points = torch.utils.data.DataLoader(Points(), batch_size=4, shuffle=True, num_workers=workers)
        loader = job.wrap_loader(points)
        for _ in job.epochs(epochs):
            for x, y in loader:
                optimizer.zero_grad()
                loss = nn.functional.cross_entropy(model(x), y)
                loss.backward()
                optimizer.step()
                losses.append(loss.item())
            random.random()
            torch.rand(1)
        losses.append(float(torch.rand(1)) + random.random() + float(np.random.rand()) + float(job.rng.initial_seed()))  # noqa: NPY002

    return work


def alone(seed: int, epochs: int = 2) -> list[float]:
    losses: list[float] = []
    train(seed, losses, epochs)(Job())
    return losses


@pytest.mark.parametrize("gate", ["none", "tokens", "barrier"])
def test_losses_are_bitwise_those_of_jobs_alone(gate: str) -> None:
    expected = [alone(seed) for seed in (1, 2, 3)]
    torch.manual_seed(5)
    before = torch.get_rng_state()
    said: list[list[float]] = [[], [], []]
    results = run_merged([train(s, said[s - 1]) for s in (1, 2, 3)], InterleavePlan(gate, (0, 2, 1)))
    assert [(r.state, r.exit_code, r.reason) for r in results] == [("finished", 0, "")] * 3
    assert said == expected
    assert [r.steps for r in results] == [16] * 3
    assert torch.equal(torch.get_rng_state(), before)  # nobody drew from the process's own streams


def test_loader_workers_of_merged_jobs() -> None:
    one: list[float] = []
    two: list[list[float]] = [[], []]
    assert run_merged([train(1, one, workers=1)])[0].state == "finished"
    assert [r.state for r in run_merged([train(1, two[0], workers=1), train(2, two[1], workers=1)])] == ["finished"] * 2
    assert two[0] == one
    assert two[1] != one


@pytest.mark.parametrize("gate", ["tokens", "barrier"])
@pytest.mark.parametrize("error", [ValueError("no such thing"), MemoryError("too much"), SystemExit("I give up")])
def test_the_end_of_one_leaves_the_others(gate: str, error: BaseException) -> None:
    """It fails inside a GPU stage; the token or slot it held goes to the others at once."""

    def fails(job: Job) -> None:
        job.register_state(model=nn.Linear(2, 2))
        with job.stage(GPU):
            raise error

    losses: list[float] = []
    failed, well = run_merged([fails, train(1, losses)], InterleavePlan(gate, (0, 1)))
    assert (failed.state, failed.exit_code) == ("failed", 1)
    assert str(error) in failed.reason
    assert well.state == "finished"  # and not failed by the warning that there is when the lease of 30 s is over
    assert losses == alone(1)


def test_who_has_ended_cannot_be_interrupted() -> None:
    late: list[bool] = []
    member = ThreadJob(0, "a")
    with JobThreads(lambda member, result: late.append(member.interrupt())) as threads:
        threads.start(member, lambda: None)
    assert late == [False]
    assert threads.results[0].state == "finished"


def test_who_catches_the_interruption_and_leaves_with_0_has_not_finished() -> None:
    member = ThreadJob(0, "a")

    def catches() -> None:
        try:
            member.interrupt(thread_jobs.Preempted)
            for _ in range(1000):
                pass
        except SystemExit:
            sys.exit(0)

    with JobThreads(lambda member, result: None) as threads:
        threads.start(member, catches)
    assert (threads.results[0].state, threads.results[0].exit_code) == ("preempted", 75)


def test_one_is_stopped_with_a_checkpoint_and_goes_on_later(tmp_path: Path) -> None:
    """The other one never notices."""
    whole = alone(1, epochs=6)
    stopped: list[float] = []
    other: list[float] = []
    go_on = threading.Event()

    def slowly(job: Job) -> None:
        train(1, stopped, epochs=6)(job)

    def waits(job: Job) -> None:
        train(2, other)(job)
        assert go_on.wait(30)

    with Merged([slowly, waits], folder=tmp_path, names=["a", "b"]) as merged:
        while merged.steps(0) < 5:
            time.sleep(0.001)
        merged.stop(0)
        while 0 not in merged._threads.results:
            time.sleep(0.001)
        assert 1 not in merged._threads.results
        go_on.set()
    a, b = merged.results
    assert (a.state, a.exit_code, b.state) == ("preempted", 75, "finished")
    assert 5 <= a.steps < 48
    assert len(stopped) == a.steps
    rest: list[float] = []
    again, _ = run_merged(
        [train(1, rest, epochs=6), train(2, [])], InterleavePlan(epoch=2), folder=tmp_path, names=["a", "b"]
    )
    assert (again.state, again.steps) == ("finished", 48)
    assert stopped + rest == whole


def test_stages_of_threads_exclude_each_other() -> None:
    inside, most = [0], [0]
    lock = threading.Lock()

    def work(job: Job) -> None:
        for _ in range(20):
            with job.stage(GPU):
                with lock:
                    inside[0] += 1
                    most[0] = max(most[0], inside[0])
                time.sleep(0.002)
                with lock:
                    inside[0] -= 1

    assert [r.state for r in run_merged([work] * 3, InterleavePlan("tokens"))] == ["finished"] * 3
    assert most == [1]
    assert [r.state for r in run_merged([work] * 3, InterleavePlan("none"))] == ["finished"] * 3
    assert most[0] > 1


def test_what_is_told_apart_by_thread(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    seen: dict[int, list[object]] = {0: [], 1: []}
    both = threading.Barrier(2)
    environ, argv = os.environ, list(sys.argv)

    def job_of(index: int) -> Callable[[Job], None]:
        def work(job: Job) -> None:
            os.environ["WHO"] = str(index)
            sys.argv = ["script", str(index)]
            both.wait(10)
            inner: list[str | None] = []
            thread = threading.Thread(target=lambda: inner.append(os.environ.get("WHO")))
            thread.start()
            thread.join()
            child = subprocess.run(
                [sys.executable, "-S", "-c", "import os; print(os.environ['WHO'])"], capture_output=True
            )
            assert attach() is job
            seen[index] += [os.getenv("WHO"), sys.argv[1], inner[0], child.stdout.decode().strip()]

        return work

    assert [r.state for r in run_merged([job_of(0), job_of(1)])] == ["finished"] * 2
    assert seen == {0: ["0"] * 4, 1: ["1"] * 4}
    assert os.environ is environ
    assert "WHO" not in os.environ
    assert sys.argv == argv


@pytest.mark.parametrize(
    ("what", "says"),
    [
        (lambda: os.chdir("/"), "working directory"),
        (lambda: signal.signal(signal.SIGUSR2, signal.SIG_IGN), "signal handler"),
        (lambda: torch.set_default_dtype(torch.float64), "default dtype"),
        (lambda: torch.use_deterministic_algorithms(True), "deterministic"),
        (lambda: torch.distributed.init_process_group("gloo"), "torch.distributed"),
    ],
)
def test_what_a_process_has_only_once_is_refused(what: Callable[[], object], says: str) -> None:
    refused, well = run_merged([lambda job: what(), lambda job: torch.set_default_dtype(torch.float32)])
    assert refused.state == "failed"
    assert isinstance(refused.error, Unmergeable)
    assert says in refused.reason
    assert "without --merge" in refused.reason
    assert well.state == "finished"


def test_plans_that_cannot_be(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="needs one of each"):
        run_merged([lambda job: None], InterleavePlan(turns=(0, 1)))
    choice = choose_gate([(2, 1, 1, 1), (1, 2, 1, 1)])
    assert InterleavePlan.of(choice).turns == choice.turns
    assert [r.state for r in run_merged([lambda job: None] * 2, choice)] == ["finished"] * 2
    inner: list[str] = []

    def again(job: Job) -> None:
        with pytest.raises(InputError, match="merged already"):
            run_merged([lambda job: None])
        inner.append("refused")

    assert run_merged([again])[0].state == "finished"
    assert inner == ["refused"]


_PEER = """
import sys, time, torch
from plait.training.merged import InterleavePlan, Peers, run_merged
from plait.training.job import Job  # noqa: E402
rank, port = int(sys.argv[1]), int(sys.argv[2])
def good(job):
    total = 0.0
    for i in range(20):
        x = torch.full((4,), float(rank + i))
        job.process_group.allreduce([x]).wait()
        total += float(x[0])
        time.sleep(0.01)
    print("good", total, flush=True)
def bad(job):
    for i in range(20):
        job.process_group.allreduce([torch.ones(4)]).wait()
        if i == 3 and rank == 0:
            raise ValueError("dies")
for r in run_merged([good, bad], InterleavePlan("none"), peers=Peers(rank, 2, port, timeout_s=20)):
    print(r.name, r.state, type(r.error).__name__, round(r.seconds, 1), flush=True)
"""


def test_each_job_has_a_group_over_processes_and_the_crash_of_one_leaves_the_other(tmp_path: Path) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    env = os.environ | {"OMP_NUM_THREADS": "1"}
    both = [
        subprocess.Popen(
            [sys.executable, "-c", _PEER, str(rank), str(port)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=env,
            text=True,
        )
        for rank in (0, 1)
    ]
    said = [p.communicate(timeout=90) for p in both]
    for rank, (out, err) in enumerate(said):
        assert f"good {sum(2.0 * i + 1 for i in range(20))}" in out, err
        assert "job0 finished NoneType" in out, err
        end = next(line.split() for line in out.splitlines() if line.startswith("job1"))
        assert end[1:3] == ["failed", "ValueError" if rank == 0 else "RuntimeError"], err
        assert float(end[3]) < 20, err  # before its timeout
    with pytest.raises(InputError, match="deadlock"):
        run_merged([lambda job: None], InterleavePlan("tokens"), peers=Peers(0, 2, port))


def test_threads_of_a_job_compute_on_its_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    """A loader's or a user's thread that copied on another stream would not be waited for."""
    chosen: list[object] = []
    monkeypatch.setattr(thread_jobs, "torch_cuda", lambda: types.SimpleNamespace(set_stream=chosen.append))

    def of_a_member() -> None:
        member = thread_jobs.ThreadJob(0, "job", stream="its stream")
        thread_jobs.become(member)
        thread = threading.Thread(target=lambda: chosen.append(thread_jobs.here() is member))
        thread.start()
        thread.join()

    thread_jobs.inherit()
    try:
        thread = threading.Thread(target=of_a_member)
        thread.start()
        thread.join()
    finally:
        thread_jobs.inherit_no_more()
    assert chosen == ["its stream", True]
