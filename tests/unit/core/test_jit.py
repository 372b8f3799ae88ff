"""The compiler's one place: what is compiled, what is on disk, and that compiling is announced once."""

import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

from plait.core import jit
from plait.core.arrays import FloatArray, IntArray

MODULE = """
from plait.core.jit import kernel, part

@part
def inner(x: int) -> int:
    return x + 1

@kernel
def outer(x: int) -> int:
    return 2 * inner(x)
"""
PROGRAM = """
from plait.core.jit import announced, has_machine_code
from kernels_of_a_test import outer
print(has_machine_code(outer))
for _ in range(2):
    with announced("a test", 3):
        outer(3)
print(has_machine_code(outer))
"""


def outcome(folder, **more):
    """Run the program in a new process with a cache of its own: (lines of stdout, stderr)."""
    (folder / "kernels_of_a_test.py").write_text(MODULE)
    env = {**os.environ, "PYTHONPATH": str(folder), "NUMBA_CACHE_DIR": str(folder / "cache"), **more}
    done = subprocess.run([sys.executable, "-c", PROGRAM], env=env, capture_output=True, text=True, check=True)
    return done.stdout.split(), done.stderr


@pytest.mark.skipif(not jit.HAVE_NUMBA, reason="needs the compiler")
def test_compiling_is_announced_once_and_not_when_on_disk(tmp_path):
    said = "plait: compiling a test, about 3 s, once; later runs find it on disk\n"
    assert outcome(tmp_path, NUMBA_DISABLE_JIT="0") == (["False", "True"], said)
    assert outcome(tmp_path, NUMBA_DISABLE_JIT="0") == (["True", "True"], "")


def test_nothing_is_announced_in_plain_python(tmp_path):
    assert outcome(tmp_path, NUMBA_DISABLE_JIT="1") == (["False", "False"], "")


@jit.kernel
def one_more(x: int) -> int:
    return x + 1


@jit.kernel
def twice_one_more(x: int) -> int:
    return 2 * one_more(x)


@jit.lean_part
def halved(x: int) -> int:
    return x // 2


@jit.linked()
def halved_twice(x: int) -> int:
    return halved(halved(x))


_halved_twice = jit.as_part(halved_twice)


@jit.linked()
def halved_often(x: int, times: int) -> int:
    for _ in range(times):
        x = _halved_twice(x) + halved(0)
    return x


def test_a_kernel_is_a_part_of_another_one_and_needs_no_machine_code_of_its_own():
    assert halved_often(1 << 20, 3) == _halved_twice(1 << 16) == jit.plain(halved_often)(1 << 20, 3) == 1 << 14
    assert not getattr(halved_twice, "overloads", None)
    assert halved_twice(1 << 16) == 1 << 14


class Pair(NamedTuple):
    values: IntArray
    weights: FloatArray


class Whole(NamedTuple):
    doubles: bool
    first: Pair
    second: Pair
    scale: float


@jit.lean_part
def add_weighted(whole: Whole, pair: Pair, k: int) -> None:
    times = 2 if whole.doubles else 1
    pair.values[k] += int(times * whole.scale * pair.weights[k])


@jit.linked()
def add_to_the_lighter(whole: Whole) -> int:
    all_of = jit.by_reference(whole)
    for k in range(len(all_of.first.values)):
        pair = all_of.first
        if pair.weights[k] > all_of.second.weights[k]:
            pair = all_of.second
        add_weighted(all_of, pair, k)
    return len(all_of.second.values)


@pytest.mark.parametrize("doubles", [False, True])
def test_parts_read_and_write_what_a_kernel_passes_by_reference(doubles):
    def whole():
        first = Pair(np.array([1, 2, 3]), np.array([1.0, 5.0, 2.0]))
        return Whole(doubles, first, Pair(np.array([10, 20, 30]), np.array([3.0, 4.0, 7.0])), 10.0)

    compiled, python, times = whole(), whole(), 2 if doubles else 1
    assert add_to_the_lighter(compiled) == jit.plain(add_to_the_lighter)(python) == 3
    for made in (compiled, python):
        assert made.first.values.tolist() == [1 + 10 * times, 2, 3 + 20 * times]
        assert made.second.values.tolist() == [10, 20 + 40 * times, 30]


@pytest.mark.skipif(not jit.HAVE_NUMBA, reason="needs the compiler")
def test_that_holds_for_a_compiler_with_other_insides_too(tmp_path):
    program = "from plait.core import part_compiler; part_compiler.supported = lambda: False; import test_jit as here; "
    program += "here.test_parts_read_and_write_what_a_kernel_passes_by_reference(True)"
    own = os.environ | {"NUMBA_CACHE_DIR": str(tmp_path)}
    subprocess.run([sys.executable, "-c", program], cwd=Path(__file__).parent, env=own, check=True)


def test_plain_twin_calls_plain_kernels():
    twin = jit.plain(twice_one_more)
    assert twin(20) == twice_one_more(20) == 42
    assert not jit.has_machine_code(twin)
    assert not hasattr(twin.__globals__["one_more"], "py_func")


@jit.part
def half(x: int) -> int:
    return x // 2


@jit.kernel
def half_of_one_more(x: int) -> int:
    return half(one_more(x))


@jit.long_kernel
def turns(n: int) -> int:
    x = 1
    for _ in range(n):
        x = (x * 1103515245 + 12345) % 2147483648
    return x


@pytest.mark.skipif(not hasattr(turns, "py_func"), reason="plain Python lets other threads run anyway")
def test_other_threads_run_during_a_long_kernel():
    """Without the kernel's consent no thread gets a turn: the interval between two turns is longer than the test."""
    turns(1)
    woken = threading.Event()
    before = sys.getswitchinterval()
    thread = threading.Thread(target=lambda: (time.sleep(0.01), woken.set()))
    sys.setswitchinterval(1000)
    try:
        thread.start()
        turns(100_000_000)
        assert woken.is_set()
    finally:
        sys.setswitchinterval(before)
        thread.join()


def test_a_part_is_plain_python_outside_kernels():
    assert not hasattr(half, "py_func")
    assert half(7) == 3
    assert half_of_one_more(6) == jit.plain(half_of_one_more)(6) == 3


def test_plain_of_a_plain_function_is_itself():
    def function(x: int) -> int:
        return x

    assert jit.plain(function) is function


CALLED = """
from plait.core.jit import kernel

@kernel
def called(x: int) -> int:
    return x + {}
"""
MIDDLE = """
import called_by_a_test
from called_by_a_test import called
from plait.core.jit import linked

@linked(called_by_a_test)
def middle(x: int) -> int:
    return 10 * called(x)
"""
OUTER = """
import middle_of_a_test
from middle_of_a_test import middle
from plait.core.jit import has_machine_code, linked

@linked(middle_of_a_test)
def outermost(x: int) -> int:
    return middle(x) + 100

print(has_machine_code(outermost), outermost(3))
"""


@pytest.mark.skipif(not jit.HAVE_NUMBA, reason="needs the compiler")
def test_a_linked_kernel_is_compiled_again_when_a_file_changes_that_it_is_linked_with(tmp_path):
    (tmp_path / "middle_of_a_test.py").write_text(MIDDLE)
    (tmp_path / "outer_of_a_test.py").write_text(OUTER)
    env = {**os.environ, "PYTHONPATH": str(tmp_path), "NUMBA_CACHE_DIR": str(tmp_path / "cache")}
    # Python's own cache of bytecode takes a file for unchanged that has the same size and the same second of change.
    env |= {"NUMBA_DISABLE_JIT": "0", "PYTHONDONTWRITEBYTECODE": "1"}
    printed = []
    for number in (1, 1, 2):
        (tmp_path / "called_by_a_test.py").write_text(CALLED.format(number))
        command = [sys.executable, "-c", "import outer_of_a_test"]
        printed.append(subprocess.run(command, env=env, capture_output=True, text=True, check=True).stdout.split())
    assert printed == [["False", "140"], ["True", "140"], ["False", "150"]]
