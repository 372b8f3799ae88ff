"""Experiment trackers: their variables, which jobs get by default, and their addresses in the output of a job."""

from __future__ import annotations

import re

#: Beginnings of names of variables: keys and settings of trackers, and of the hubs that models come from.
VARIABLES = ("WANDB_", "MLFLOW_", "COMET_", "NEPTUNE_", "CLEARML_", "TENSORBOARD_", "HF_", "HUGGING_FACE_HUB_TOKEN")
#: What trackers print once a run has an address: Weights & Biases, TensorBoard, MLflow, Comet, Neptune, ClearML.
_ADDRESS = re.compile(
    r"(https?://[^\s\x1b]+/runs/[^\s\x1b]+)|TensorBoard \S+ at (https?://[^\s\x1b]+)|"
    r"(https?://(?:www\.comet\.com|app\.neptune\.ai|app\.clear\.ml)/[^\s\x1b]+)"
)
#: Addresses of a job, at most.
MOST = 10


def addresses_in(text: str) -> list[str]:
    r"""The addresses in a text, each once.

    >>> addresses_in("wandb: View run at https://wandb.ai/ann/nlp/runs/4f2.\nTensorBoard 2.19 at http://n1:6006/ (C)")
    ['https://wandb.ai/ann/nlp/runs/4f2', 'http://n1:6006/']
    """
    found = (next(filter(None, match.groups())) for match in _ADDRESS.finditer(text))
    return list(dict.fromkeys(one.rstrip(".,;:)]}'\"") for one in found))[:MOST]
