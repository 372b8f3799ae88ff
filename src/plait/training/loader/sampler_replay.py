"""Replay the order of an epoch's data, so that a resumed job continues at its position.

The random streams at the start of the sampler determine the order. Their state is recorded then; to resume, it is
restored, the sampler starts again, and finished batches are skipped as indices, so no sample is loaded in vain. The
last batch before the checkpoint is compared: an order from another source is an error.
"""

from __future__ import annotations

import pickle
import random
import zlib
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from itertools import chain, count
from typing import Any

import numpy as np
import torch
from torch.utils.data import BatchSampler, DataLoader, Sampler

from plait.core.errors import InputError
from plait.training.state import random_streams

# State that a sampler keeps in its attributes: generators of its own, weights, counters, orders.
#
# Saved are the attributes of a sampler, and of samplers inside it, that have changed since the loader was wrapped; a
# sampler that stays as it was built adds nothing to a checkpoint. Attributes that hold data sets or other objects stay
# as they are.

#: Attributes that hold the data.
DATA = ("data_source", "dataset")
#: The first items of a container that are examined to find out what it holds.
EXAMINED = 8
_PLAIN = (int, float, str, bytes, type(None))


#: A copy of an attribute: its pickle, and whether it is a generator or a number, which the sampler itself advances.
#: Plain types, because some libraries load their checkpoints without any others.
Value = tuple[bytes, bool]


class SamplerState:
    """The attributes of a sampler that change."""

    def __init__(self, sampler: Any) -> None:
        self._sampler = sampler
        self._built = self._take()

    def save_all(self) -> None:
        """Save all attributes from now on: a new process may build the sampler in another state."""
        self._built = {}

    def changes(self) -> dict[str, Value]:
        """The attributes that differ from those recorded at first, by path."""
        return {path: value for path, value in self._take().items() if value != self._built.get(path)}

    def put(self, changes: Mapping[str, Value], *, draws: bool = True) -> None:
        """Restore the result of `changes`, in place; without `draws`, generators and numbers stay as they are."""
        now = self._take()
        for path, value in {**self._built, **changes}.items():
            pickled, drawn = value
            if value != now.get(path) and (draws or not drawn):
                owner: Any = self._sampler
                *names, last = path.split(".")
                for name in names:
                    owner = getattr(owner, name)
                _put(owner, last, pickle.loads(pickled))

    def _take(self) -> dict[str, Value]:
        return {
            path + name: copied
            for path, owner in self._owners()
            for name, value in vars(owner).items()
            if name not in DATA and (copied := _copied(value)) is not None
        }

    def _owners(self) -> Iterator[tuple[str, Any]]:
        """The sampler and those inside it, each with the beginning of its paths."""
        found = [("", self._sampler)]
        for path, owner in found:
            if not hasattr(owner, "__dict__"):
                continue
            yield path, owner
            for name, inner in vars(owner).items():
                nested = name in ("sampler", "batch_sampler") or isinstance(inner, Sampler)
                if nested and all(inner is not other for _, other in found):
                    found.append((f"{path}{name}.", inner))


def _copied(value: Any) -> Value | None:
    """A copy of the value; None if it is neither plain data nor a generator, or cannot be copied."""
    try:
        if isinstance(value, torch.Generator):
            return (pickle.dumps(value.get_state().numpy()), True)
        if isinstance(value, (*_PLAIN, np.random.Generator, np.random.RandomState, random.Random)):
            return (pickle.dumps(value), True)
        if isinstance(value, torch.Tensor) and value.device.type == "cpu" and value.layout == torch.strided:
            return (pickle.dumps(value.detach().numpy()), False)
        return (pickle.dumps(value), False) if _is_data(value) else None
    except Exception:  # `random.SystemRandom` has no state, NumPy no bfloat16, and a list may hold anything further on
        return None


def _is_data(value: Any) -> bool:
    """True for an array, or a container of numbers, texts, and such containers."""
    if isinstance(value, np.ndarray):
        return bool(value.dtype != object)
    if type(value) not in (list, tuple, set, deque, dict):
        return isinstance(value, (*_PLAIN, np.generic))
    items = [item for pair in value.items() for item in pair] if isinstance(value, dict) else value
    return all(_is_data(item) for _, item in zip(range(EXAMINED), items, strict=False))


def _put(owner: Any, name: str, value: Any) -> None:
    """Write the value into the attribute, into the same object if that is possible: the script may hold it, too."""
    here: Any = getattr(owner, name, None)
    if isinstance(here, torch.Generator):
        here.set_state(torch.from_numpy(value))
    elif isinstance(here, torch.Tensor) and isinstance(value, np.ndarray):
        if here.shape == value.shape:
            here.detach().copy_(torch.from_numpy(value))
        else:
            setattr(owner, name, torch.from_numpy(value))
    elif here is None or type(here) is not type(value):
        setattr(owner, name, value)
    elif isinstance(here, np.random.Generator):
        here.bit_generator.state = value.bit_generator.state
    elif isinstance(here, np.random.RandomState):
        here.set_state(value.get_state())
    elif isinstance(here, random.Random):
        here.setstate(value.getstate())
    elif isinstance(here, np.ndarray) and here.shape == value.shape:
        here[...] = value
    elif isinstance(here, (list, deque)):
        here.clear()
        here.extend(value)
    elif isinstance(here, (dict, set)):
        here.clear()
        here.update(value)
    else:
        setattr(owner, name, value)


#: More batches than any loader fetches ahead, and than any trainer does. Indices that are kept cost a short step.
FETCHED_AHEAD, USED_AHEAD = 4096, 8


class Indices(list[Any]):
    """The indices of a batch, with the seed of its random streams."""

    seed = 0

    def __reduce__(self) -> tuple[Any, ...]:
        return indices_of, (list(self), self.seed)


def indices_of(values: list[Any], seed: int) -> Indices:
    """Attach the seed `seed` of random streams to indices."""
    made = Indices(values)
    made.seed = seed
    return made


class Order:
    """The batches of a sampler, which can be replayed from the recorded start of its streams.

    Loader workers receive `Indices`, others what the sampler yields.
    """

    def __init__(self, sampler: Any, generators: list[Any], *, batched: bool) -> None:
        """Wrap a sampler of indices, or of batches if `batched`, which may draw from `generators`."""
        self._given_sampler, self.generators, self._batched = sampler, generators, batched
        self.sampler = getattr(sampler, "sampler", sampler)  # where trainers look for set_epoch
        self.number = 0  # of the pass
        self.start: dict[str, Any] | None = None
        self.state = SamplerState(sampler)
        self.prefetched = False  # whether workers may have requested more than was used
        self._tried: set[bool] = set()  # whether a replay was tried in the first pass, and in a later one
        self._repeats = True
        self._replay: tuple[int, Any, bool] = (0, None, False)
        self._now: dict[str, Any] = {}  # changes of the sampler at the checkpoint
        self._given: dict[int, list[Any]] = {}  # what was handed out, by number

    def __len__(self) -> int:
        return len(self._given_sampler)

    @property
    def kind(self) -> str:
        """The type of the sampler, or of the one inside a plain batch sampler."""
        inner = self._given_sampler
        return type(inner.sampler if type(inner) is BatchSampler else inner).__name__

    @property
    def length(self) -> int | None:
        """Batches in a pass; None if the sampler has no length."""
        try:
            return len(self._given_sampler)
        except (TypeError, NotImplementedError):
            return None

    @contextmanager
    def replay(self, state: dict[str, Any] | None) -> Iterator[None]:
        """Context in which `iter` skips the batches finished in `state`; loaders with workers call it twice."""
        if state is None:
            self.number += 1
        else:
            self.number, self.start = state["number"], state["start"]
            cycled = state.get("cycled")
            done = state["done"] if cycled is None else cycled
            self._replay = done, state.get("last"), cycled is not None
            self._now = state.get("sampler", {})
        yield
        self._replay = 0, None, False

    def at(self, done: int) -> list[Any] | None:
        """The `done`th batch; earlier ones are dropped."""
        self._given = {number: batch for number, batch in self._given.items() if number >= done - 1}
        return self._given.get(done - 1)

    def repeats(self, done: int) -> bool:
        """True if a resume after `done` batches would find the same order; tried in the first pass and in a later one.

        A replay takes as long as the sampler does for these batches. It leaves streams and sampler as they were.
        """
        first = self.number == 1
        if done and self.start is not None and first not in self._tried:
            self._tried.add(first)
            streams, now = random_streams.capture(self.generators), self.state.changes()
            random_streams.restore(self.start, self.generators)
            self.state.put(self.start["sampler"])
            again = iter(self._given_sampler)
            for number in range(done):
                batch = self._next(again)
                self._repeats &= batch is not None and batch == list(self._given.get(number, batch))
                if not self._repeats:
                    break
            self.state.put(now)
            random_streams.restore(streams, self.generators)
        return self._repeats

    def __iter__(self) -> Iterator[Any]:
        self._given = {}
        done, last, cycled = self._replay
        if not done and not cycled:
            return self._batches(count())
        assert self.start is not None
        random_streams.restore(self.start, self.generators)
        self.state.put(self.start.get("sampler", {}))
        if cycled:  # an `itertools.cycle` goes on: the rest of the pass, and then its beginning, over and over
            order = list(self._all())
            self.state.put(self._now)
            at = done % len(order)
            return self._batches(chain(range(at, len(order)), range(at)), iter([*order[at:], *order[:at]]))
        batches, skipped = self._all(), None
        for _ in range(done):
            skipped = next(batches, None)
        self.state.put(self._now, draws=not self.prefetched)
        if skipped is None or (last is not None and skipped != list(last)):
            raise InputError(
                f"{self.kind} does not repeat its order, so no epoch can go on after batch "
                f"{done}: let it draw from the random streams or from the loader's generator= when it is started and "
                "not later, and call set_epoch(epoch), if it has that, before each epoch"
            )
        return self._batches(count(done), batches)

    def _batches(self, numbers: Iterator[int], batches: Iterator[Any] | None = None) -> Iterator[Any]:
        """Yield the batches of a pass, which have these numbers; `batches`: None for a pass from its beginning.

        The sampler is exhausted before the batch that ends a pass is yielded: see `_all`.
        """
        batched = self._batched or batches is not None
        if batches is None:  # late, because some samplers draw in `iter` and some in the first `next`
            self.start = random_streams.capture(self.generators) | {"sampler": self.state.changes()}
            batches = iter(self._given_sampler)
        assert self.start is not None
        seed, last, given = pass_seed(self.start, self.number), (self.length or 0) - 1, self._given
        ahead = FETCHED_AHEAD if self.prefetched else USED_AHEAD
        indices = next(batches, None)
        while indices is not None:
            number = next(numbers)
            later = next(batches, None) if number == last else None
            kept = given[number] = list(indices) if batched else [indices]
            given.pop(number - ahead, None)
            if self.prefetched:
                yield indices_of(kept, (seed * 1_000_003 + number) & 0x7FFFFFFF)
            else:
                yield indices if batched else kept
            indices = next(batches, None) if later is None else later

    def _all(self) -> Iterator[list[Any]]:
        """Yield the batches of the sampler; it is exhausted before the last one is yielded.

        What it draws at its end belongs to this pass, even if the script requests nothing after the last batch or the
        job stops there. With workers, which fetch ahead, this is always so.
        """
        batches, length, number = iter(self._given_sampler), self.length, 1
        indices = self._next(batches)
        while indices is not None:
            later = self._next(batches) if number == length else None
            yield indices
            indices, number = self._next(batches) if later is None else later, number + 1

    def _next(self, batches: Iterator[Any]) -> list[Any] | None:
        indices = next(batches, None)
        return None if indices is None else list(indices) if self._batched else [indices]


def pass_seed(start: dict[str, Any], number: int) -> int:
    """A number that a pass has for itself and that a replay of it has too."""
    return zlib.crc32(start["torch"].numpy().tobytes(), number)


def generators_of(loader: DataLoader[Any]) -> list[Any]:
    """The torch generators that may determine the order of a loader, each once; also of nested samplers."""
    found: dict[int, Any] = {}
    owners: list[Any] = [loader]
    for owner in owners:
        generator = getattr(owner, "generator", None)
        if generator is not None:
            found[id(generator)] = generator
        inner = [getattr(owner, name, None) for name in ("sampler", "batch_sampler")]
        owners += [sampler for sampler in inner if sampler is not None and all(sampler is not o for o in owners)]
    return list(found.values())


def fingerprint(batch: Any) -> int:
    """A number that identifies a batch: by shapes, and up to 64 values of each integer tensor.

    Other values do not count: where training and loading draw from the same streams, augmented values differ in a
    replay, which is no error if the items are the same. Does not wait for tensors on other devices.
    """
    if isinstance(batch, torch.Tensor):
        mark = zlib.crc32(repr((batch.shape, batch.dtype)).encode())
        whole = not (batch.is_floating_point() or batch.is_complex())
        if whole and batch.device.type == "cpu" and batch.numel() and batch.layout == torch.strided:
            some = batch.reshape(-1)[:: max(batch.numel() // 64, 1)][:64].tolist()
            mark = zlib.crc32(repr(some).encode(), mark)
        return mark
    if isinstance(batch, Mapping):
        batch = list(batch.values())
    if isinstance(batch, list | tuple):
        return zlib.crc32(repr([fingerprint(part) for part in batch[:8]]).encode())
    return zlib.crc32(repr(batch).encode()) if isinstance(batch, int | str | bytes) else 0
