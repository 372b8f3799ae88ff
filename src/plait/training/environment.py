"""Read what the agent tells a process: its environment, and control.json whenever that changes."""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from plait.core.errors import InputError
from plait.runtime.gates import WorkerTokens, open_gate
from plait.runtime.group_files import GroupError, group_of
from plait.runtime.guest_gate import Neighbours, neighbours_of
from plait.runtime.page import Page, PageError, check_version
from plait.runtime.stage_gate import NullGate, StageGate
from plait.training.process import note


@dataclass(frozen=True)
class Environment:
    """The environment of a rank. `run_dir` is None outside plait."""

    run_dir: Path | None = None
    job_dir: Path | None = None
    epoch: int = 0
    rank: int = 0
    world_size: int = 1
    checkpoint_s: float = 60.0
    #: Checkpoints of the ended job that this one continues, None without one.
    source: Path | None = None

    @classmethod
    def of(cls, environ: Mapping[str, str]) -> Environment:
        """From the environment; raises `InputError` for an invalid number."""
        if not environ.get("PLAIT_RUN_DIR"):
            return cls()
        run_dir = Path(environ["PLAIT_RUN_DIR"])
        job_dir = Path(environ.get("PLAIT_JOB_DIR") or run_dir)
        continued = environ.get("PLAIT_FROM_JOB")
        return cls(
            run_dir=run_dir,
            job_dir=job_dir,
            epoch=int(_number(environ, "PLAIT_EPOCH", 0)),
            rank=int(_number(environ, "RANK", 0)),
            world_size=max(int(_number(environ, "WORLD_SIZE", 1)), 1),
            checkpoint_s=_number(environ, "PLAIT_CHECKPOINT_S", 60.0),
            source=job_dir.parent / continued / "checkpoints" if continued else None,
        )

    @property
    def grace_s(self) -> float:
        """Seconds between a stop request and the kill: as the agent wrote them with the request, else 60."""
        try:
            assert self.run_dir is not None
            return float(json.loads((self.run_dir / "stop.json").read_text())["grace_s"])
        except (OSError, ValueError, KeyError, TypeError):
            return 60.0

    @property
    def page_file(self) -> Path:
        assert self.run_dir is not None
        return self.run_dir / "page.bin"

    @property
    def control_file(self) -> Path:
        assert self.run_dir is not None
        return self.run_dir / "control.json"


def _number(environ: Mapping[str, str], name: str, default: float) -> float:
    try:
        return float(environ.get(name) or default)
    except ValueError:
        raise InputError(f"the environment variable {name} must be a number, got {environ[name]!r}") from None


class ControlFile:
    """Contents of control.json, read again when the agent reports a change: the gate and the neighbours on the GPU."""

    def __init__(
        self,
        around: Environment,
        page: Page | None = None,
        *,
        worker: bool = False,
        wrap: Callable[[StageGate], StageGate] = lambda gate: gate,
    ) -> None:
        """Follow the file that `around` names. `worker`: True in a loader worker, which reads the same file.

        `wrap` puts the gate of a guest around the gate of its group.
        """
        self._around, self._worker, self._wrap = around, worker, wrap
        self._page = page if page is not None else _own_page(around)
        self._told = page
        self._version = self._gate_version = -1
        self.sharing_version = -1  # of the neighbours
        self._control: dict[str, Any] = {}
        self._neighbours: Neighbours | None = None
        self._grouped = False

    def gate(self, current: StageGate) -> StageGate:
        """The right gate now: `current` if nothing has changed, else a new one (`current` is closed)."""
        if self._page is None:
            return current
        version = self._page.control_version
        if version == self._gate_version:
            return current
        self._gate_version = version
        control = self._read(version)
        current.close()
        return _open_in_worker(control) if self._worker else self._wrap(open_gate(control, self._told))

    @property
    def alone(self) -> bool:
        """Whether this job has its GPUs to itself."""
        return self.neighbours() is None and not self._grouped

    def neighbours(self) -> Neighbours | None:
        """The neighbours on the GPU now; None without any.

        An invalid entry makes the process a guest, which is paced by its share: so its hosts lose nothing.
        """
        if self._page is None:
            return None
        version = self._page.control_version
        if version != self.sharing_version:
            self.sharing_version = version
            try:
                self._neighbours = neighbours_of(self._read(version))
            except InputError as error:
                note(self._around.run_dir, f"runs as a guest without a gate: {error}")
                self._neighbours = Neighbours(guest=True)
        return self._neighbours

    def _read(self, version: int) -> dict[str, Any]:
        """The file of this version, read once."""
        if version != self._version:
            self._version, self._control = version, self._load()
            self._grouped = len((self._control.get("group") or {}).get("members") or ()) > 1
        return self._control

    def _load(self) -> dict[str, Any]:
        try:
            control = json.loads(self._around.control_file.read_text())
        except (OSError, ValueError):  # not written yet; it is renamed into place, so it is never partial
            return {}
        if not isinstance(control, dict):
            return {}
        if trouble := check_version(control.get("made_by")):
            note(self._around.run_dir, f"no gate and no sharing: control.json is {trouble}")
            return {}
        return control


def _own_page(around: Environment) -> Page | None:
    if around.run_dir is None:
        return None
    try:
        return Page.open(around.page_file)
    except PageError:
        return None


def _open_in_worker(control: dict[str, Any]) -> StageGate:
    """The gate of a loader worker: tokens if the group has them. At a barrier only the job's process waits."""
    entry = control.get("group") or {}
    if entry.get("gate") != "tokens":
        return NullGate()
    try:
        return WorkerTokens(group_of(entry), int(entry.get("index", 0)))
    except (GroupError, OSError, ValueError) as error:
        return NullGate(str(error))


def claim(run_dir: Path) -> int | None:
    """Become the one process that represents this rank: returns a descriptor to keep, or None if another does.

    Child processes of a script inherit its environment; the first one that trains represents the rank.
    """
    fd = os.open(run_dir / "speaker.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(fd)
        return None
    return fd
