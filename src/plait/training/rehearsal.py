"""Recording of a rehearsed training run: what each step computed, and which files the script wrote.

`plait rehearse` starts a script several times, with `PLAIT_REHEARSAL` naming a file of `RehearsalOrder`.
Start at `Recorder`.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import shutil
import signal
import sys
import sysconfig
import tempfile
import threading
import types
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from plait.training.state import random_streams

if TYPE_CHECKING:
    from plait.training.job import Rank


# The instructions of a rehearsed run, from the command to the process that records.

#: Names the file with the instructions, in the environment of a rehearsed process.
VARIABLE = "PLAIT_REHEARSAL"


@dataclass(frozen=True)
class RehearsalOrder:
    """What a process records, and where it stops.

    `folder` receives `trace-RANK.jsonl` and the copies of files that the script overwrites. After step `stop_at`
    (0: never) the process sends itself SIGTERM; after step `end_at` it exits.
    """

    folder: str
    stop_at: int
    end_at: int

    def write(self, path: Path) -> dict[str, str]:
        path.write_text(json.dumps(asdict(self)))
        return {VARIABLE: str(path)}

    @classmethod
    def of(cls, environ: Mapping[str, str]) -> RehearsalOrder | None:
        """The instructions of this process; None if it is not rehearsed."""
        path = environ.get(VARIABLE)
        return cls(**json.loads(Path(path).read_text())) if path else None


def trace_of(folder: str | os.PathLike[str], rank: int) -> Path:
    return Path(folder) / f"trace-{rank}.jsonl"


# Keep what a rehearsed script overwrites, so that its files are the same after the rehearsal as before.
#
# A hook of Python's auditing sees every `open` for writing, every rename and removal; the first time that a file is
# touched it is copied. torch writes its files from C++, past that hook, so `torch.save` reports by itself.

JOURNAL = "files.jsonl"
_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
_LEFT = ("/dev/", "/proc/", "/sys/", tempfile.gettempdir() + os.sep)


class FileGuard:
    """Copies files of this process before they change."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._cwd = os.getcwd() + os.sep
        self._seen = restored(Path(folder), written=None)  # of earlier attempts; what came first is put back
        self._busy = threading.local()

    def hook(self, event: str, args: tuple[Any, ...]) -> None:
        if event == "open" and isinstance(args[0], str | bytes | os.PathLike) and _writes(args[1], args[2]):
            self.keep(args[0])
        elif event in ("os.rename", "os.remove", "os.truncate"):
            for path in args[:2]:
                if isinstance(path, str | bytes | os.PathLike):
                    self.keep(path)

    def keep(self, given: Any) -> None:
        """Copy the file unless that was done, or note that it does not exist yet."""
        path = os.path.realpath(os.fsdecode(given))
        local = path.startswith(self._cwd)
        if path in self._seen or getattr(self._busy, "now", False) or "__pycache__" in path:
            return
        if path.startswith(self._folder) or (path.startswith(_LEFT) and not local):
            return
        self._seen.add(path)
        self._busy.now = True
        try:
            journal = os.path.join(self._folder, JOURNAL)
            if os.path.isfile(path):
                descriptor, copy = tempfile.mkstemp(dir=self._folder, prefix="kept-")
                os.close(descriptor)
                shutil.copy2(path, copy)
                _note(journal, path, copy)
            elif local and not os.path.exists(path):
                _note(journal, path, "")
        finally:
            self._busy.now = False


def guard_files() -> None:
    """Begin to keep files, if this process is rehearsed."""
    order = RehearsalOrder.of(os.environ)
    if order is None:
        return
    from plait.training.torch_watch import when_loaded

    guard = FileGuard(os.path.realpath(order.folder))
    sys.addaudithook(guard.hook)
    when_loaded("torch.serialization", "save", lambda module: _watch_save(module, guard))


def restored(folder: Path, *, written: list[str] | None) -> set[str]:
    """The files of the journal in `folder`; puts them back if `written` is a list, which receives their names."""
    journal = folder / JOURNAL
    lines = journal.read_text().splitlines() if journal.exists() else []
    paths: set[str] = set()
    for line in lines:
        path, copy = json.loads(line)
        if path in paths:
            continue
        paths.add(path)
        if written is None:
            continue
        written.append(path)
        if copy:
            Path(path).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(copy, path)
        elif os.path.isfile(path):
            os.unlink(path)
    if written is not None:
        journal.unlink(missing_ok=True)
    return paths


def _note(journal: str, path: str, copy: str) -> None:
    with open(journal, "a", encoding="utf-8") as file:
        file.write(json.dumps([path, copy]) + "\n")


def _writes(mode: object, flags: object) -> bool:
    if isinstance(mode, str):
        return any(letter in mode for letter in "wax+")
    return isinstance(flags, int) and bool(flags & _WRITES)


def _watch_save(module: Any, guard: FileGuard) -> None:
    save = module.save

    def kept(what: Any, where: Any, *args: Any, **options: Any) -> Any:
        if isinstance(where, str | os.PathLike):
            guard.keep(where)
        return save(what, where, *args, **options)

    module.save = kept


# Short digests of values, of the variables of a script, and of the random streams of a process.

#: Larger tensors and arrays are read at this many places.
SAMPLED = 1 << 20
#: Values of one container, and containers within containers.
MOST, DEEPEST = 2000, 4
_SCALARS = (bool, int, float, complex, str, bytes, type(None))
_OWN = str(Path(__file__).resolve().parents[2])


class NoValue(Exception):
    """The object holds no data that could be compared."""


def digest(value: Any) -> str:
    """Sixteen hexadecimal digits for a value; raises `NoValue` for functions, files, iterators and the like."""
    made = hashlib.blake2b(digest_size=8)
    _add(made, value, 0)
    return made.hexdigest()


def streams_digest() -> str:
    """Of Python's, NumPy's and torch's random streams."""
    return digest(random_streams.capture())


def script_variables() -> dict[str, tuple[str, str]]:
    """Variables of the script's frames and modules that hold data: {name: (digest, text)}.

    Frames of installed packages and of plait are left out. The variables of an inner frame hide those of an outer one.
    """
    found: dict[str, tuple[str, str]] = {}
    frame: types.FrameType | None = sys._getframe(1)
    while frame is not None:
        if _of_script(frame.f_code.co_filename):
            for space in (frame.f_locals, frame.f_globals):
                for name, value in list(space.items()):
                    if name not in found and not name.startswith("__"):
                        found.update(_parts(name, value))
        frame = frame.f_back
    return found


def unsaved_buffers(name: str, module: Any) -> Iterator[tuple[str, str]]:
    """(path, digest) of the buffers of a module that its `state_dict` leaves out."""
    if hasattr(module, "named_modules"):
        for inner, part in module.named_modules():
            for buffer in sorted(getattr(part, "_non_persistent_buffers_set", ())):
                if part._buffers.get(buffer) is not None:
                    yield ".".join(filter(None, (name, inner, buffer))), digest(part._buffers[buffer])


def _parts(name: str, value: Any) -> Iterator[tuple[str, tuple[str, str]]]:
    try:
        yield name, (digest(value), _text(value))
        for path, made in unsaved_buffers(name, value):
            yield path, (made, "a buffer with persistent=False")
    except NoValue:
        pass
    except Exception:  # a property or a state_dict of the script that fails has nothing to compare
        pass


@cache
def _of_script(file: str) -> bool:
    """True for a file that is neither of plait, nor of Python, nor an installed package."""
    path = os.path.abspath(file)
    installed = {sysconfig.get_path(kind) for kind in ("stdlib", "platstdlib", "purelib", "platlib")}
    inside = any(path.startswith(folder + os.sep) for folder in (_OWN, *installed) if folder)
    return not inside and not (file.startswith("<") and file not in ("<string>", "<stdin>"))


def _text(value: Any) -> str:
    """A value in a few words."""
    if isinstance(value, _SCALARS):
        return repr(value)[:60]
    if isinstance(value, list | tuple | dict | set | deque):
        return f"{type(value).__name__} of {len(value)}"
    if getattr(value, "ndim", None) == 0 and hasattr(value, "item"):
        return repr(value.item())[:60]
    shape = getattr(value, "shape", None)
    kind = type(value).__name__
    return f"{kind} of shape {tuple(shape)}" if isinstance(shape, tuple) else kind


def _add(made: Any, value: Any, depth: int) -> None:
    """Add a value to the hash `made`; raises `NoValue`."""
    torch, numpy = sys.modules.get("torch"), sys.modules.get("numpy")
    if isinstance(value, _SCALARS):
        made.update(f"{type(value).__name__} {value!r};".encode())
    elif hasattr(torch, "Tensor") and isinstance(value, torch.Tensor):  # type: ignore[union-attr]
        _add_tensor(made, value)
    elif hasattr(numpy, "ndarray") and isinstance(value, (numpy.ndarray, numpy.generic)):  # type: ignore[union-attr]
        array = value.reshape(-1)
        made.update(f"{value.dtype} {value.shape};".encode())
        array = array[:: max(array.size // SAMPLED, 1)]
        made.update(repr(array.tolist()).encode() if array.dtype.hasobject else array.tobytes())
    elif depth >= DEEPEST or isinstance(value, type | types.ModuleType) or _is_loader(value):
        raise NoValue
    elif isinstance(value, Mapping):
        for key in list(value)[:MOST]:
            _add(made, key if isinstance(key, _SCALARS) else repr(key), depth + 1)
            _add_inner(made, value[key], depth)
    elif isinstance(value, list | tuple | deque):
        made.update(f"{type(value).__name__} {len(value)};".encode())
        for item in list(value)[-MOST:]:
            _add_inner(made, item, depth)
    elif isinstance(value, set | frozenset):
        made.update(repr(sorted(map(repr, value))[:MOST]).encode())
    elif isinstance(value, random.Random):
        made.update(repr(value.getstate()).encode())
    else:
        _add_object(made, value, depth)


def _add_inner(made: Any, value: Any, depth: int) -> None:
    try:
        _add(made, value, depth + 1)
    except NoValue:
        made.update(type(value).__name__.encode())


def _add_object(made: Any, value: Any, depth: int) -> None:
    """An object by its own state: `state_dict()`, that of a generator, or the attributes of a class of the script."""
    if callable(getattr(value, "state_dict", None)):
        _add(made, value.state_dict(), depth)
    elif callable(getattr(value, "get_state", None)):
        _add(made, value.get_state(), depth)
    elif hasattr(value, "bit_generator"):
        _add(made, value.bit_generator.state, depth)
    elif hasattr(value, "__dict__") and _of_script(_file_of(type(value))) and not callable(value):
        made.update(type(value).__name__.encode())
        for name, inner in sorted(vars(value).items()):
            made.update(name.encode())
            _add_inner(made, inner, depth)
    else:
        raise NoValue


def _add_tensor(made: Any, value: Any) -> None:
    import torch

    flat = value.detach()
    flat = (flat.to_dense() if flat.layout != torch.strided else flat).reshape(-1)
    flat = flat[:: max(flat.numel() // SAMPLED, 1)].cpu().contiguous()
    made.update(f"{value.dtype} {tuple(value.shape)};".encode())
    if flat.numel():
        made.update(flat.view(torch.uint8).numpy().tobytes())


def _is_loader(value: Any) -> bool:
    """True for loaders, whose position the batches show."""
    return any(kind.__name__ == "DataLoader" for kind in type(value).__mro__) or hasattr(value, "_passes")


def _file_of(kind: type) -> str:
    return getattr(sys.modules.get(kind.__module__), "__file__", None) or "<none>"


# Record each training step of a rehearsed process, and stop it at the given step.
#
# A step ends with the step of any optimizer, or, where none steps, with an iteration of the job. Its position is saved
# in checkpoints, so the records of a resumed process continue those of the process before.

#: Steps, or batches, that a process may still take after SIGTERM: an accumulated step ends only after some batches.
PATIENCE = 64
#: Exit code of a process that did not stop.
DEAF = 3


class Recorder:
    """Writes a line a step to `trace-RANK.jsonl`: batches, losses, learning rates, state, streams, variables."""

    def __init__(self, order: RehearsalOrder, job: Rank) -> None:
        self.position = 0
        self._order, self._job, self._pid = order, job, os.getpid()
        self._step: dict[str, Any] = {}
        self._asked_since: int | None = None
        self._optimizers: list[Any] = []
        self._stepped = False  # an optimizer has stepped, so iterations of the job end no step
        self._losses_seen = False
        self._file = trace_of(order.folder, job.around.rank).open("a", encoding="utf-8")
        self._write({"begin": os.getpid()})

    def saved(self) -> dict[str, Any]:
        return {"position": self.position, "step": self._step}

    def resumed(self, saved: dict[str, Any] | None) -> None:
        """Continue at the position of a checkpoint."""
        if saved is not None:
            self.position, self._step = saved["position"], saved["step"]
        self._write({"resumed": self.position})

    def begins(self) -> None:
        """Note the variables of the script where a batch or a loop step begins; only the first of a step."""
        self._watch_losses()
        if "before" not in self._step:
            self._step["before"] = script_variables()
            self._step["streams"] = streams_digest()

    def batch(self, passes: Any, number: int, length: int | None, batch: Any) -> None:
        """Note a training batch, the `number`th of `length` in its pass, and stop a process that ignored SIGTERM."""
        name = self._job.kept.name_of(*[v for v in self._job.kept.values.values() if _passes(v) is passes]) or "loader"
        try:
            made = digest(batch)
        except NoValue:
            made = ""
        self._step.setdefault("batches", []).append([name, number, length, made])
        self._check_stopped()

    def optimizer_stepped(self, optimizer: Any) -> None:
        """End a step with that of an optimizer."""
        self._stepped = True
        if not any(known is optimizer for known in self._optimizers):
            self._optimizers.append(optimizer)
        self._step["optimizer"] = type(optimizer).__name__
        self._end_step()

    def iteration_ended(self) -> None:
        """End a step with an iteration of the job, where no optimizer steps."""
        if not self._stepped:
            self._end_step()

    def end(self, how: str) -> None:
        """Write the last line: how the process ended, and the state at its end."""
        if os.getpid() == self._pid and not self._file.closed:
            self._write({"end": how, "n": self.position, "state": self._state()})
            self._file.close()

    def _end_step(self) -> None:
        if os.getpid() != self._pid or self._file.closed:
            return
        self._watch_losses()
        step, self._step = self._step, {}
        self.position += 1
        # The learning rates of all optimizers that have stepped or are registered.
        known = [value for value in self._job.kept.values.values() if hasattr(value, "param_groups")]
        known += [one for one in self._optimizers if all(one is not other for other in known)]
        # The sum of the squared weights
        models = [value for value in self._job.kept.values.values() if hasattr(value, "parameters")]
        self._write(
            {"n": self.position}
            | step
            | {
                "rates": [
                    [float(group["lr"]) for group in optimizer.param_groups if "lr" in group] for optimizer in known
                ],
                "state": self._state(),
                "size": sum(float(p.detach().double().square().sum()) for model in models for p in model.parameters()),
            }
            | {"after": script_variables()}
        )
        if self.position >= self._order.end_at:
            self.end("bound")
            _exit(0)  # without the rest of the script
        if self._order.stop_at and self.position >= self._order.stop_at and self._asked_since is None:
            self._asked_since = self.position
            self._batches_since = 0
            os.kill(os.getpid(), signal.SIGTERM)
        self._check_stopped()

    def _check_stopped(self) -> None:
        """End a process that goes on after SIGTERM."""
        if self._asked_since is None:
            return
        self._batches_since += 1
        if self._batches_since > PATIENCE:
            self.end("deaf")
            _exit(DEAF)

    def _state(self) -> dict[str, str]:
        """Digests of the registered state, and of the buffers that it leaves out."""
        found = {}
        for name, value in self._job.kept.values.items():
            if _passes(value) is None and name in self._job.kept.given:
                found[name] = digest(value.state_dict())
                found |= dict(unsaved_buffers(name, value))
        return found

    def _watch_losses(self) -> None:
        """From now on note what `backward` is called on."""
        torch = sys.modules.get("torch")
        if self._losses_seen or not hasattr(torch, "autograd"):
            return
        self._losses_seen = True
        autograd: Any = torch.autograd  # type: ignore[union-attr]
        backward = autograd.backward

        def recorded(tensors: Any, *args: Any, **options: Any) -> Any:
            roots = [tensors] if hasattr(tensors, "detach") else list(tensors)
            if os.getpid() == self._pid:
                self._step.setdefault("losses", []).append(sum(float(root.detach().double().sum()) for root in roots))
            return backward(tensors, *args, **options)

        autograd.backward = recorded

    def _write(self, line: dict[str, Any]) -> None:
        self._file.write(json.dumps(line) + "\n")
        self._file.flush()


def _exit(code: int) -> NoReturn:
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _passes(value: Any) -> Any:
    """The counter of passes of a wrapped loader; None for other values."""
    return vars(value).get("_passes") if hasattr(value, "__dict__") else None


def recorder_of(job: Rank) -> Recorder | None:
    """The recorder of a rehearsed process; None for all others."""
    order = RehearsalOrder.of(os.environ)
    return Recorder(order, job) if order is not None else None
