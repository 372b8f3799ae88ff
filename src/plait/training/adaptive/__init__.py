"""Adapt the batch size and learning rate of a job to its resources.

from plait.training.adaptive import Accumulator, Adaptive, AdaptiveDataLoader

loader = AdaptiveDataLoader(dataset, 128, max_batch_size=4096, shuffle=True)
adaptive = Adaptive(job, model, optimizer, loader)
for epoch in loader.remaining_epochs(10):
    for batch in loader:
        ...                                        # the usual loop
"""

from plait.training.adaptive.loader import AdaptiveDataLoader, AdaptiveLoader, TokenGroups, TokenStream
from plait.training.adaptive.ranks import Accumulator
from plait.training.adaptive.wrapper import Adaptive, parallelize

__all__ = [
    "Accumulator",
    "Adaptive",
    "AdaptiveDataLoader",
    "AdaptiveLoader",
    "TokenGroups",
    "TokenStream",
    "parallelize",
]
