"""The page for a lab of ten people: its commands run in order on a cluster of slots, and each succeeds."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytest.importorskip("starlette", reason="needs the extra [live]")
pytestmark = [
    pytest.mark.engines,
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="agents need Linux"),
]

from documented_code import ROOT, blocks  # noqa: E402
from plait.live.client.client import FINAL, Client  # noqa: E402

PLAIT = (sys.executable, "-c", "import sys; sys.argv[0] = 'plait'; from plait.cli import main; main()")


def test_the_commands_of_the_page_run(tmp_path: Path) -> None:
    for name in ("train", "evaluate", "prepare"):
        (tmp_path / f"{name}.py").write_text("import sys, time; time.sleep(0.5); print(sys.argv)")
    environ = {**os.environ, "PLAIT_HOME": str(tmp_path / "home")}

    def run(words: list[str]) -> str:
        words = [*words, "--fake"] if words[1] == "up" else words
        done = subprocess.run(
            [*PLAIT, *words[1:]], cwd=tmp_path, env=environ, capture_output=True, text=True, timeout=120, check=False
        )
        assert done.returncode == 0, f"{shlex.join(words)}: {done.stdout}{done.stderr}"
        return done.stdout

    said = []
    try:
        for block in blocks(ROOT / "docs/how-to/for-a-lab.md"):
            said.append([run(words) for words in block.commands() if words[0] == "plait"])
            with Client.at(str(tmp_path / "home")) as service:
                until = time.monotonic() + 120
                while any(row.state not in FINAL for row in service.jobs(limit=100)):
                    assert time.monotonic() < until
                    time.sleep(0.2)
                ended = [row.state for row in service.jobs(limit=100)]
    finally:
        run(["plait", "down", "--stop-jobs"])
    assert len(said) == 3
    assert ended == ["finished"] * 7
    assert (tmp_path / "week.db").exists()
