"""Load data for jobs whose number of ranks and batch size change: every sample once in a pass.

    loader = AdaptiveDataLoader(dataset, 128, max_batch_size=4096, local_batch=(32, 256), shuffle=True)
    for epoch in job.epochs(10):              # ten passes over the data; loader.remaining_epochs(10) gives
        for x, y in loader:                   # the progress of ten epochs at batch 128, in as many passes
            ...

After a restart a pass continues with any number of ranks. The batch changes between two optimizer steps, by decision
of rank 0. Outside plait, and on one process, the number of ranks stays fixed and everything else works.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

from torch.utils.data import DataLoader, IterableDataset

from plait.core.errors import InputError
from plait.training.adaptive.base import INTERVAL_S, AdaptiveLoader
from plait.training.adaptive.data.plan import Plan
from plait.training.loader.loader import marked
from plait.training.loader.prefetch import Untimed
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

        `batch_size` is the total batch of an optimizer step, over all ranks, for which the learning rate was tuned;
        `max_batch_size` is the largest allowed (the same if None); `local_batch` the least and most examples of one
        rank in one pass (None: limited by the total only); `accumulation`: whether several passes may make a step.
        Without `batch_size`, all four are those of the submission (`plait submit --batch-size`). `shuffle`: draw an
        order for each epoch from `seed`. `interval_s`: seconds > 0 between two checks for a better batch. Other
        `options` are those of DataLoader.

        Raises `InputError` for iterable data sets, contradictory bounds, invalid intervals, and options that would
        determine the order of samples.
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
        self._timer = Untimed()

    def batches(self, plan: Plan) -> Iterator[Any]:
        """See `AdaptiveLoader.batches`."""
        if self._inner is None:
            self._inner = self._make(plan)
        return iter(partial(self._timer.time, partial(next, iter(self._inner), _END)), _END)

    def _make(self, plan: Plan) -> DataLoader[Any]:
        """Create the inner loader, which keeps persistent workers from pass to pass."""
        job, options, dataset = self._job, dict(self._options), self.dataset
        if job is not None:
            workers = int(options.get("num_workers", 0))
            dataset, self._timer = marked(job, dataset, workers)
            options["worker_init_fn"] = partial(ignore_in_worker, options.get("worker_init_fn"))
        return DataLoader(dataset, batch_sampler=plan, **options)
