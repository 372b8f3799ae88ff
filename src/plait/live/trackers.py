"""Experiment trackers: their variables, which jobs get by default, and their addresses in the output of a job."""

from __future__ import annotations

import re

#: Beginnings of names of variables: keys and settings of trackers, and of the hubs that models come from.
VARIABLES = ("WANDB_", "MLFLOW_", "COMET_", "NEPTUNE_", "CLEARML_", "TENSORBOARD_", "HF_", "HUGGING_FACE_HUB_TOKEN")
#: An address, and what TensorBoard prints before its own. Both patterns take linear time: jobs print what they like.
_ADDRESS = re.compile(r"(TensorBoard \S{1,40} at )?(https?://[^\s\x1b]+)")
#: Addresses of a run, from their beginning: Weights & Biases and MLflow have /runs/; Comet, Neptune, ClearML.
_RUN = re.compile(r"https?://(?:(?:www\.comet\.com|app\.neptune\.ai|app\.clear\.ml)/|\S+?/runs/)\S")
#: Maximum number of addresses of a job, and of characters of an address.
MOST, LONGEST = 10, 2000


def addresses_in(text: str) -> list[str]:
    r"""The addresses in a text, each once.

    >>> addresses_in("wandb: View run at https://wandb.ai/ann/nlp/runs/4f2.\nTensorBoard 2.19 at http://n1:6006/ (C)")
    ['https://wandb.ai/ann/nlp/runs/4f2', 'http://n1:6006/']
    """
    found = (url for board, url in _ADDRESS.findall(text) if len(url) <= LONGEST and (board or _RUN.match(url)))
    return list(dict.fromkeys(url.rstrip(".,;:)]}'\"") for url in found))[:MOST]
