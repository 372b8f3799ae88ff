"""Save checkpoints with a short pause: state is copied at a step boundary and written by a thread.

Only the copy of all tensors into host memory blocks training; it uses the same buffers each time. Failures of the
thread (a full disk, an unwritable folder, a newer attempt) are lines in the job's log: the older checkpoint stays, and
training continues. A rank's file is torch's (`rank0.pt`) where the job uses torch, else a pickle (`rank0.pkl`): a loop
without torch never imports it.
"""

from __future__ import annotations

import contextlib
import copy
import os
import pickle
import shutil
import sys
import threading
import time
import warnings
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

from plait.core.errors import PlaitError
from plait.core.files import replacing
from plait.training.state.checkpoint_store import CheckpointStore, Commit
from plait.training.state.structure import NotRestorable

GATHER_S = 120.0
PLAIN = (int, float, str, bytes, type(None))
#: Suffixes of a rank's file: of a job that uses torch, and of any other.
TORCH, PICKLE = ".pt", ".pkl"
#: Errors of state that cannot be copied or pickled.
_NOT_PICKLED = (pickle.PicklingError, TypeError, AttributeError)


class CheckpointHandle:
    """A checkpoint being written. `blocking_s`: seconds that training stood still for it."""

    def __init__(self, step: int) -> None:
        self.step, self.blocking_s = step, 0.0
        self.commit: Commit | None = None
        self._good = False
        self._ended = threading.Event()

    @property
    def committed(self) -> bool:
        """True once it is complete; on ranks other than 0, once this rank's part is written."""
        return self._ended.is_set() and self._good

    @property
    def ended(self) -> bool:
        return self._ended.is_set()

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait until it is written or has failed; returns whether it is `committed`."""
        self._ended.wait(timeout_s)
        return self.committed

    def end(self, commit: Commit | None, *, good: bool) -> None:
        """Set the outcome; called once, by the writer."""
        self.commit, self._good = commit, good
        self._ended.set()


class Staging:
    """Copies nested state into host memory; the next copy reuses the buffers."""

    def __init__(self) -> None:
        self._buffers: dict[tuple[object, ...], Any] = {}

    def copy(self, state: Any) -> Any:
        """Copy `state`: tensors into the buffers, containers as new ones, all else by deepcopy."""
        torch = _torch()
        waiting: list[Any] = []
        made = self._copy(state, (), torch, waiting)
        for device in set(waiting):
            torch.cuda.current_stream(device).synchronize()
        return made

    def _copy(self, state: Any, path: tuple[object, ...], torch: Any, waiting: list[Any]) -> Any:
        if torch is not None and isinstance(state, torch.Tensor):
            tensor = state.detach()
            if tensor.layout != torch.strided or tensor.numel() == 0:
                return tensor.cpu().clone()
            cuda = tensor.device.type == "cuda"
            buffer = self._buffers.get(path)
            if buffer is None or buffer.shape != tensor.shape or buffer.dtype != tensor.dtype:
                buffer = torch.empty_like(tensor, device="cpu", pin_memory=cuda)  # in the same order in memory
                self._buffers[path] = buffer
            buffer.copy_(tensor, non_blocking=cuda)
            if cuda:
                waiting.append(tensor.device)
            return buffer
        if isinstance(state, dict):
            made = {key: self._copy(value, (*path, key), torch, waiting) for key, value in state.items()}
            # `made` as a dictionary of the type of `state`, with the versions that modules attach to their state.
            if type(state) is dict:
                return made
            if not isinstance(state, OrderedDict):
                kind = copy.copy(state)  # a defaultdict, for example, has attributes beside its items
                kind.update(made)
                return kind
            ordered = OrderedDict(made)
            if hasattr(state, "_metadata"):
                ordered._metadata = state._metadata  # type: ignore[attr-defined]
            return ordered
        if isinstance(state, PLAIN) or (type(state) is tuple and all(isinstance(item, PLAIN) for item in state)):
            return state
        if type(state) in (list, tuple):
            return type(state)(self._copy(item, (*path, i), torch, waiting) for i, item in enumerate(state))
        return copy.deepcopy(state)


class Checkpointer:
    """Saves and loads the state of one rank; writes at most one checkpoint at a time."""

    def __init__(
        self,
        commits: CheckpointStore,
        *,
        rank: int = 0,
        world_size: int = 1,
        done: Callable[[Commit], None] = lambda commit: None,
    ) -> None:
        """`done` is called from the writing thread of rank 0 with every complete checkpoint."""
        self.commits, self.rank, self.world_size = commits, rank, world_size
        self._done = done
        self._staging = Staging()
        self._thread: threading.Thread | None = None
        self._handle: CheckpointHandle | None = None
        #: True if the last attempt to write a checkpoint of this rank failed.
        self.failed = False

    @property
    def busy(self) -> bool:
        return self._thread is not None and self._thread.is_alive()

    def save(self, step: int, collect: Callable[[], dict[str, Any]]) -> CheckpointHandle:
        """Copy the state that `collect` returns and write it beside training, after the previous checkpoint."""
        if self._handle and self._handle.step == step and (self.busy or self._handle.committed):
            return self._handle  # nothing has changed since
        handle = CheckpointHandle(step)
        begin = time.perf_counter()
        self.drain()
        try:
            state = self._staging.copy(collect())
        except (MemoryError, NotRestorable, *_NOT_PICKLED) as error:
            self.failed = True
            _warn(step, error)
            handle.end(None, good=False)
            return handle
        handle.blocking_s = time.perf_counter() - begin
        self._handle = handle
        # Not a daemon: the interpreter waits for it at its end.
        self._thread = threading.Thread(target=self._write, args=(handle, state), name="plait-checkpoint")
        self._thread.start()
        return handle

    def drain(self, timeout_s: float | None = None) -> None:
        if self._thread is not None:
            self._thread.join(timeout_s)
            if not self._thread.is_alive():
                self._thread = None

    def load(self) -> tuple[Commit, dict[str, Any]] | None:
        """The newest complete checkpoint that can be read, with the state of this rank; None without any.

        A rank without a file (there are more ranks than before) gets that of rank 0.
        """
        for commit in self.commits.choose(rank=self.rank, world_size=self.world_size):
            try:
                self.commits.verify(commit, self.rank)
                states: dict[str, Any] = {}
                for rank in (0, self.rank):
                    if (path := _file_of(commit.path, rank)) is not None:
                        own = _load(path)
                        states = states | own | {"states": states.get("states", {}) | own["states"]}
                return commit, states
            except (OSError, RuntimeError, EOFError, ValueError, KeyError, pickle.UnpicklingError) as error:
                if self.world_size > 1:  # other ranks may have read theirs
                    raise PlaitError(f"{commit.path}: this checkpoint cannot be read: {error}") from error
                warnings.warn(f"plait: {commit.path} cannot be read, trying an older one: {error}", stacklevel=2)
        return None

    def _write(self, handle: CheckpointHandle, state: dict[str, Any]) -> None:
        making: Path | None = None
        try:
            self.commits.check_epoch()
            making = self.commits.begin(handle.step)
            _save(state, making / f"rank{self.rank}")
            commit = None
            if self.rank == 0:
                # The other ranks save at the same step.
                end_s = time.monotonic() + GATHER_S
                for rank in range(1, self.world_size):
                    while _file_of(making, rank) is None:
                        if (making / f"rank{rank}.failed").exists():
                            raise PlaitError(f"rank {rank} could not write its part")
                        if time.monotonic() > end_s:
                            raise PlaitError(f"rank {rank} has not written its part within {GATHER_S:.0f} s")
                        time.sleep(0.01)
                commit = self.commits.commit(making, handle.step, world_size=self.world_size)
                self._done(commit)
            self.failed = False
            handle.end(commit, good=True)
        except (OSError, RuntimeError, PlaitError, *_NOT_PICKLED) as error:  # in torch a full disk is a RuntimeError
            if making is not None:
                (making / f"rank{self.rank}.part").unlink(missing_ok=True)
                if self.rank == 0:
                    shutil.rmtree(making, ignore_errors=True)
                else:  # so that rank 0 does not wait
                    with contextlib.suppress(OSError):
                        (making / f"rank{self.rank}.failed").touch()
            self.failed = True
            _warn(handle.step, error)
            handle.end(None, good=False)
        finally:
            if not handle.ended:  # unforeseen, but waiters must be released
                self.failed = True
                handle.end(None, good=False)


def _torch() -> Any:
    """The torch module if the job has imported it completely, else None."""
    torch = sys.modules.get("torch")
    return torch if hasattr(torch, "save") else None


def _save(state: dict[str, Any], path: Path) -> None:
    """Write and flush one file, by torch or pickle; it gets its final name once it is complete."""
    torch = _torch()
    whole = path.with_suffix(PICKLE if torch is None else TORCH)
    with replacing(whole) as making, making.open("wb") as file:
        if torch is not None:
            torch.save(state, file)
        else:
            pickle.dump(state, file, protocol=5)
        file.flush()
        os.fsync(file.fileno())


def _file_of(folder: Path, rank: int) -> Path | None:
    """The file of a rank in a checkpoint, of torch or pickle; None without one."""
    return next((path for end in (TORCH, PICKLE) if (path := folder / f"rank{rank}{end}").exists()), None)


def _load(path: Path) -> dict[str, Any]:
    """Load a rank's file, also objects beside weights: the folder belongs to the user."""
    found: dict[str, Any]
    if path.suffix == PICKLE:
        with path.open("rb") as file:
            found = pickle.load(file)
    else:
        import torch

        found = torch.load(path, map_location="cpu", weights_only=False)
    return found


def _warn(step: int, error: BaseException) -> None:
    """Write to the job's log; a warning would be lost under `python -W ignore`."""
    older = "training goes on, an older checkpoint stays"
    print(f"plait: no checkpoint of step {step} ({older}): {error}", file=sys.stderr, flush=True)
