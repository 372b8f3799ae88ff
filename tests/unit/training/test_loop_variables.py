"""Variables that a loop carries from step to step are named; files of a rehearsed script are kept once."""

import os
import sys
import textwrap
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from plait.training import rehearsal
from plait.training.advice import carried, unsaved_variables
from plait.training.rehearsal import FileGuard, restored

#: Loops with HERE in the row that asks for the next batch, and the variables that they carry.
LOOPS = {
    "hidden state": ("h = 0\nfor x in loader:  # HERE\n    out, h = rnn(x, h)\n    loss = f(out)", ["h"]),
    "running sum": ("total = 0.0\nfor x in loader:  # HERE\n    loss = f(x)\n    total += loss", ["total"]),
    "sum of an epoch": (
        "for epoch in epochs:\n    total = 0.0\n    for x in loader:  # HERE\n        total += f(x)\n    step(total)",
        ["total"],
    ),
    "early stopping": (
        """
        best, wait = 1e9, 0
        for epoch in epochs:
            for x in loader:  # HERE
                train(x)
            v = f()
            if v < best:
                best, wait = v, 0
            else:
                wait += 1
            if wait >= 2:
                break
        """,
        ["best", "wait"],
    ),
    "in one branch only": ("for x in loader:  # HERE\n    if x:\n        y = 1\n    print(y)", ["y"]),
    "in both branches": (
        "for x in loader:  # HERE\n    if x:\n        y = 1\n    else:\n        y = 2\n    print(y)",
        [],
    ),
    "after continue": (
        "for x in loader:  # HERE\n    if x:\n        continue\n    else:\n        y = 2\n    print(y)",
        [],
    ),
    "made in each step": ("for x in loader:  # HERE\n    loss = f(x)\n    loss.backward()\n    n = len(x)", []),
    "comprehension": ("for x in loader:  # HERE\n    y = [b for b in x if b]\n    b = y", []),
    "clock": ("t = time.time()\nfor x in loader:  # HERE\n    print(time.time() - t)\n    t = time.time()", []),
    "walrus": ("for x in loader:  # HERE\n    if (y := f(x)) > 1:\n        print(y)", []),
    "while and next": ("n = 0\nwhile n < 10:\n    x = next(it)  # HERE\n    n += 1", ["n"]),
    "moving average": ("for x in loader:  # HERE\n    avg = f(x) if avg is None else 0.9 * avg + f(x)", ["avg"]),
    "try": (
        "for x in loader:  # HERE\n    try:\n        y = f(x)\n    except ValueError:\n        continue\n    print(y)",
        [],
    ),
    "nothing after try": (
        "for x in loader:  # HERE\n    try:\n        continue\n    except ValueError:\n        continue\n    y = y + 1",
        [],
    ),
    "finally": ("for x in loader:  # HERE\n    try:\n        f(x)\n    finally:\n        y = 1\n    print(y)", []),
    "with": ("for x in loader:  # HERE\n    with autocast() as c:\n        y = f(x, c)\n    print(y)", []),
    "function of its own": (
        "s = 0\ndef train(m):\n    for x in loader:  # HERE\n        k = x\n    return k\ns += 1",
        [],
    ),
    "one row": ("k = 0\nfor x in loader: k = f(x, k)  # HERE", ["k"]),
}


@pytest.mark.parametrize("name", LOOPS)
def test_variables_that_a_loop_carries(name: str) -> None:
    code, expected = LOOPS[name]
    code = textwrap.dedent(code).strip() + "\n"
    line = next(i for i, row in enumerate(code.splitlines(), 1) if "HERE" in row)
    assert [variable for variable, _ in carried(code, line)] == expected


def test_threads_read_their_loops_at_the_same_time() -> None:
    """Merged jobs do; CPython 3.11 raises SystemError where two threads make trees at once."""
    code = "total = 0\nfor x in data:\n" + "".join(f"    y{i} = (x + {i}) * [x][0]\n" for i in range(400))
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda _: carried(code + "    total += x\n", 2), range(40)))
    assert all([name for name, _ in one] == ["total"] for one in found)


def test_broken_source_has_none() -> None:
    assert carried("for x in", 1) == []


def test_frames_up_to_the_main_program_count_and_registered_objects_do_not(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(
        textwrap.dedent(
            """
            def batches():
                look()
                yield 1

            def one_epoch(seen):
                for x in batches():
                    seen = seen + x
                return seen

            kept, best = [0], 0
            for epoch in range(1):
                kept = [*kept, one_epoch(0)]
                best = max(best, 1)
            """
        )
    )
    found: list[list[str]] = []
    kept: list[Any] = []

    def look() -> None:
        frame = sys._getframe(1)
        main = frame.f_back.f_back if frame.f_back is not None else None
        kept.append(main.f_locals["kept"] if main is not None else None)
        found.append(unsaved_variables(frame, kept))

    exec(compile(script.read_text(), str(script), "exec"), {"look": look, "__name__": "__main__"})
    assert found == [["seen (train.py:8)", "best (train.py:14)"]]


def test_many_files_are_kept_and_put_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, here = tmp_path / "scratch", tmp_path / "here"
    folder.mkdir()
    here.mkdir()
    monkeypatch.chdir(here)
    for i in range(20):
        (here / f"old-{i}").write_text("before")
    guard, before = FileGuard(str(folder)), len(os.listdir("/proc/self/fd"))
    read: list[Path] = []

    def read_journal(folder: Path, written: list[str] | None) -> set[str]:
        read.append(folder)
        return set()

    monkeypatch.setattr(rehearsal, "restored", read_journal)
    for i in range(20):
        guard.keep(f"old-{i}")
        guard.keep(f"new-{i}")
    assert (len(os.listdir("/proc/self/fd")), read) == (before, [])  # the journal is not read once a file
    monkeypatch.undo()
    later = FileGuard(str(folder))  # of the next attempt
    for i in range(20):
        (here / f"old-{i}").write_text("after")
        (here / f"new-{i}").write_text("after")
        later.keep(here / f"old-{i}")
    written: list[str] = []
    restored(folder, written=written)
    assert len(written) == 40
    assert {path.name: path.read_text() for path in here.iterdir()} == {f"old-{i}": "before" for i in range(20)}
