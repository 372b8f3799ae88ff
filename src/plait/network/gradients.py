"""Bytes of the gradients of a model, by its name, and when its layers have them. Start at `gradient_bytes`.

Public traces have no network columns. Where the name of a model is known, its bytes follow from its number of
parameters; otherwise they are drawn, and the seed of the draw belongs into the results.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence

import numpy as np

from plait.core.arrays import FloatArray

#: Where the time of an exchange follows from bytes, it takes at most this part of an iteration alone: sizes are cut to
#: that. A network stage that was measured stays as it is.
MOST_EXCHANGE = 0.9
#: Bytes of a value: fp32, or fixed point of 32 bits.
VALUE_BYTES = 4

#: Parameters, in millions, of models by `model_key`. Public facts. The first eight are the models of the evaluations of
#: in-network aggregation; the others occur in traces that plait reads or ships (`traces/data/tensors.README.md` has
#: their definitions; Inception after Szegedy et al. 2016 and 2017, without auxiliary classifiers).
PARAMETERS_M: Mapping[str, float] = {
    "alexnet": 61.1,
    "vgg16": 138.4,
    "vgg19": 143.7,
    "resnet50": 25.6,
    "resnet101": 44.5,
    "resnet152": 60.2,
    "bertbase": 110.0,
    "bertlarge": 340.0,
    "vgg11": 132.9,
    "resnet18": 11.7,
    "inception3": 23.8,
    "inception4": 42.7,
    "shufflenetv2x10": 2.28,
    "bert": 109.5,
    "gpt2": 124.4,
    "a2c": 1.69,
    "dqn": 1.69,
    "cifar10": 11.2,
    "imagenet": 25.6,
    "ncf": 1.60,
    "yolov3": 61.6,
    "deepspeech2": 41.2,
}

#: Bytes of the gradients of these models.
BY_MODEL: Mapping[str, int] = {key: round(millions * 1e6) * VALUE_BYTES for key, millions in PARAMETERS_M.items()}

#: Of the computation of an iteration, the backward pass: twice as many multiplications as forwards.
BACKWARD = 2 / 3
#: Percent of the backward pass after which one, two, ... ten tenths of the gradients of a model are there, by the
#: parameters and multiplications of its layers, the last one first (images of 224 x 224, sequences of 512 words, GPT-2
#: of 1,024). Nearly all parameters of VGG are in its last layers; word embeddings are a first layer, and come last.
READY: Mapping[str, tuple[int, ...]] = {
    "vgg11": (0, 2, 2, 2, 2, 2, 2, 2, 2, 100),
    "vgg16": (0, 1, 1, 1, 1, 1, 1, 1, 4, 100),
    "vgg19": (0, 1, 1, 1, 1, 1, 1, 1, 8, 100),
    "alexnet": (3, 3, 3, 8, 8, 8, 8, 8, 8, 100),
    "resnet18": (6, 6, 13, 13, 20, 20, 23, 29, 42, 100),
    "resnet50": (1, 4, 9, 11, 13, 17, 25, 37, 49, 100),
    "resnet101": (2, 5, 8, 13, 24, 35, 46, 57, 69, 100),
    "resnet152": (2, 5, 9, 20, 29, 40, 50, 60, 71, 100),
    "bertbase": (34, 47, 54, 67, 73, 87, 93, 100, 100, 100),
    "bertlarge": (20, 32, 39, 51, 62, 70, 81, 92, 100, 100),
    "gpt2": (40, 52, 64, 70, 82, 94, 100, 100, 100, 100),
}
SAME_LAYERS = {"bert": "bertbase", "imagenet": "resnet50"}
#: Of other models: as many gradients in each part of the backward pass.
EVENLY = (10, 20, 30, 40, 50, 60, 70, 80, 90, 100)

#: Bytes of unknown models lie between those of ResNet-50 and of BERT-large.
LEAST_BYTES, MOST_BYTES = BY_MODEL["resnet50"], BY_MODEL["bertlarge"]


def model_key(model: str) -> str:
    """The name of a model in lower case, with nothing but letters and digits.

    >>> model_key("ResNet-50"), model_key("shufflenet_v2_x1_0")
    ('resnet50', 'shufflenetv2x10')
    """
    return "".join(letter for letter in model.lower() if letter.isalnum())


def gradient_bytes(model: str | None, seed: int) -> int:
    """Bytes of one gradient of a model, fp32.

    A model of `BY_MODEL` has four bytes for each parameter. Another one gets a number that depends on its name and the
    seed alone: `LEAST_BYTES` to `MOST_BYTES`, uniform in the logarithm, a multiple of four (our design). All jobs
    without a model (None or "") have the same; give the name of the job instead if they should differ.

    >>> gradient_bytes("VGG16", seed=1)
    553600000
    >>> gradient_bytes("mine", seed=1) == gradient_bytes("mine", seed=1) != gradient_bytes("mine", seed=2)
    True
    """
    key = model_key(model or "")
    known = BY_MODEL.get(key)
    if known is not None:
        return known
    digest = hashlib.blake2b(f"{seed}\ngradient\n{key}".encode(), digest_size=8).digest()
    draw = (int.from_bytes(digest, "little") >> 11) * 2.0**-53  # uniform in [0, 1)
    values: float = LEAST_BYTES * (MOST_BYTES / LEAST_BYTES) ** draw / VALUE_BYTES
    return math.floor(values) * VALUE_BYTES


def overlap_of_layers(models: Sequence[str]) -> FloatArray:
    """How exchanges overlap that go layer by layer, shape (10, 2, models), as `fluid.iterations.exposed_s` takes it.

    A tenth of the gradients is sent as soon as the backward pass has it, and the next iteration begins with all sums:
    as DDP does, whose buckets are of 25 MiB. Our design.
    """
    keys = [model_key(model) for model in models]
    ready = np.array([READY.get(SAME_LAYERS.get(key, key), EVENLY) for key in keys]).reshape(-1, 10).T / 100
    left = np.broadcast_to(np.arange(10, 0, -1)[:, None] / 10, ready.shape)
    return np.stack([left, BACKWARD * (1 - ready)], axis=1)
