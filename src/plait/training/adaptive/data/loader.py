"""Loading for jobs whose number of ranks and batch size change: every sample once in a pass, whatever changes.

    loader = AdaptiveDataLoader(dataset, 128, max_batch_size=4096, local_batch=(32, 256), shuffle=True)
    for epoch in job.epochs(10):              # ten passes over the data; or loader.remaining_epochs(10): as much
        for x, y in loader:                   # progress as ten epochs at batch 128, in more passes if need be
            ...

A pass goes on after a restart with any number of ranks. Changes of the batch come between two optimizer steps, decided
by rank 0. Outside plait, and on one process, all works but the number of ranks stays.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

from torch.utils.data import DataLoader, IterableDataset

from plait.core.errors import InputError
from plait.training.adaptive.base import INTERVAL_S, AdaptiveLoader
from plait.training.adaptive.data.plan import Plan
from plait.training.loader.loader import Fetching
from plait.training.loader.prefetch import Marked
from plait.training.stopping import ignore_in_worker

_END = object()


class AdaptiveDataLoader(AdaptiveLoader):
    """A torch DataLoader over a map-style data set, with batches that follow the resources of the job."""

    def __init__(
        self,
        dataset: Any,
        batch_size: int | None = None,
        *,
        max_batch_size: int | None = None,
        local_batch: tuple[int, int | None] = (1, None),
        accumulation: bool = False,
        shuffle: bool = False,
        seed: int = 0,
        interval_s: float = INTERVAL_S,
        **options: Any,
    ) -> None:
        """Load `dataset`, which has `__len__` and `__getitem__`.

        `batch_size` is the total batch of an optimizer step that the learning rate was tuned for, over all ranks;
        `max_batch_size` the largest allowed (the same if None); `local_batch` the least and most examples of one rank
        in one pass (None: no limit but the total); `accumulation`: whether several passes may make a step. Without
        a `batch_size` all four are those with which the job was submitted (`plait submit --batch-size`). `seed`
        decides the order if it is to `shuffle`, another in each epoch. `interval_s` lies between two looks at whether
        another batch would do better, in seconds > 0. Other `options` are DataLoader's.

        Raises `InputError` for iterable data sets, for bounds and intervals that cannot be, and for options that would
        say which samples come when.
        """
        if isinstance(dataset, IterableDataset) or not hasattr(dataset, "__getitem__"):
            raise InputError(
                f"AdaptiveDataLoader({type(dataset).__name__}): a stream has no positions that could be "
                "redistributed over another number of ranks; give a data set with __len__ and __getitem__, or keep the "
                "number of GPUs (plait submit --gpus) and use job.wrap_loader(DataLoader(...))"
            )
        wrong = sorted({"sampler", "batch_sampler", "drop_last"} & options.keys())
        if wrong or options.get("in_order") is False:
            raise InputError(
                f"AdaptiveDataLoader({', '.join(wrong) or 'in_order=False'}): it decides the order of samples itself, "
                "each once in a pass; choose the order by shuffle= and seed=, and leave samples out in the data set"
            )
        super().__init__(
            len(dataset),
            batch_size,
            max_batch_size=max_batch_size,
            local_batch=local_batch,
            accumulation=accumulation,
            shuffle=shuffle,
            seed=seed,
            interval_s=interval_s,
        )
        self.dataset = dataset
        self._options = options
        self._inner: DataLoader[Any] | None = None
        self._fetching: Fetching | None = None

    def batches(self, plan: Plan) -> Iterator[Any]:
        """See `AdaptiveLoader.batches`."""
        if self._inner is None:
            self._inner = self._make(plan)
        fetching, batches = self._fetching, iter(self._inner)
        if fetching is None:
            return batches
        return iter(partial(fetching.next, batches, _END), _END)

    def _make(self, plan: Plan) -> DataLoader[Any]:
        """A loader that keeps its workers, if they are persistent, from pass to pass."""
        job, options, dataset = self._job, dict(self._options), self.dataset
        if job is not None:
            workers = int(options.get("num_workers", 0))
            dataset = Marked(dataset, workers, job.stages)
            self._fetching = Fetching(job, dataset, workers)
            options["worker_init_fn"] = partial(ignore_in_worker, options.get("worker_init_fn"))
        return DataLoader(dataset, batch_sampler=plan, **options)
