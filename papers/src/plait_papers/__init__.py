"""Reproductions of published experiments: the published simulators, and published figures next to ours.

Start at `command`, the commands `plait reproduce PAPER`; `muri.world` and `pollux.world` are the two published
simulators. AntMan had none: `antman` runs its experiment in plait's own world. Entry points register all of them with
plait, as any other package may.
"""

from __future__ import annotations

from plait.cli.lazy import Entry
from plait.cli.render.console import SIMULATE

REPRODUCE = Entry(SIMULATE, "plait_papers.command:app", "Repeat a published evaluation and compare with its results.")
