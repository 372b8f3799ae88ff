"""The compiler's one place: what is compiled, what is on disk, and that compiling is announced once."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from plait.core.jit import HAVE_NUMBA, has_machine_code, kernel, part, plain

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


@pytest.mark.skipif(not HAVE_NUMBA, reason="needs the compiler")
def test_compiling_is_announced_once_and_not_when_on_disk(tmp_path):
    said = "plait: compiling a test, about 3 s, once; later runs find it on disk\n"
    assert outcome(tmp_path, NUMBA_DISABLE_JIT="0") == (["False", "True"], said)
    assert outcome(tmp_path, NUMBA_DISABLE_JIT="0") == (["True", "True"], "")


def test_nothing_is_announced_in_plain_python(tmp_path):
    assert outcome(tmp_path, NUMBA_DISABLE_JIT="1") == (["False", "False"], "")


@kernel
def one_more(x: int) -> int:
    return x + 1


@kernel
def twice_one_more(x: int) -> int:
    return 2 * one_more(x)


def test_plain_twin_calls_plain_kernels():
    twin = plain(twice_one_more)
    assert twin(20) == twice_one_more(20) == 42
    assert not has_machine_code(twin)
    assert not hasattr(twin.__globals__["one_more"], "py_func")


@part
def half(x: int) -> int:
    return x // 2


@kernel
def half_of_one_more(x: int) -> int:
    return half(one_more(x))


def test_a_part_is_plain_python_outside_kernels():
    assert not hasattr(half, "py_func")
    assert half(7) == 3
    assert half_of_one_more(6) == plain(half_of_one_more)(6) == 3


def test_plain_of_a_plain_function_is_itself():
    def function(x: int) -> int:
        return x

    assert plain(function) is function
