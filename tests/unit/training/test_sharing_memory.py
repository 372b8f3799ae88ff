"""Limits of GPU memory that a training process keeps to, and what it puts on the host; a GPU is played where needed."""

import ctypes
import json
import math
import shutil
import subprocess
from contextlib import contextmanager, nullcontext
from types import SimpleNamespace

import pytest

from plait.core.errors import InputError
from plait.runtime.guest_gate import Neighbours
from plait.runtime.page import Page
from plait.runtime.stage_gate import NullGate
from plait.sharing.directive import Action, Directive, Reached, SpillReason
from plait.training.sharing import first_step, host_pool
from plait.training.sharing.device_memory import BUDGET_STEPS, CudaMemory, MemoryLimit, MemoryUse
from plait.training.sharing.host_pool import HostPool, HostPoolError, arena_bytes, build_allocator
from plait.training.sharing.shared_gpu import GraphReplays, SharedGpu, StepReports
from plait.training.stages import Stages

GIB = 1 << 30
HOST = Neighbours(guest=False)


class PlayedCuda:
    """torch.cuda with an allocator that caches: what is reserved stays until the cache is emptied."""

    def __init__(self, total=80 * GIB):
        self.total, self.used, self.reserved, self.peak, self.most = total, 0, 0, 0, 0
        self.fraction, self.asked, self.failed = 1.0, 0, 0

    def current_device(self):
        return 0

    def get_device_properties(self, device):
        return SimpleNamespace(total_memory=self.total)

    def allocate(self, size):
        self.used += size
        self.reserved = max(self.reserved, self.used)
        if self.reserved > self.fraction * self.total:
            raise RuntimeError("out of memory")
        self.peak, self.most = max(self.peak, self.used), max(self.most, self.reserved)

    def empty_cache(self):
        self.reserved = self.used

    def set_per_process_memory_fraction(self, fraction, device):
        assert 0 <= fraction <= 1
        self.fraction = fraction

    def memory_reserved(self, device):
        return self.reserved

    def memory_stats_as_nested_dict(self, device):
        self.asked += 1
        allocated, reserved = (self.used, self.peak), (self.reserved, self.most)
        return {"num_ooms": self.failed} | {
            f"{name}_bytes": {"all": {"current": now, "peak": peak, "allocated": 0, "freed": 0}, "small_pool": {}}
            for name, (now, peak) in {"allocated": allocated, "reserved": reserved}.items()
        }

    def reset_peak_memory_stats(self, device):
        self.peak, self.most = self.used, self.reserved

    def is_initialized(self):
        return True

    def is_current_stream_capturing(self):
        return False


@pytest.fixture
def page(tmp_path):
    with Page.create(tmp_path / "page.bin", mapped=True) as made:
        yield made


@pytest.fixture
def notes():
    return []


@pytest.fixture(autouse=True)
def fresh(monkeypatch):
    monkeypatch.setattr(CudaMemory, "limited", False)


@pytest.fixture
def limited(page, notes):
    def make(memory=None, own_process=True):
        return MemoryLimit(page, lambda: memory, own_process=own_process, note=notes.append)

    return make


def told(page, limit_bytes, number):
    page.set_directive(Directive(1.0, limit_bytes, number))


def test_a_limit_is_taken_in_and_answered(page, limited):
    cuda = PlayedCuda()
    limit = limited(CudaMemory(cuda))
    limit.act(guest=True)
    assert page.reached(80 * GIB) == Reached(0, 80 * GIB)
    assert not limit.due
    cuda.allocate(10 * GIB)
    cuda.used = 3 * GIB
    told(page, 5 * GIB, 1)
    assert limit.due
    limit.act(guest=True)
    assert (cuda.reserved, cuda.fraction) == (3 * GIB, 5 / 80)
    assert page.reached(80 * GIB) == Reached(1, 5 * GIB)
    told(page, None, 2)  # grows: nothing to free
    limit.act(guest=True)
    assert (cuda.fraction, page.reached(80 * GIB)) == (1.0, Reached(2, 80 * GIB))
    with pytest.raises(RuntimeError, match="out of memory"):
        cuda.allocate(90 * GIB)


def test_what_is_in_use_stays_and_the_rest_is_tried_again_after_each_step(page, limited):
    cuda = PlayedCuda()
    limit = limited(CudaMemory(cuda))
    cuda.allocate(6 * GIB)
    told(page, 5 * GIB, 1)
    limit.act(guest=True)
    assert page.reached(80 * GIB) == Reached(1, 6 * GIB)
    assert cuda.fraction == 6 / 80  # it may not grow meanwhile
    assert limit.due
    cuda.used = 2 * GIB
    limit.act(guest=True)
    assert page.reached(80 * GIB) == Reached(1, 5 * GIB)
    assert not limit.due


def test_a_job_that_shares_with_nobody_keeps_its_own_limit_and_statistics(page):
    cuda = PlayedCuda()
    gpu = shared(page, CudaMemory(cuda))
    cuda.fraction = 0.5  # by the script
    cuda.allocate(9 * GIB)
    cuda.used = 2 * GIB
    for step in range(1, 20):
        gpu.step_ended(step, 0.1 * step, (0, 0, 0, 0), 0.0)
        gpu.boundary()
    assert (cuda.fraction, cuda.peak, cuda.most) == (0.5, 9 * GIB, 9 * GIB)
    assert 0 < cuda.asked <= 4
    assert page.reached(80 * GIB) == Reached(0, 80 * GIB)
    assert page.new_steps(-1)[-1].device_peak_bytes == 9 * GIB
    gpu.neighbours = Neighbours(guest=False)
    gpu.step_ended(20, 2.0, (0, 0, 0, 0), 0.0)
    assert cuda.peak == 2 * GIB  # of each step, from now on
    told(page, 8 * GIB, 1)
    gpu.limit.act(guest=True)
    told(page, None, 2)
    gpu.limit.act(guest=True)
    assert cuda.fraction == 1.0


def test_a_limit_from_the_start_of_cuda_ends_with_the_first_boundary_without_one(page, tmp_path, monkeypatch):
    cuda = PlayedCuda()
    monkeypatch.setitem(first_step.sys.modules, "torch.cuda", cuda)
    monkeypatch.setenv("PLAIT_RUN_DIR", str(tmp_path))
    told(page, 8 * GIB, 1)
    first_step.limit_memory()
    told(page, None, 2)
    shared(page, CudaMemory(cuda)).boundary()
    assert cuda.fraction == 1.0


def test_a_process_that_uses_no_gpu_has_reached_every_limit_and_keeps_to_it_when_it_does(page, notes):
    found = []
    limit = MemoryLimit(page, lambda: found[0] if found else None, own_process=True, note=notes.append)
    told(page, 5 * GIB, 3)
    limit.act(guest=True)
    assert page.reached(80 * GIB) == Reached(3, 5 * GIB)
    assert not limit.due
    cuda = PlayedCuda()
    found.append(CudaMemory(cuda))
    assert limit.due
    limit.act(guest=True)
    assert cuda.fraction == 5 / 80
    assert not limit.due


def test_a_guest_in_a_merged_process_is_refused_and_a_host_keeps_no_limit(page, limited, notes):
    told(page, 5 * GIB, 1)
    with pytest.raises(InputError, match=r"a memory limit of 5.00 GiB cannot be kept .* run the job in a process of"):
        limited(own_process=False).act(guest=True)
    host = limited(own_process=False)
    for number in (1, 2):
        told(page, 5 * GIB, number)
        host.act(guest=False)
        assert page.reached(80 * GIB) == Reached(number, 80 * GIB)
    assert len(notes) == 1


def test_a_step_says_what_it_used(page, limited):
    cuda = PlayedCuda()
    memory = CudaMemory(cuda)
    limit = limited(memory)
    reports = StepReports(page, limit)
    cuda.allocate(2 * GIB)
    reports.step_ended(1, 10.0, (0, 0, 0, 0), shared=True)  # when it began is not known
    assert page.new_steps(-1) == []
    cuda.allocate(5 * GIB)
    cuda.used = 2 * GIB
    reports.left_out, reports.work, reports.phase = True, 64.0, "train"
    reports.step_ended(2, 10.5, (0, 0, 0.25, 0), shared=True, waited_s=0.1, quantum_s=0.004, spilled_bytes=7)
    (stats,) = page.new_steps(-1)
    assert (stats.step, stats.step_s, stats.stage_s, stats.own_s) == (2, 0.5, {"gpu": 0.25}, 0.25)
    assert (stats.device_peak_bytes, stats.device_persistent_bytes) == (7 * GIB, 2 * GIB)
    assert (stats.device_reserved_bytes, stats.host_spill_bytes) == (7 * GIB, 7)
    assert stats.spill_reason is SpillReason.OUT_OF_MEMORY
    assert (stats.quantum_s, stats.work, stats.left_out) == (0.004, 64.0, True)
    assert stats.phase
    reports.step_ended(3, 11.0, (0, 0, 0.25, 0), shared=True, waited_s=0.2)
    stats = page.new_steps(2)[0]
    assert (stats.device_peak_bytes, stats.left_out) == (2 * GIB, False)
    assert stats.own_s == pytest.approx(0.3)  # marks say nothing: all that was no waiting


def test_a_job_alone_reports_a_step_a_second(page, limited):
    reports = StepReports(page, limited())
    for step in range(1, 41):
        reports.step_ended(step, 0.1 * step, (0, 0, 0, 0), shared=False)
    found = page.new_steps(-1)
    assert [stats.step for stats in found] == [2, 13, 24, 35]
    assert [stats.step_s for stats in found] == pytest.approx([0.1] * 4)


# -- on the host -------------------------------------------------------------------------------------------------------


def test_memory_that_came_from_the_host_is_told_from_that_of_the_device():
    cuda = PlayedCuda()
    memory = CudaMemory(cuda)
    memory.host_bytes = 4 * GIB
    cuda.reserved = cuda.most = 10 * GIB  # of them 4 the arena
    cuda.used = cuda.peak = 7 * GIB
    assert memory.end_step() == MemoryUse(7 * GIB, 7 * GIB, 6 * GIB, 1 * GIB, SpillReason.OUT_OF_MEMORY)
    assert memory.bound(6 * GIB) == 6 * GIB
    assert cuda.fraction == 10 / 80  # torch counts the arena too


def shared(page, memory, **options):
    options = {"neighbours": lambda: None} | options
    return SharedGpu(page, Stages(page, NullGate()), find_memory=lambda: memory, **options)


class AtOnce:
    """A thread that has ended when it is started; `ends`: whether it ever does."""

    ends = True

    def __init__(self, target, **options):
        self._target = target

    def start(self):
        self._target()

    def join(self):
        pass

    def is_alive(self):
        return not self.ends


@pytest.fixture
def pools(monkeypatch):
    """A torch with pools, a compiler, and the arenas that were made."""
    made = []

    class MemPool:
        def __init__(self, allocator, use_on_oom):
            assert allocator == "allocator"
            assert use_on_oom

    class Allocator:
        def __init__(self, library, alloc, free):
            assert (alloc, free) == ("plait_host_alloc", "plait_host_free")

        def allocator(self):
            return "allocator"

    def add(cuda):
        cuda.MemPool, cuda.memory = MemPool, SimpleNamespace(CUDAPluggableAllocator=Allocator)
        cuda.use_mem_pool = lambda pool: nullcontext()
        return cuda

    monkeypatch.setattr(HostPool, "_reserve", staticmethod(lambda cuda, size: made.append(size)))
    monkeypatch.setattr("plait.training.sharing.shared_gpu.build_allocator", lambda: "library.so")
    monkeypatch.setattr("plait.training.sharing.shared_gpu.threading.Thread", AtOnce)
    return SimpleNamespace(made=made, add=add)


def test_with_a_limit_comes_a_pool_on_the_host(page, pools, monkeypatch):
    cuda = pools.add(PlayedCuda())
    monkeypatch.setattr("plait.training.sharing.shared_gpu.torch_cuda", lambda: cuda)
    monkeypatch.setenv(host_pool.VARIABLE, "2")
    gpu = shared(page, CudaMemory(cuda), neighbours=lambda: HOST)
    gpu.boundary()
    gpu.step_ended(1, 1.0, (0, 0, 0, 0), 0.0)
    assert pools.made == []
    for number, limit in ((1, 5 * GIB), (2, 6 * GIB)):
        told(page, limit, number)
        gpu.boundary()
        assert pools.made == [2 * GIB]
        assert cuda.fraction == (limit + 2 * GIB) / 80 / GIB


@pytest.mark.parametrize("lacks", ["MemPool", "use_on_oom", "pinned"])
def test_a_torch_without_such_pools_copies_instead_and_says_so(page, pools, monkeypatch, notes, lacks):
    pytest.importorskip("torch")
    cuda = pools.add(PlayedCuda())
    monkeypatch.setattr("plait.training.sharing.shared_gpu.torch_cuda", lambda: cuda)
    if lacks == "MemPool":
        del cuda.MemPool
    elif lacks == "use_on_oom":
        cuda.MemPool = lambda allocator: None
    else:

        def fail(cuda, size):
            raise RuntimeError("CUDA error")

        monkeypatch.setattr(HostPool, "_reserve", staticmethod(fail))
    guest = Neighbours(guest=True)
    gpu = shared(page, CudaMemory(cuda), note=notes.append, neighbours=lambda: guest)
    page.share_until = 1e12
    told(page, 5 * GIB, 1)
    with no_hooks_after(gpu):
        gpu.boundary()
        assert gpu.saved_tensors.budget_bytes == math.inf  # what its steps need is not known yet
        gpu.step_ended(1, 1.0, (0, 0, 0, 0), 0.0)
        cuda.allocate(5 * GIB)
        gpu.saved_tensors.spilled_bytes = 1 * GIB
        gpu.step_ended(2, 2.0, (0, 0, 0, 0), 0.0)
        gpu.boundary()
        assert gpu.saved_tensors.budget_bytes == pytest.approx(1.6 * GIB)
    assert len(notes) == 1
    assert "saved tensors go to the host by copies, without a pool" in notes[0]


def test_a_host_is_not_limited_before_its_first_step(page, pools, monkeypatch):
    cuda = pools.add(PlayedCuda())
    monkeypatch.setattr("plait.training.sharing.shared_gpu.torch_cuda", lambda: cuda)
    gpu = shared(page, CudaMemory(cuda), neighbours=lambda: HOST)
    told(page, 1, 1)  # what guests give back comes later
    gpu.boundary()
    assert (cuda.fraction, page.reached(80 * GIB)) == (1.0, Reached(1, 80 * GIB))
    cuda.allocate(30 * GIB)
    told(page, 40 * GIB, 2)
    gpu.boundary()
    assert page.reached(80 * GIB) == Reached(2, 80 * GIB)
    gpu.step_ended(1, 1.0, (0, 0, 0, 0), 0.0)
    gpu.boundary()
    assert (cuda.fraction, page.reached(80 * GIB)) == (44 / 80, Reached(2, 40 * GIB))


def test_the_arena_is_made_before_the_limit_holds(page, pools, monkeypatch):
    cuda, seen = pools.add(PlayedCuda()), []
    monkeypatch.setattr("plait.training.sharing.shared_gpu.torch_cuda", lambda: cuda)
    monkeypatch.setattr(HostPool, "_reserve", staticmethod(lambda cuda, size: seen.append(cuda.fraction)))
    told(page, 2 * GIB, 1)
    CudaMemory(cuda).bound(2 * GIB)  # from the start of CUDA
    gpu = shared(page, CudaMemory(cuda), neighbours=lambda: Neighbours(guest=True))
    page.share_until = 1e12
    gpu.boundary()
    assert (seen, cuda.fraction) == ([1.0], 6 / 80)  # torch counts the arena


WITHOUT_POOL = {
    "none wanted": (lambda patch: patch.setenv(host_pool.VARIABLE, "0"), ""),
    "no number": (lambda patch: patch.setenv(host_pool.VARIABLE, "4G"), "PLAIT_HOST_POOL_GB is '4G'"),
    "no compiler": (lambda patch: failing(patch, HostPoolError("no C compiler")), "no C compiler"),
    "no home": (lambda patch: failing(patch, RuntimeError("Could not determine home")), "determine home"),
    "wrong library": (lambda patch: failing(patch, OSError("invalid ELF header")), "invalid ELF header"),
}


def failing(patch, error):
    def build():
        raise error

    patch.setattr("plait.training.sharing.shared_gpu.build_allocator", build)


@pytest.mark.parametrize("why", WITHOUT_POOL)
def test_a_host_without_a_pool_keeps_no_limit_and_says_that_it_holds_everything(page, pools, monkeypatch, notes, why):
    cuda = pools.add(PlayedCuda())
    monkeypatch.setattr("plait.training.sharing.shared_gpu.torch_cuda", lambda: cuda)
    patch, said = WITHOUT_POOL[why]
    patch(monkeypatch)
    role = [HOST]
    gpu = shared(page, CudaMemory(cuda), note=notes.append, neighbours=lambda: role[0])
    gpu.step_ended(1, 1.0, (0, 0, 0, 0), 0.0)
    for number in (1, 2):
        told(page, 5 * GIB, number)
        gpu.boundary()
        assert page.reached(80 * GIB) == Reached(number, 80 * GIB)
    cuda.allocate(30 * GIB)  # a longer batch, on a GPU that has room
    assert [said in note and "keeps a budget, no limit" in note for note in notes] == ([True] if said else [])
    told(page, None, 3)
    gpu.boundary()
    assert page.reached(80 * GIB) == Reached(3, 80 * GIB)


def test_a_guest_that_becomes_a_host_without_a_pool_loses_its_limit(page, pools, monkeypatch):
    pytest.importorskip("torch")
    cuda = pools.add(PlayedCuda())
    monkeypatch.setattr("plait.training.sharing.shared_gpu.torch_cuda", lambda: cuda)
    monkeypatch.setenv(host_pool.VARIABLE, "0")
    role = [Neighbours(guest=True)]
    gpu = shared(page, CudaMemory(cuda), neighbours=lambda: role[0])
    page.share_until = 1e12
    told(page, 5 * GIB, 1)
    with no_hooks_after(gpu):
        gpu.boundary()
        assert cuda.fraction == 5 / 80
        role[0] = HOST
        told(page, 6 * GIB, 2)
        gpu.boundary()
        assert (cuda.fraction, page.reached(80 * GIB)) == (1.0, Reached(2, 80 * GIB))
        assert gpu.saved_tensors.budget_bytes == 0.0


@contextmanager
def no_hooks_after(gpu):
    try:
        yield
    finally:
        if gpu.saved_tensors._hooks is not None:
            gpu.saved_tensors._hooks.__exit__()


@pytest.fixture
def poolless(page, pools, monkeypatch):
    """A host whose torch has no pool, and its GPU."""
    monkeypatch.setenv(host_pool.VARIABLE, "0")

    def make(**options):
        cuda = pools.add(PlayedCuda())
        monkeypatch.setattr("plait.training.sharing.shared_gpu.torch_cuda", lambda: cuda)
        gpu = shared(page, CudaMemory(cuda), neighbours=lambda: HOST, **options)
        told(page, 5 * GIB, 1)
        return gpu, cuda

    return make


def steps(gpu, cuda, count, size):
    cuda.allocate(size - cuda.used)
    for _ in range(count):
        gpu.boundary()
        cuda.ended = getattr(cuda, "ended", 0) + 1
        gpu.step_ended(cuda.ended, float(cuda.ended), (0, 0, 0, 0), 0.0)
    gpu.boundary()


def test_a_host_without_a_pool_leaves_what_its_steps_have_never_needed(page, poolless):
    gpu, cuda = poolless()
    steps(gpu, cuda, BUDGET_STEPS - 1, 20 * GIB)
    assert page.reached(80 * GIB) == Reached(1, 80 * GIB)
    steps(gpu, cuda, 1, 20 * GIB)
    assert (cuda.fraction, page.reached(80 * GIB)) == (1.0, Reached(1, 25 * GIB))
    told(page, 30 * GIB, 2)  # it may have more than that
    gpu.boundary()
    assert page.reached(80 * GIB) == Reached(2, 30 * GIB)


def test_a_host_without_a_pool_that_needs_more_than_its_budget_has_the_whole_device_from_then_on(page, poolless):
    gpu, cuda = poolless()
    steps(gpu, cuda, BUDGET_STEPS, 20 * GIB)
    steps(gpu, cuda, 1, 26 * GIB)
    assert page.reached(80 * GIB) == Reached(1, 80 * GIB)
    steps(gpu, cuda, 2 * BUDGET_STEPS, 20 * GIB)
    assert page.reached(80 * GIB) == Reached(1, 80 * GIB)


class OutOfMemoryError(RuntimeError):
    """As torch names it."""


@pytest.mark.parametrize(("error", "shares"), [(OutOfMemoryError, False), (ValueError, True)])
def test_a_host_without_a_pool_that_ran_out_of_memory_shares_with_nobody(page, poolless, tmp_path, error, shares):
    gpu, cuda = poolless(ran_out=tmp_path / "ran-out")
    steps(gpu, cuda, BUDGET_STEPS, 20 * GIB)
    gpu.limit.failed(error)
    gpu, cuda = poolless(ran_out=tmp_path / "ran-out")
    steps(gpu, cuda, BUDGET_STEPS, 20 * GIB)
    assert page.reached(80 * GIB) == Reached(1, (25 if shares else 80) * GIB)


def test_memory_that_ran_out_shows_also_where_the_script_caught_the_error(page, poolless, tmp_path):
    gpu, cuda = poolless(ran_out=tmp_path / "ran-out")
    cuda.failed = 1  # before there was a budget
    steps(gpu, cuda, BUDGET_STEPS, 20 * GIB)
    assert not (tmp_path / "ran-out").exists()
    cuda.failed = 2
    steps(gpu, cuda, 1, 20 * GIB)
    assert (tmp_path / "ran-out").exists()
    assert page.reached(80 * GIB) == Reached(1, 80 * GIB)


def test_a_host_does_not_wait_until_the_allocator_is_compiled(page, pools, monkeypatch):
    cuda = pools.add(PlayedCuda())
    monkeypatch.setattr("plait.training.sharing.shared_gpu.torch_cuda", lambda: cuda)
    monkeypatch.setattr(AtOnce, "ends", False)
    gpu = shared(page, CudaMemory(cuda), neighbours=lambda: HOST)
    told(page, 5 * GIB, 1)
    steps(gpu, cuda, 1, 2 * GIB)
    assert (pools.made, page.reached(80 * GIB)) == ([], Reached(1, 80 * GIB))
    monkeypatch.setattr(AtOnce, "ends", True)
    gpu.boundary()
    assert (len(pools.made), page.reached(80 * GIB)) == (1, Reached(1, 5 * GIB))


def test_the_size_of_the_pool():
    assert arena_bytes({}) == 4 * GIB
    assert arena_bytes({"PLAIT_HOST_POOL_GB": "0.5"}) == GIB // 2
    for bad in ("much", "-1", "nan", "1e9"):
        with pytest.raises(InputError, match="PLAIT_HOST_POOL_GB is"):
            arena_bytes({"PLAIT_HOST_POOL_GB": bad})


DRIVER = """
#include <stdlib.h>
int asked;
int cuMemHostAlloc(void **found, size_t size, unsigned flags) {
    asked = (int)flags;
    if (size > 1000000) return 2;
    *found = malloc(size);
    return 0;
}
int cuMemFreeHost(void *pointer) { free(pointer); asked = -1; return 0; }
"""


@pytest.mark.skipif(not shutil.which("cc"), reason="needs a C compiler")
def test_the_allocator_pins_memory_through_the_driver(tmp_path, monkeypatch):
    (tmp_path / "driver.c").write_text(DRIVER)
    driver = tmp_path / "driver.so"
    subprocess.run(["cc", "-shared", "-fPIC", "-o", driver, tmp_path / "driver.c"], check=True)
    monkeypatch.setenv("PLAIT_CUDA_DRIVER", str(driver))
    library = build_allocator(tmp_path / "cache")
    assert build_allocator(tmp_path / "cache") == library
    allocator, played = ctypes.CDLL(str(library)), ctypes.CDLL(str(driver))
    allocate, free = allocator.plait_host_alloc, allocator.plait_host_free
    allocate.restype, allocate.argtypes = ctypes.c_void_p, (ctypes.c_ssize_t, ctypes.c_int, ctypes.c_void_p)
    free.argtypes = (ctypes.c_void_p, ctypes.c_ssize_t, ctypes.c_int, ctypes.c_void_p)
    found = allocate(4096, 0, None)
    assert found
    asked = ctypes.c_int.in_dll(played, "asked")
    assert asked.value == 3  # portable and mapped
    ctypes.memset(found, 1, 4096)
    free(found, 4096, 0, None)
    assert asked.value == -1
    assert allocate(2_000_000, 0, None) is None
    assert allocate(0, 0, None) is None
    free(None, 0, 0, None)


def test_the_allocator_of_a_wheel_needs_no_compiler(tmp_path, monkeypatch):
    shipped = tmp_path / "host_allocator.so"
    shipped.touch()
    monkeypatch.setattr(host_pool, "SHIPPED", shipped)
    monkeypatch.setattr(host_pool.shutil, "which", lambda name: None)
    assert build_allocator(tmp_path / "cache") == shipped


def test_without_a_compiler_there_is_no_pool(tmp_path, monkeypatch):
    monkeypatch.setattr(host_pool.shutil, "which", lambda name: None)
    with pytest.raises(HostPoolError, match="no C compiler"):
        build_allocator(tmp_path)
    monkeypatch.undo()
    monkeypatch.setattr(host_pool.shutil, "which", lambda name: "/bin/false")
    with pytest.raises(HostPoolError, match="cannot be built"):
        build_allocator(tmp_path)


# -- CUDA from its start, and its graphs -------------------------------------------------------------------------------


def test_a_limit_holds_from_the_start_of_cuda_on(page, tmp_path, monkeypatch):
    cuda = PlayedCuda()
    monkeypatch.setitem(first_step.sys.modules, "torch.cuda", cuda)
    monkeypatch.setenv("PLAIT_RUN_DIR", str(tmp_path))
    first_step.limit_memory()
    assert cuda.fraction == 1.0
    told(page, 8 * GIB, 1)
    first_step.limit_memory()
    assert cuda.fraction == 0.1
    monkeypatch.setenv("PLAIT_RUN_DIR", str(tmp_path / "nowhere"))
    first_step.limit_memory()


def test_a_limit_given_while_cuda_starts_holds_before_anything_is_allocated(page, tmp_path, monkeypatch):
    """The agent may have counted on the lower one: it had heard of none."""
    cuda = PlayedCuda()
    lower = [8 * GIB]

    def late(fraction: float, device: object = None) -> None:
        if lower:
            told(page, lower.pop(), 2)
        cuda.fraction = fraction

    cuda.set_per_process_memory_fraction = late
    monkeypatch.setitem(first_step.sys.modules, "torch.cuda", cuda)
    monkeypatch.setenv("PLAIT_RUN_DIR", str(tmp_path))
    told(page, 16 * GIB, 1)
    first_step.limit_memory()
    assert cuda.fraction == 0.1
    assert page.reached(80 * GIB) == Reached(2, 8 * GIB)


def test_a_guest_waits_at_the_start_of_cuda_until_there_is_room_for_it(page, tmp_path, monkeypatch):
    cuda, seen = PlayedCuda(), []
    monkeypatch.setitem(first_step.sys.modules, "torch.cuda", cuda)
    monkeypatch.setenv("PLAIT_RUN_DIR", str(tmp_path))
    page.set_directive(Directive(0.0, 0, 1, Action.PAUSE))
    plans = [
        lambda: page.set_directive(Directive(0.0, 0, 2, Action.PAUSE)),
        lambda: page.set_directive(Directive(1.0, 40 * GIB, 3)),
    ]

    def sleep(seconds):
        seen.append((page.reached(80 * GIB), cuda.fraction))
        plans.pop(0)()

    monkeypatch.setattr(first_step.time, "sleep", sleep)
    first_step.limit_memory()
    assert seen == [(Reached(1, 1), 1.0), (Reached(2, 1), 1.0)]  # it has nothing, and says so
    assert (cuda.fraction, page.reached(80 * GIB)) == (0.5, Reached(3, 40 * GIB))
    page.set_directive(Directive(0.0, 0, 4, Action.PAUSE))
    plans.append(lambda: setattr(page, "stop", 1))
    first_step.limit_memory()  # who is asked to stop waits no longer
    assert plans == []


@pytest.mark.parametrize(
    ("control", "guest"),
    [("", False), ("{", False), ("[]", False), ({}, False), ({"sharing": {"guest": True}}, True),
     ({"sharing": {"guest": False}}, False), ({"sharing": {"guest": 3}}, True)],
)  # fmt: skip
def test_who_starts_as_a_guest(tmp_path, control, guest):
    assert not first_step.starts_as_guest(str(tmp_path))
    (tmp_path / "control.json").write_text(control if isinstance(control, str) else json.dumps(control))
    assert first_step.starts_as_guest(str(tmp_path)) is guest


def test_graphs_of_cuda_need_yield_points():
    class CUDAGraph:
        ran = 0

        def replay(self):
            self.ran += 1

    cuda = SimpleNamespace(CUDAGraph=CUDAGraph)
    graphs = GraphReplays()
    for _ in range(2):
        graphs.watch(cuda)
    graphs.check(0)
    graph = CUDAGraph()
    graph.replay()
    graphs.check(3)
    graph.replay()
    graph.replay()
    with pytest.raises(InputError, match=r"its step replayed 2 of them .* call job.yield_point\(\) between replays"):
        graphs.check(0)
    assert graph.ran == 3
    GraphReplays().watch(SimpleNamespace())
