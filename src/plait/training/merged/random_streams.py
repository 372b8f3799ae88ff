"""Random streams of merged jobs: each job draws the numbers that it would draw alone.

Python's and NumPy's streams are objects, so each member has its own. Torch draws from one generator per device, in C++;
its state is swapped when another member draws: in every function of torch that draws or reads the state, and at the
beginning of each GPU stage (for code that draws by itself, such as a compiled graph). The functions hold a lock while
they draw, so no other member can interfere.

Code that draws outside GPU stages without one of these functions is not covered. An own generator (`job.rng`) is
always safe.
"""

from __future__ import annotations

import functools
import os
import random
import sys
import threading
from collections.abc import Callable
from typing import Any

from plait.training.device.cuda import torch_cuda
from plait.training.merged.routes import Routes
from plait.training.merged.thread_jobs import ThreadJob, here

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
        """Start with the states of the process."""
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
                self._put((self._plain if member is None else member.streams).get("torch", []))
                self._owner = member

    def _generators(self) -> list[Any]:
        """The generator of the CPU, then those of all GPUs once the process uses them."""
        cuda = torch_cuda()
        return [self._torch.default_generator, *(cuda.default_generators if cuda else ())]

    def _put(self, states: list[Any]) -> None:
        for i, generator in enumerate(self._generators()):
            if i < len(states):
                generator.set_state(states[i])
            else:
                generator.seed()  # as in a new process

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

    def __init__(self, routes: Routes) -> None:
        """Route the streams of libraries that are imported now, until `routes` is closed."""
        self.torch: TorchStreams | None = None
        self._route_python(routes)
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
        """Restore the streams of the process."""
        if self.torch is not None:
            self.torch.own(None)

    def _route_python(self, routes: Routes) -> None:
        plain: Any = random._inst
        for name in dir(random):
            if getattr(getattr(random, name), "__self__", None) is plain:
                routes.replace(random, name, _by_member(plain, name, "python"))

    def _route_numpy(self, routes: Routes) -> None:
        owner: Any = sys.modules["numpy"].random
        plain = owner.mtrand._rand
        names = {n: n for n in dir(owner) if getattr(getattr(owner, n), "__self__", None) is plain} | _NUMPY_ALSO
        for name, method in names.items():
            routes.replace(owner, name, _by_member(plain, method, "numpy"))

    def _route_torch(self, routes: Routes, torch: Any, streams: TorchStreams) -> None:
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
