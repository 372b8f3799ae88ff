"""Stages and messages of scripts without marks: the formulas, and hooks in processes that know nothing of plait."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from attempts import Attempt, free_port, the_forker

pytest.importorskip("torch")
import torch
from torch._dynamo.utils import counters
from torch.utils.data import DataLoader

from plait.core.resources import Resource
from plait.runtime.page import ProfileSource
from plait.training import passive
from plait.training.passive import Hooks, Lap, Reads, WindowTimes, parts_of, stages_of
from plait.training.profiler import FEWEST, WARM_UP, Profiler
from plait.training.stages import CudaSpans

READ = Reads(2101.4e3, 2228.2e3)
STORAGE, CPU, GPU, NETWORK = Resource


def window(states: dict[str, tuple[float, ...]], iterations: int = 1, **rest: Any) -> WindowTimes:
    """Milliseconds of an iteration by state, as wall, running, waiting for a core and kernel."""
    scaled = {name: Lap(*(iterations * 1e-3 * value for value in lap)) for name, lap in states.items()}
    return WindowTimes(iterations, scaled, **rest)


@pytest.mark.parametrize(
    ("iteration_ms", "seen", "parts"),
    [
        (
            80.34,
            window(
                {"host": (5.33, 1.16, 3.69, 0.24), "wait": (43.59, 1.43, 6.51, 0.13), "train": (31.37, 7.99, 23.99)},
                workers=Lap(0.07517, 0.00776, 0.04497, 0.00287),
                worker_reads=READ,
            ),
            (0.875, 0.061, 0.421, 0),
        ),
        (
            73.57,
            window(
                {"host": (1.54, 0.62, 0.91, 0.03), "loader": (52.76, 7.18, 19.71, 1.13), "train": (19.28, 7.16, 12.12)},
                reads=READ,
            ),
            (0.581, 0.082, 0.310, 0),
        ),
        (142.7, window({"host": (132.68, 34.85, 97.81), "train": (10.01, 2.53, 7.48)}), (0, 0.932, 0.068, 0)),
        (
            54.4,
            window(
                {
                    "host": (1.46, 0.9, 2.91),
                    "net": (10.18,),
                    "loader": (1.34, 0.64, 0.7, 0.06),
                    "gap": (0.1, 0.09, 0.07),
                }
                | {"train": (41.32, 3.16, 5.81, 0.23)},
                comm_s=0.04175,
                overlap_s=0.01048,
            ),
            (0, 0.035, 0.341, 0.767),
        ),
        (
            14.35,
            window(
                {"host": (2.28, 0.74, 1.54), "loader": (4.04, 1.29, 2.78), "gap": (1.52, 0.62, 0.86)}
                | {"train": (6.51, 2.09, 4.42)},
            ),
            (0, 0.272, 0.572, 0),
        ),
    ],
    ids=["loader workers", "no workers", "simulation", "DDP", "short steps"],
)
def test_recorded_windows_give_the_parts_that_were_computed_by_hand(
    iteration_ms: float, seen: WindowTimes, parts: tuple[float, ...]
) -> None:
    assert parts_of(seen, iteration_ms / 1e3) == pytest.approx(parts, abs=0.001)


@pytest.mark.parametrize("late_ms", [0.0, 18.0, 40.0])
def test_where_a_long_wait_for_a_core_falls_changes_no_stage(late_ms: float) -> None:
    # Iterations of 2 ms, half of it training; waits of 40 ms begin in the training and are counted up to a state late.
    states = {"host": (10.0, 10.0), "loader": (10.0, 10.0), "gap": (5.0, 5.0)}
    busy = window(
        states
        | {"train": (25.0 + 80.0, 25.0, 80.0 - late_ms), "host": (10.0 + 40.0, 10.0, late_ms)}
        | {"loader": (10.0, 10.0, 40.0)}
    )
    assert parts_of(busy, 0.17) == pytest.approx(parts_of(window(states | {"train": (25.0, 25.0)}), 0.05))


def test_a_thread_that_is_blocked_while_the_process_reads_a_device_waits_for_storage() -> None:
    states = {"host": (60.0, 3.0), "train": (30.0, 30.0)}
    mapped = window(states, all_reads=Reads(0.0, 2e6))
    assert parts_of(mapped, 0.1)[STORAGE] == pytest.approx(0.57)
    sleeping = window(states)
    assert parts_of(sleeping, 0.1)[STORAGE] == 0.0


def test_a_host_that_spins_until_its_gpu_is_done_is_no_work_of_a_cpu() -> None:
    waits = window({"host": (80.0, 80.0), "train": (10.0, 10.0)}, device_s=0.088)
    assert parts_of(waits, 0.09) == pytest.approx((0, 0, 0.088 / 0.09, 0))
    plays = window({"host": (80.0, 80.0), "train": (10.0, 10.0)}, device_s=0.01)
    assert parts_of(plays, 0.09)[CPU] == pytest.approx(80 / 90)


def test_small_parts_are_no_stages_and_no_part_exceeds_the_iteration() -> None:
    seen = window({"loader": (0.1, 0.1), "train": (90.0, 90.0)}, workers=Lap(0.25, 0.25))
    assert stages_of(seen, 0.1) == pytest.approx((0, 0.1, 0.09, 0))
    assert stages_of(window({"host": (1.0, 1.0)}), 0.1) is None


@pytest.mark.parametrize(("reads", "cached"), [((0, 0), 1), ((0, 5), 0), ((8, 2), 0.75), ((8, 9), 0)])
def test_reads_of_mapped_files_count_as_reads_of_a_device(reads: tuple[float, float], cached: float) -> None:
    assert Reads(*reads).cached == cached


PLAIN = """
import plait.training.startup
plait.training.startup.watch_script()  # as sitecustomize does, which a copy of a process does not run

import time
import torch
from torch.utils.data import DataLoader, Dataset

class Items(Dataset):
    def __len__(self):
        return 240

    def __getitem__(self, index):
        time.sleep({load_s})
        end_s = time.thread_time() + {decode_s}
        while time.thread_time() < end_s:
            pass
        return torch.zeros(4)

class Slow(torch.nn.Linear):
    def forward(self, x):
        end_s = time.thread_time() + {train_s}
        while time.thread_time() < end_s:
            pass
        return super().forward(x)

if __name__ == "__main__":
    torch.manual_seed(0)
    model = Slow(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for batch in DataLoader(Items(), 4, num_workers={workers}, multiprocessing_context={context}):
        optimizer.zero_grad()
        model(batch).square().mean().backward()
        optimizer.step()
        end_s = time.thread_time() + {play_s}
        while time.thread_time() < end_s:
            pass
    print(f"weight {{model.weight.sum().item():.9f}}")
"""


def started(tmp_path: Path, text: str, name: str = "job", world: int = 1) -> list[Attempt]:
    script = tmp_path / f"{name}.py"
    script.write_text(text)
    forker, port = the_forker(), str(free_port())
    return [
        forker.start(tmp_path / name / str(rank), 1, script, rank=rank, world=world, MASTER_PORT=port)
        for rank in range(world)
    ]


def plain(**times: float) -> str:
    given = {"load_s": 0.0, "decode_s": 0.0, "train_s": 0.0005, "play_s": 0.0, "workers": 0, "context": None} | times
    return PLAIN.format(**given)


@pytest.mark.parametrize(
    ("times", "bottleneck"),
    [
        ({"load_s": 0.003}, STORAGE),
        ({"load_s": 0.003, "workers": 2, "context": "'fork'"}, STORAGE),
        ({"decode_s": 0.002}, CPU),
        ({"decode_s": 0.002, "workers": 1, "context": "'fork'"}, CPU),
        ({"train_s": 0.008}, GPU),
        ({"play_s": 0.008}, CPU),
    ],
    ids=["reads", "workers read", "decodes", "workers decode", "computes", "plays"],
)
def test_a_script_that_does_not_call_plait_has_the_stages_of_what_it_does(
    times: dict[str, float], bottleneck: Resource, tmp_path: Path
) -> None:
    (attempt,) = started(tmp_path, plain(**times))
    assert attempt.end()[0] == 0
    profile = attempt.page.profile
    assert attempt.page.profile_source == ProfileSource.HOOKS
    assert max(Resource, key=lambda r: profile.stage_s[r]) == bottleneck
    assert profile.stage_s[NETWORK] == 0
    assert profile.stage_s[GPU] > 0


@pytest.mark.parametrize("fails", ["_now", "WindowTimes", "_reads"])
def test_a_hook_that_fails_changes_nothing_in_the_script(fails: str, tmp_path: Path) -> None:
    broken = f"import plait.training.passive as p\ndef fails(*_): raise OSError\np.{fails} = fails\n"
    whole, failed = started(tmp_path, plain(), "whole") + started(tmp_path, broken + plain(), "failed")
    assert failed.end() == whole.end()
    assert failed.end()[1].startswith("weight ")


@pytest.fixture
def hooks() -> Iterator[Hooks]:
    """Hooks in this process, in which an optimizer of torch has stepped and nothing was compiled."""
    torch._dynamo.reset()
    counters.clear()
    made = Hooks()
    made.stepped()
    yield made
    made.stop()


def train(model: Any, optimizer: torch.optim.Optimizer, step: Callable[[], object], hooks: Hooks) -> None:
    """One iteration, after whose step the hooks are called as by the library."""
    optimizer.zero_grad()
    model(torch.ones(2, 4)).sum().backward()
    step()
    hooks.stepped()


def frames() -> int:
    """Frames that Dynamo has compiled in this process."""
    return counters["frames"]["total"]


@pytest.mark.filterwarnings("ignore:.torch.jit.script_method:DeprecationWarning")
def test_a_compiled_step_is_not_compiled_again_for_a_window(hooks: Hooks) -> None:
    model = torch.nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    step = torch.compile(optimizer.step, backend="eager")
    for _ in range(3):
        train(model, optimizer, step, hooks)
    compiled = frames()
    for _ in range(3):
        hooks.start(0.01)
        for _ in range(2):
            train(model, optimizer, step, hooks)
        hooks.stages(2, 0.01)
        train(model, optimizer, step, hooks)
    assert frames() == compiled > 0
    assert hooks.window.states["train"].wall > 0  # from the backward pass on


class Model(torch.nn.Linear):
    """A module of the script's own: `Module.compile` leaves out the code of torch's."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x).relu()


def compile_in_place(model: torch.nn.Module) -> torch.nn.Module:
    model.compile(backend="eager")
    return model


COMPILED: dict[str, Callable[[torch.nn.Module], Any]] = {
    "module": lambda model: torch.compile(model, backend="eager"),
    "function": lambda model: torch.compile(model.forward, backend="eager"),
    "in place": compile_in_place,
}


@pytest.mark.parametrize("how", COMPILED)
def test_a_window_ends_at_the_first_compilation_and_the_next_one_sees_its_step(how: str, hooks: Hooks) -> None:
    model = Model(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    profiler, busy = Profiler(hooks=hooks), [0.0] * 4
    called: Any = model
    for iteration in range(2 * WARM_UP + FEWEST + 2):
        if iteration == WARM_UP + 2:
            called = COMPILED[how](model)
        train(called, optimizer, optimizer.step, hooks)
        done = profiler.step(iteration * 0.25, busy)
    assert done
    assert hooks.window.iterations == FEWEST
    assert frames() == 1


@pytest.mark.parametrize(("iteration_s", "limit_s"), [(0.01, 30.0), (1.0, 100.0)])
def test_a_window_ends_if_the_script_stops_training(
    iteration_s: float, limit_s: float, hooks: Hooks, monkeypatch: pytest.MonkeyPatch
) -> None:
    now_s = 0.0
    monkeypatch.setattr(passive, "time", SimpleNamespace(perf_counter=lambda: now_s, thread_time=lambda: now_s))
    model = torch.nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    hooks.start(iteration_s)
    for _ in range(3):
        now_s += 0.9 * limit_s
        train(model, optimizer, optimizer.step, hooks)
    now_s += 0.9 * limit_s
    with torch.no_grad():
        model(torch.ones(2, 4))
        assert torch.nn.modules.module._has_any_global_hook()
        now_s += 0.2 * limit_s
        model(torch.ones(2, 4))
    assert hooks.interrupted
    assert not torch.nn.modules.module._has_any_global_hook()


@pytest.fixture(scope="module")
def ddp_windows(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """What windows over compiled DDP models saw, by case."""
    folder = tmp_path_factory.mktemp("ddp_windows")
    code, output = the_forker().start(folder, 1, "ddp_windows.py", PLAIT_JOB="").end(300.0)
    assert code == 0, output
    rows = [json.loads(line) for line in output.splitlines() if line.startswith("{")]
    return {row.pop("case"): row for row in rows}


@pytest.mark.parametrize("case", ["compiled DDP", "DDP of compiled", "in place"])
def test_buckets_of_a_compiled_ddp_model_are_seen(case: str, ddp_windows: dict[str, dict[str, Any]]) -> None:
    assert ddp_windows[case]["messages"] == [["allreduce", 4 * (4 * 4 + 4), 1.0]]


@pytest.mark.parametrize("case", ["capture", "capture, compiled"])
def test_a_window_ends_before_ddp_waits_for_the_gpu_in_a_capture(
    case: str, ddp_windows: dict[str, dict[str, Any]]
) -> None:
    assert ddp_windows[case] == {"before": [1], "rates": [1, 100], "stages": None, "interrupted": False}


def test_the_end_of_a_window_does_not_wait_for_the_gpu_in_a_capture(
    hooks: Hooks, monkeypatch: pytest.MonkeyPatch
) -> None:
    hooks.start(0.01)
    hooks._device_used = True
    monkeypatch.setattr(CudaSpans, "wait", lambda spans: pytest.fail("waits"))
    monkeypatch.setattr(passive, "capturing", lambda: True)
    assert hooks.stages(1, 0.01) is None


def test_what_the_script_patches_in_a_window_stays(hooks: Hooks) -> None:
    iterator = torch.utils.data.dataloader._BaseDataLoaderIter
    before = iterator.__next__
    hooks.start(0.01)
    ours = iterator.__next__

    def patched(self: Any) -> Any:
        return ours(self)

    try:
        iterator.__next__ = patched
        hooks.stop()
        assert iterator.__next__ is patched
        assert list(DataLoader([1, 2])) == [1, 2]
    finally:
        iterator.__next__ = before


def test_a_worker_writes_once_a_millisecond_what_its_fetches_took(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fetches, written = 0, []
    monkeypatch.setattr(passive, "_now", lambda: Lap(fetches / 8192, fetches / 16384))
    monkeypatch.setattr("os.pwrite", lambda fd, data, at: written.append(passive._ENTRY.unpack(data)))
    worker = passive._Worker(tmp_path / passive.WORKERS)
    for _ in range(64):
        before = passive._now()
        fetches += 1
        worker.add(before)
    assert [entry[:2] for entry in written] == [(n / 8192, n / 16384) for n in range(1, 65, 9)]


def test_a_counted_fetch_takes_its_index_by_name(tmp_path: Path) -> None:
    class Fetcher:
        def fetch(self, possibly_batched_index: int) -> int:
            return possibly_batched_index

    passive.watch_workers(SimpleNamespace(_MapDatasetFetcher=Fetcher))
    assert Fetcher().fetch(possibly_batched_index=3) == Fetcher().fetch(3) == 3


RANK = """
import plait.training.startup
plait.training.startup.watch_script()

import torch
import torch.distributed as dist
from torch import nn

torch.manual_seed(0)
dist.init_process_group("gloo")
model = nn.Sequential(
    *(nn.Embedding(2000, 128), nn.Linear(128, 1024), nn.ReLU(), nn.Linear(1024, 512), nn.ReLU(), nn.Linear(512, 16))
)
{wrap}
optimizer = torch.optim.SGD(model.parameters(), 0.01)
for step in range(70):
    optimizer.zero_grad()
    loss = model(torch.randint(2000, (4,))).square().mean()
    loss.backward()
    optimizer.step()
    {log}

from plait.training.process import let_threads_finish

# DDP frees its group under the interpreter's lock, and waits for gloo's threads, which need it to free an operation.
let_threads_finish()
dist.destroy_process_group()
"""
DDP = """
from torch.nn.parallel import DistributedDataParallel
model = DistributedDataParallel(model)
"""
HOOKED = (
    DDP
    + """
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook
model.register_comm_hook(None, fp16_compress_hook)
"""
)
FSDP = """
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
mesh = init_device_mesh("cpu", (2,))
for layer in model:
    if list(layer.parameters()):
        fully_shard(layer, mesh=mesh)
fully_shard(model, mesh=mesh)
"""
MODEL_BYTES = 3_684_416


def messages_of(tmp_path: Path, wrap: str, log: str = "pass") -> dict[str, Any]:
    ranks = started(tmp_path, RANK.format(wrap=wrap, log=log), world=2)
    assert [rank.end()[0] for rank in ranks] == [0, 0], ranks[0].end()[1]
    written = [json.loads((rank.folder / passive.MESSAGES).read_text()) for rank in ranks]
    assert written[0] == written[1]
    assert ranks[0].page.message_bytes == written[0]["bytes"]
    assert ranks[0].page.skew == pytest.approx(2_097_152 / MODEL_BYTES)
    profile = ranks[0].page.profile
    assert min(profile.stage_s[NETWORK], profile.stage_s[GPU]) > 0
    return written[0]


def test_messages_of_a_ddp_script_are_its_buckets_to_the_byte(tmp_path: Path) -> None:
    found = messages_of(tmp_path, DDP)
    assert found["per_iteration"] == [["allreduce", 2_132_032, 1.0], ["allreduce", 1_552_384, 1.0]]
    assert (found["bytes"], found["largest"]) == (MODEL_BYTES, 2_132_032)


def test_messages_of_the_scripts_own_count_next_to_the_buckets(tmp_path: Path) -> None:
    found = messages_of(tmp_path, DDP, log="dist.all_reduce(loss.detach())")
    assert found["per_iteration"][-1] == ["allreduce", 4, 1.0]
    assert found["bytes"] == MODEL_BYTES + 4


def test_a_communication_hook_sends_what_it_says(tmp_path: Path) -> None:
    assert messages_of(tmp_path, HOOKED)["bytes"] == MODEL_BYTES / 2


def test_messages_of_fsdp_are_gradients_once_and_weights_twice(tmp_path: Path) -> None:
    by_kind = {"all_gather": 0.0, "reduce_scatter": 0.0}
    for method, size, count in messages_of(tmp_path, FSDP)["per_iteration"]:
        by_kind[method.removesuffix("_single")] += size * count
    assert by_kind == {"all_gather": 2 * MODEL_BYTES, "reduce_scatter": MODEL_BYTES}
