"""A switch and an aggregation server as processes, for tests and measurements.

with Dataplane.start(folder, "switch", aggregators=64) as tor:
    tor.control.register(7, "job", 2, {"protocol": "switchml", "payload_bytes": 1024}, token)
"""

from __future__ import annotations

import json
import os
import select
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from plait.core.options import words
from plait.live.dataplane.control import SwitchControl
from plait.live.dataplane.options import KINDS
from plait.runtime.network.datagrams import Address


class Dataplane:
    """A running process: `address` for datagrams, `control` for requests. Ends with the block."""

    def __init__(self, process: subprocess.Popen[bytes], ready: dict[str, Any]) -> None:
        self.process, self.ready = process, ready
        self.address: Address = tuple(ready["data"])
        self.path = Path(ready["control"])
        self.control = SwitchControl(self.path)
        self._own_folder: Path | None = None

    @classmethod
    def start(cls, kind: str, folder: Path | None = None, timeout_s: float = 120.0, **options: Any) -> Dataplane:
        """Start a switch or server (`kind`) with these options and wait until it is ready.

        `folder`: of the control socket; a new one in the folder of temporary files unless given. Raises `RuntimeError`
        with the process's output if it ends, or is not ready in time.
        """
        own = None
        if folder is None:
            folder = own = Path(tempfile.mkdtemp(prefix="plait-"))
        options.setdefault("control", str(folder / f"{options.get('name', kind)}.sock"))
        given = words(KINDS[kind], {name.replace("_", "-"): value for name, value in options.items()})
        command = [sys.executable, "-m", "plait.live.dataplane", kind, *given]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        assert process.stdout is not None
        line, until = b"", time.monotonic() + timeout_s
        while not line.endswith(b"\n") and process.poll() is None and time.monotonic() < until:
            if select.select([process.stdout], [], [], 0.1)[0]:
                line += os.read(process.stdout.fileno(), 4096)
        if not line.endswith(b"\n"):
            process.kill()
            raise RuntimeError(f"{' '.join(command)}: not ready: {process.communicate()[1].decode()}")
        made = cls(process, json.loads(line))
        made._own_folder = own
        return made

    def stop(self, timeout_s: float = 10.0) -> int:
        """End the process as an operator does, by force if it does not end in time; returns its exit code."""
        self.control.close()
        if self.process.poll() is None:
            self.process.terminate()
        try:
            self.process.communicate(timeout=timeout_s)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.communicate()
        if self._own_folder is not None:
            shutil.rmtree(self._own_folder, ignore_errors=True)
        return self.process.returncode

    def __enter__(self) -> Dataplane:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
