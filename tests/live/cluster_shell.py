"""`plait ...` as a user types it, on a cluster of its own."""

import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from plait.core.errors import PlaitError
from plait.live.client.client import Client
from plait.live.layout import Layout

PLAIT = (sys.executable, "-c", "import sys; sys.argv[0] = 'plait'; from plait.cli import main; main()")


@dataclass
class Shell:
    """`plait ...` with a home folder of its own."""

    home: Path

    def __call__(self, *words: object, code: int = 0, **more: str) -> str:
        env = {k: v for k, v in os.environ.items() if k not in ("PLAIT_URL", "PLAIT_TOKEN", "PLAIT_DEBUG")}
        done = subprocess.run(
            [*PLAIT, *map(str, words)],
            env={**env, "PLAIT_HOME": str(self.home), **more},
            cwd=self.home.parent,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == code, (
            f"plait {' '.join(map(str, words))}: {done.returncode}\n{done.stdout}{done.stderr}"
        )
        return done.stdout + done.stderr

    @property
    def layout(self) -> Layout:
        return Layout(self.home.resolve())

    def submit(self, *words: object) -> str:
        return json.loads(self("submit", "--json", *words))[0]["id"]

    def job(self, job: str) -> dict:
        return json.loads(self("show", job, "--json"))

    def until(self, job: str, *states: str) -> dict:
        until = time.monotonic() + 60
        while True:
            with contextlib.suppress(PlaitError), Client.at(str(self.home)) as client:  # the service may just begin
                found = client.job(job)
                if found.state in states:
                    return self.job(job)
                assert time.monotonic() < until, found
            assert time.monotonic() < until, f"no service answers about {job}"
            time.sleep(0.1)

    def comes(self, what: Callable[[], bool]) -> None:
        until = time.monotonic() + 60
        while not what():
            assert time.monotonic() < until, "it does not come"
            time.sleep(0.2)
