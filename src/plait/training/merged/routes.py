"""Route or refuse what a process has only once and each merged job needs.

routed      sys.argv, sys.stdout, sys.stderr, os.environ, the module __main__, atexit, the environment of children
refused     signal handlers and timers, another working directory, another default dtype or deterministic mode, the
            default world of torch.distributed
reported    os._exit, os.abort and signals to the own process: they end all members, and the runner learns who did it

Routed values depend on the calling thread. Not covered: environment variables as C libraries read them, cuDNN flags,
the root logger, and the state of modules that two members import. `ThreadRoutes` makes replacements and removes them.
"""

from __future__ import annotations

import atexit
import functools
import os
import random
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from types import ModuleType
from typing import Any, NoReturn

from plait.training.merged import thread_jobs
from plait.training.merged.thread_jobs import ThreadJob, Unmergeable, here
from plait.training.process import torch_cuda

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
        self._name, self._plain = name, plain

    @property
    def _to(self) -> Any:
        member = here()
        if member is None:
            return self._plain
        return member.given.get(self._name) or member.out or self._plain

    def write(self, text: str) -> int:
        return int(self._to.write(text) or 0)

    def flush(self) -> None:
        self._to.flush()

    def __getattr__(self, name: str) -> Any:
        """Anything else, as the member's own output has it."""
        return getattr(self._to, name)

    def __iter__(self) -> Iterator[str]:
        return iter(self._to)


class Environ(MutableMapping[str, str]):
    """os.environ of the member whose thread reads it; C libraries see that of the process."""

    def __init__(self, plain: MutableMapping[str, str]) -> None:
        self.plain = plain

    @property
    def _of(self) -> MutableMapping[str, str]:
        member = here()
        return self.plain if member is None else member.environ

    def __getitem__(self, name: str) -> str:
        return self._of[name]

    def __setitem__(self, name: str, value: str) -> None:
        if not isinstance(value, str):
            raise TypeError(f"str expected, not {type(value).__name__}")
        self._of[name] = value

    def __delitem__(self, name: str) -> None:
        del self._of[name]

    def __iter__(self) -> Iterator[str]:
        return iter(list(self._of))

    def __len__(self) -> int:
        return len(self._of)

    def copy(self) -> dict[str, str]:
        return dict(self._of)

    def __or__(self, other: Mapping[str, str]) -> dict[str, str]:
        return dict(self._of) | dict(other)

    def __ror__(self, other: Mapping[str, str]) -> dict[str, str]:
        return dict(other) | dict(self._of)

    def __repr__(self) -> str:
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


class ThreadRoutes:
    """Installs all replacements; `last_words(member, what)` is called before a member ends the process."""

    def __init__(self, last_words: Callable[[ThreadJob, str], None] = lambda member, what: None) -> None:
        self._undo: list[Callable[[], None]] = []
        self._say = last_words
        self._pid = os.getpid()

    def open(self) -> None:
        """Install all replacements, or none if one fails."""
        try:
            self._route()
            self._refuse()

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


# Random streams of merged jobs: each job draws the numbers that it would draw alone.
#
# Python's and NumPy's streams are objects, so each member has its own. Torch draws from one generator per device, in
# C++; its state is swapped when another member draws: in every function of torch that draws or reads the state, and at
# the beginning of each GPU stage (for code that draws by itself, such as a compiled graph). The functions hold a lock
# while they draw, so no other member can interfere.
#
# Code that draws outside GPU stages without one of these functions is not covered. An own generator (`job.rng`) is
# always safe.

_TORCH = (
    "bernoulli", "binomial", "multinomial", "normal", "poisson", "rand", "rand_like", "randint", "randint_like",
    "randn", "randn_like", "randperm", "rrelu", "rrelu_", "dropout", "dropout_", "alpha_dropout", "alpha_dropout_",
    "feature_dropout", "feature_dropout_", "feature_alpha_dropout", "feature_alpha_dropout_", "native_dropout",
    "_fused_dropout", "_standard_gamma", "_sample_dirichlet", "lstm", "gru", "rnn_tanh", "rnn_relu",
)  # fmt: skip
_TENSOR = (
    "bernoulli", "bernoulli_", "cauchy_", "exponential_", "geometric_", "log_normal_", "multinomial", "normal_",
    "random_", "uniform_",
)  # fmt: skip
_STATE = ("get_rng_state", "set_rng_state", "manual_seed", "seed", "initial_seed")
_CUDA_STATE = (
    "get_rng_state", "get_rng_state_all", "set_rng_state", "set_rng_state_all", "manual_seed", "manual_seed_all",
    "seed", "seed_all", "initial_seed",
)  # fmt: skip
_NUMPY_ALSO = {"seed": "seed", "ranf": "random_sample", "sample": "random_sample"}


class TorchStreams:
    """Tracks which member's states are in torch's generators; None: those of the process."""

    def __init__(self, torch: Any) -> None:
        self.lock = threading.RLock()
        self._torch, self._pid = torch, os.getpid()
        self._owner: ThreadJob | None = None
        self._plain: dict[str, Any] = {}

    def own(self, member: ThreadJob | None) -> None:
        """Put the states of `member` into the generators."""
        with self.lock:
            if self._owner is not member and os.getpid() == self._pid:
                kept = self._plain if self._owner is None else self._owner.streams
                kept["torch"] = [g.get_state() for g in self._generators()]
                states = (self._plain if member is None else member.streams).get("torch", [])
                for i, generator in enumerate(self._generators()):
                    if i < len(states):
                        generator.set_state(states[i])
                    else:
                        generator.seed()  # as in a new process
                self._owner = member

    def _generators(self) -> list[Any]:
        """The generator of the CPU, then those of all GPUs once the process uses them."""
        cuda = torch_cuda()
        return [self._torch.default_generator, *(cuda.default_generators if cuda else ())]

    def around(self, draw: Callable[..., Any]) -> Callable[..., Any]:
        """Wrap a function so that it draws from the streams of the calling member."""

        @functools.wraps(draw, updated=())
        def routed(*args: Any, **options: Any) -> Any:
            member = here()
            if member is None or os.getpid() != self._pid:
                return draw(*args, **options)
            with self.lock:
                if self._owner is not member:
                    self.own(member)
                return draw(*args, **options)

        return routed


class Streams:
    """Routes the random streams of all libraries; one per merged process."""

    def __init__(self, routes: ThreadRoutes) -> None:
        """Route the streams of libraries that are imported now, until `routes` is closed."""
        self.torch: TorchStreams | None = None
        plain: Any = random._inst
        for name in dir(random):
            if getattr(getattr(random, name), "__self__", None) is plain:
                routes.replace(random, name, _by_member(plain, name, "python"))
        if "numpy" in sys.modules:
            self._route_numpy(routes)
        torch = sys.modules.get("torch")
        if torch is not None and hasattr(torch, "default_generator"):
            self.torch = TorchStreams(torch)
            self._route_torch(routes, torch, self.torch)

    def begin(self, member: ThreadJob) -> None:
        """Give `member` new streams, as a new process has."""
        member.streams["python"] = random.Random()
        if numpy := sys.modules.get("numpy"):
            member.streams["numpy"] = numpy.random.RandomState()

    def own(self, member: ThreadJob) -> None:
        """Use the streams of `member` from the beginning of its GPU stage."""
        if self.torch is not None:
            self.torch.own(member)

    def close(self) -> None:
        if self.torch is not None:
            self.torch.own(None)

    def _route_numpy(self, routes: ThreadRoutes) -> None:
        owner: Any = sys.modules["numpy"].random
        plain = owner.mtrand._rand
        names = {n: n for n in dir(owner) if getattr(getattr(owner, n), "__self__", None) is plain} | _NUMPY_ALSO
        for name, method in names.items():
            routes.replace(owner, name, _by_member(plain, method, "numpy"))

    def _route_torch(self, routes: ThreadRoutes, torch: Any, streams: TorchStreams) -> None:
        def route(owner: Any, names: tuple[str, ...]) -> None:
            for name in names:
                if hasattr(owner, name):
                    routes.replace(owner, name, streams.around(getattr(owner, name)))

        route(torch, _TORCH)
        route(torch._VF, _TORCH)
        route(torch.Tensor, _TENSOR)
        route(torch.nn.functional, ("scaled_dot_product_attention", "rrelu", "rrelu_"))
        route(torch, _STATE)
        route(torch.random, _STATE)
        route(torch.cuda, _CUDA_STATE)
        route(torch.cuda.random, _CUDA_STATE)


def _by_member(plain: Any, name: str, library: str) -> Callable[..., Any]:
    default = getattr(plain, name)

    def routed(*args: Any, **options: Any) -> Any:
        member = here()
        own = None if member is None else member.streams.get(library)
        return (default if own is None else getattr(own, name))(*args, **options)

    return routed
