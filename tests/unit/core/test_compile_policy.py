"""When a kernel is compiled: not for a few small problems, once for many, and never without a compiler."""

import os
import subprocess
import sys
import threading

import pytest

from plait.core import compile_policy
from plait.core.compile_policy import PATIENCE, READING, ahead, compiled, run
from plait.core.jit import HAVE_NUMBA, kernel

PROGRAM = """
from plait.core.compile_policy import PATIENCE, READING, compiled, run
from kernels_of_a_test import twice
print(compiled(twice, READING - 1), compiled(twice, 1), compiled(twice, PATIENCE - READING))
print(run(twice, 21))
print(compiled(twice, 0))
"""
MODULE = """
from plait.core.jit import kernel

@kernel
def twice(x: int) -> int:
    return 2 * x
"""


def outcome(folder, **more):
    """Run the program in a new process with a cache of its own: (lines of stdout, stderr)."""
    (folder / "kernels_of_a_test.py").write_text(MODULE)
    env = {**os.environ, "PYTHONPATH": str(folder), "NUMBA_CACHE_DIR": str(folder / "cache"), **more}
    done = subprocess.run([sys.executable, "-c", PROGRAM], env=env, capture_output=True, text=True, check=True)
    return done.stdout.splitlines(), done.stderr


@pytest.mark.skipif(not HAVE_NUMBA, reason="needs the compiler")
def test_many_small_problems_compile_once_and_later_processes_read_it_sooner(tmp_path):
    lines, said = outcome(tmp_path, NUMBA_DISABLE_JIT="0")
    assert lines == ["False False True", "42", "True"]
    assert said == "plait: compiling twice, about 2 s, once; later runs find it on disk\n"
    assert outcome(tmp_path, NUMBA_DISABLE_JIT="0") == (["False True True", "42", "True"], "")


def test_nothing_waits_for_a_compiler_that_is_not_there(tmp_path):
    lines, said = outcome(tmp_path, NUMBA_DISABLE_JIT="1")
    assert (lines[:2], said) == (["False False False", "42"], "")


@kernel
def one_more(x: int) -> int:
    return x + 1


@pytest.mark.skipif(not HAVE_NUMBA or not hasattr(one_more, "py_func"), reason="needs the compiler")
def test_the_work_of_each_kernel_counts_by_itself(monkeypatch):
    monkeypatch.setattr(compile_policy, "_asked", {})
    monkeypatch.setattr(compile_policy, "_loaded", set())
    monkeypatch.setattr(compile_policy, "has_machine_code", lambda kernel: False)

    @kernel
    def another(x: int) -> int:
        return x

    assert not compiled(another, PATIENCE - 1)
    assert not compiled(one_more, READING)
    assert compiled(another, 1)
    assert run(another, 3) == 3
    assert compiled(another, 0)
    assert not compiled(one_more, READING)


@pytest.mark.skipif(not HAVE_NUMBA or not hasattr(one_more, "py_func"), reason="needs the compiler")
def test_ahead_of_time_a_thread_compiles_what_is_not_on_disk_and_others_do_not_wait(monkeypatch):
    on_disk: list[object] = []
    monkeypatch.setattr(compile_policy, "_asked", {})
    monkeypatch.setattr(compile_policy, "_loaded", set())
    monkeypatch.setattr(compile_policy, "has_machine_code", lambda kernel: kernel in on_disk)
    elsewhere = []
    with ahead():
        assert compiled(one_more, 0)
        other = threading.Thread(target=lambda: elsewhere.append(compiled(one_more, 0)))
        other.start()
        other.join()
        on_disk.append(one_more)
        assert not compiled(one_more, 0)
    assert elsewhere == [False]
    on_disk.clear()
    assert not compiled(one_more, 0)
