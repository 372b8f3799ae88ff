"""Route or refuse what a process has only once and each merged job needs.

routed      sys.argv, sys.stdout, sys.stderr, os.environ, the module __main__, atexit, the environment of children
refused     signal handlers and timers, another working directory, another default dtype or deterministic mode, the
            default world of torch.distributed
reported    os._exit, os.abort and signals to the own process: they end all members, and the runner learns who did it

Routed values depend on the calling thread. Not covered: environment variables as C libraries read them, cuDNN flags,
the root logger, and the state of modules that two members import. `Routes` installs the replacements and removes them.
"""

from __future__ import annotations

import atexit
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from types import ModuleType
from typing import Any, NoReturn

from plait.training.merged import thread_jobs
from plait.training.merged.thread_jobs import ThreadJob, Unmergeable, here

_ROUTED = ("argv", "stdout", "stderr")


class _Sys(ModuleType):
    """Type of `sys` while members run."""


def _property(name: str) -> property:
    def get(module: ModuleType) -> Any:
        member = here()
        if member is not None:
            if name in member.given:
                return member.given[name]
            if name == "argv":
                return member.argv
        return vars(module)[name]

    def put(module: ModuleType, value: Any) -> None:
        member = here()
        if member is None:
            vars(module)[name] = value
        elif value is vars(module)[name]:  # as it was before it put something there
            member.given.pop(name, None)
        else:
            member.given[name] = value

    return property(get, put)


for _name in _ROUTED:
    setattr(_Sys, _name, _property(_name))


class Stream:
    """sys.stdout or sys.stderr of the member whose thread writes."""

    def __init__(self, name: str, plain: Any) -> None:
        """`plain` for threads of nobody."""
        self._name, self._plain = name, plain

    @property
    def _to(self) -> Any:
        member = here()
        if member is None:
            return self._plain
        return member.given.get(self._name) or member.out or self._plain

    def write(self, text: str) -> int:
        """Write to the member's own output."""
        return int(self._to.write(text) or 0)

    def flush(self) -> None:
        """Flush the member's own output."""
        self._to.flush()

    def __getattr__(self, name: str) -> Any:
        """Anything else, as the member's own output has it."""
        return getattr(self._to, name)

    def __iter__(self) -> Iterator[str]:
        """Lines, where there are any to read."""
        return iter(self._to)


class Environ(MutableMapping[str, str]):
    """os.environ of the member whose thread reads it; C libraries see that of the process."""

    def __init__(self, plain: MutableMapping[str, str]) -> None:
        """`plain` for threads of nobody."""
        self.plain = plain

    @property
    def _of(self) -> MutableMapping[str, str]:
        member = here()
        return self.plain if member is None else member.environ

    def __getitem__(self, name: str) -> str:
        """The value; KeyError if it is not set."""
        return self._of[name]

    def __setitem__(self, name: str, value: str) -> None:
        """Set it for this member only."""
        if not isinstance(value, str):
            raise TypeError(f"str expected, not {type(value).__name__}")
        self._of[name] = value

    def __delitem__(self, name: str) -> None:
        """Unset it for this member only."""
        del self._of[name]

    def __iter__(self) -> Iterator[str]:
        """The names."""
        return iter(list(self._of))

    def __len__(self) -> int:
        """How many."""
        return len(self._of)

    def copy(self) -> dict[str, str]:
        """A dictionary of all."""
        return dict(self._of)

    def __or__(self, other: Mapping[str, str]) -> dict[str, str]:
        """A dictionary of both."""
        return dict(self._of) | dict(other)

    def __ror__(self, other: Mapping[str, str]) -> dict[str, str]:
        """A dictionary of both."""
        return dict(other) | dict(self._of)

    def __repr__(self) -> str:
        """As os.environ shows itself."""
        return f"environ({dict(self._of)!r})"


class _Main(ModuleType):
    """The module __main__ of the current member, in which pickle finds classes of its script."""

    def __init__(self, plain: ModuleType) -> None:
        super().__init__("__main__")
        object.__getattribute__(self, "__dict__")["_plain"] = plain

    @property
    def _whole(self) -> ModuleType:
        member = here()
        if member is not None and member.main is not None:
            return member.main
        plain: ModuleType = object.__getattribute__(self, "__dict__")["_plain"]
        return plain

    def __getattribute__(self, name: str) -> Any:
        return getattr(object.__getattribute__(self, "_whole"), name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(object.__getattribute__(self, "_whole"), name, value)


class Routes:
    """Installs all replacements; `last_words(member, what)` is called before a member ends the process."""

    def __init__(self, last_words: Callable[[ThreadJob, str], None] = lambda member, what: None) -> None:
        """Nothing is changed yet."""
        self._undo: list[Callable[[], None]] = []
        self._say = last_words
        self._pid = os.getpid()

    def open(self) -> None:
        """Install all replacements, or none if one fails."""
        try:
            self._route()
            self._refuse()
            self._tell()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Restore everything that was replaced, in reverse order."""
        while self._undo:
            self._undo.pop()()

    def replace(self, owner: Any, name: str, new: Any) -> Any:
        """Replace attribute `name` of `owner` by `new` until `close`; returns the old value."""
        old = getattr(owner, name)
        own = name in vars(owner)
        setattr(owner, name, new)
        self._undo.append(lambda: setattr(owner, name, old) if own else delattr(owner, name))
        return old

    def _route(self) -> None:
        thread_jobs.inherit()
        self._undo.append(thread_jobs.inherit_no_more)
        for name in ("stdout", "stderr"):
            self.replace(sys, name, Stream(name, getattr(sys, name)))
        kind = type(sys)
        sys.__class__ = _Sys
        self._undo.append(lambda: setattr(sys, "__class__", kind))
        self.replace(os, "environ", Environ(os.environ))
        main = sys.modules["__main__"]
        sys.modules["__main__"] = _Main(main)
        self._undo.append(lambda: sys.modules.__setitem__("__main__", main))
        register, unregister = atexit.register, atexit.unregister

        def at_exit(work: Callable[..., Any], *args: Any, **options: Any) -> Callable[..., Any]:
            member = here()
            if member is None:
                register(work, *args, **options)
            else:
                call = _Call(work, args, options)
                member.at_exit.append(call)
            return work

        def not_at_exit(work: Callable[..., Any]) -> None:
            member = here()
            if member is None:
                unregister(work)
            else:
                member.at_exit[:] = [c for c in member.at_exit if getattr(c, "work", None) != work]

        self.replace(atexit, "register", at_exit)
        self.replace(atexit, "unregister", not_at_exit)
        self._route_children()

    def _route_children(self) -> None:
        """Start programs of a member in the member's environment."""
        plain = subprocess.Popen.__init__

        def init(process: Any, args: Any, *rest: Any, **options: Any) -> None:
            member = here()
            if member is not None and len(rest) < 10 and options.get("env") is None:  # env is the eleventh
                options["env"] = dict(member.environ)
            plain(process, args, *rest, **options)

        self.replace(subprocess.Popen, "__init__", init)

    def _refuse(self) -> None:
        for owner, name, why in (
            (signal, "signal", "sets a signal handler"),
            (signal, "set_wakeup_fd", "sets a signal handler"),
            (signal, "setitimer", "sets a timer of the process"),
            (signal, "alarm", "sets a timer of the process"),
            (os, "chdir", "changes the working directory"),
            (os, "fchdir", "changes the working directory"),
        ):
            self._guard(owner, name, why, lambda *_: True)
        torch = sys.modules.get("torch")
        if torch is None:
            return
        self._guard(
            torch, "set_default_dtype", "sets another default dtype", lambda d, *_: d != torch.get_default_dtype()
        )
        self._guard(torch, "set_default_tensor_type", "sets another default tensor type", lambda *_: True)
        self._guard(
            torch,
            "use_deterministic_algorithms",
            "changes the deterministic mode",
            lambda on, *_: bool(on) != torch.are_deterministic_algorithms_enabled(),
        )
        if torch.distributed.is_available():
            why = "makes the default world of torch.distributed"
            self._guard(torch.distributed, "init_process_group", why, lambda *_: True)

    def _guard(self, owner: Any, name: str, why: str, applies: Callable[..., bool]) -> None:
        plain = getattr(owner, name)

        def guarded(*args: Any, **options: Any) -> Any:
            member = here()
            if member is not None and os.getpid() == self._pid and applies(*args, *options.values()):
                raise Unmergeable(
                    f"job {member.name} {why} ({owner.__name__}.{name}), which its process has only once for all "
                    "merged jobs; it runs by itself: submit it without --merge"
                )
            return plain(*args, **options)

        self.replace(owner, name, guarded)

    def _tell(self) -> None:
        def ends(owner: Any, name: str, applies: Callable[..., bool]) -> None:
            plain = getattr(owner, name)

            def reporting(*args: Any) -> Any:
                member = here()
                if member is not None and os.getpid() == self._pid and applies(*args):
                    self._say(member, f"{owner.__name__}.{name}({', '.join(map(str, args))})")
                return plain(*args)

            self.replace(owner, name, reporting)

        ends(os, "_exit", lambda *_: True)
        ends(os, "abort", lambda *_: True)
        ends(os, "kill", lambda pid, number: pid == os.getpid() and number != 0)


class _Call:
    """A function with arguments, to be called at the end of a member."""

    def __init__(self, work: Callable[..., Any], args: tuple[Any, ...], options: dict[str, Any]) -> None:
        self.work, self._args, self._options = work, args, options

    def __call__(self) -> Any:
        return self.work(*self._args, **self._options)


def leave_all(code: int) -> NoReturn:
    """End the process by the original os._exit."""
    thread_jobs.become(None)
    os._exit(code)
