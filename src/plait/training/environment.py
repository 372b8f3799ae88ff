"""What a process learns from the agent that started it: the environment, and control.json as it changes."""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from plait.core.errors import InputError
from plait.runtime.gates import open_gate
from plait.runtime.group_files import GroupError, group_of
from plait.runtime.page import Page, PageError, check_versions
from plait.runtime.stage_gate import NullGate, StageGate
from plait.runtime.tokens import WorkerTokens
from plait.training.notes import note


@dataclass(frozen=True)
class Environment:
    """Where a rank lives. `run_dir` is None outside plait."""

    run_dir: Path | None = None
    job_dir: Path | None = None
    epoch: int = 0
    rank: int = 0
    world_size: int = 1
    checkpoint_s: float = 60.0

    @classmethod
    def of(cls, environ: Mapping[str, str]) -> Environment:
        """From the environment; raises `InputError` for a number that is none."""
        if not environ.get("PLAIT_RUN_DIR"):
            return cls()
        run_dir = Path(environ["PLAIT_RUN_DIR"])
        return cls(
            run_dir=run_dir,
            job_dir=Path(environ.get("PLAIT_JOB_DIR") or run_dir),
            epoch=int(_number(environ, "PLAIT_EPOCH", 0)),
            rank=int(_number(environ, "RANK", 0)),
            world_size=max(int(_number(environ, "WORLD_SIZE", 1)), 1),
            checkpoint_s=_number(environ, "PLAIT_CHECKPOINT_S", 60.0),
        )

    @property
    def grace_s(self) -> float:
        """Seconds between being asked to stop and being killed: what the agent wrote down when it asked, or 60."""
        try:
            assert self.run_dir is not None
            return float(json.loads((self.run_dir / "stop.json").read_text())["grace_s"])
        except (OSError, ValueError, KeyError, TypeError):
            return 60.0

    @property
    def page_file(self) -> Path:
        """The page of this rank."""
        assert self.run_dir is not None
        return self.run_dir / "page.bin"

    @property
    def control_file(self) -> Path:
        """What the agent says about the group."""
        assert self.run_dir is not None
        return self.run_dir / "control.json"


def _number(environ: Mapping[str, str], name: str, default: float) -> float:
    try:
        return float(environ.get(name) or default)
    except ValueError:
        raise InputError(f"the environment variable {name} must be a number, got {environ[name]!r}") from None


class ControlFile:
    """The gate that control.json asks for, opened again when the agent says that it has changed."""

    def __init__(self, around: Environment, page: Page | None = None, *, worker: bool = False) -> None:
        """`worker`: for a loader worker, which follows the same file beside its job's process."""
        self._around, self._worker = around, worker
        self._page = page if page is not None else _own_page(around)
        self._told = page
        self._version: int | None = None
        #: Whether this job shares its GPUs with nobody.
        self.alone = True

    def gate(self, current: StageGate) -> StageGate:
        """The right gate now: `current` if nothing has changed, else a new one (`current` is closed)."""
        if self._page is None:
            return current
        version = self._page.control_version
        if version == self._version:
            return current
        self._version = version
        control = self._read()
        self.alone = len((control.get("group") or {}).get("members") or ()) <= 1
        current.close()
        return _open_in_worker(control) if self._worker else open_gate(control, self._told)

    def _read(self) -> dict[str, Any]:
        try:
            control = json.loads(self._around.control_file.read_text())
        except (OSError, ValueError):  # nothing said yet; renamed into place, so never half a file
            return {}
        if not isinstance(control, dict):
            return {}
        trouble = check_versions(_whole(control.get("made_by")), _whole(control.get("oldest")))
        if trouble:
            note(self._around.run_dir, f"no gate: control.json is {trouble}")
            return {}
        return control


def _whole(value: object) -> int:
    """A version; 1 where none is given, as before there were any."""
    return value if isinstance(value, int) else 1


def _own_page(around: Environment) -> Page | None:
    if around.run_dir is None:
        return None
    try:
        return Page.open(around.page_file)
    except PageError:
        return None


def _open_in_worker(control: dict[str, Any]) -> StageGate:
    """Tokens if the group has them. At a barrier the job's own process keeps the slots, and workers fetch ahead."""
    entry = control.get("group") or {}
    if entry.get("gate") != "tokens":
        return NullGate()
    try:
        return WorkerTokens(group_of(entry), int(entry.get("index", 0)))
    except (GroupError, OSError, ValueError) as error:
        return NullGate(str(error))


def claim(run_dir: Path) -> int | None:
    """Become the one process that speaks for this rank: a descriptor to keep, or None if another does.

    A script that starts its training as a child, or several of them, inherits the environment; the first to train
    has it.
    """
    fd = os.open(run_dir / "speaker.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(fd)
        return None
    return fd
