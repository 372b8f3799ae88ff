"""Start a program under the training library, without a service, in the environment and the folder of the caller."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from plait.core.errors import InputError
from plait.live.agent.processes.launch import environment, prepare
from plait.live.layout import Layout, make_private
from plait.live.protocol.wire import GroupInfo, Run
from plait.live.system import procs


def next_attempt(layout: Layout) -> int:
    """The number of a new attempt, which is noted in the job's folder."""
    make_private(layout.home)
    epochs = layout.epoch_file(0)
    epoch = (int(epochs.read_text()) if epochs.exists() else 0) + 1
    make_private(layout.job(0))
    epochs.write_text(str(epoch))
    return epoch


def start(
    command: list[str],
    layout: Layout,
    epoch: int,
    *,
    checkpoint_s: float,
    rank: int = 0,
    world: int = 1,
    port: int = 0,
    also: Mapping[str, str] | None = None,
    **options: Any,
) -> tuple[subprocess.Popen[Any], Path]:
    """Start rank `rank` of `world` of the attempt `epoch`; returns the process and the folder of the rank.

    `also`: variables on top of the caller's; `options` are passed to `subprocess.Popen`. Raises `InputError` if the
    program cannot be run.
    """
    task = Run(
        *(0, epoch, rank, world, command, [], GroupInfo("alone"), str(Path.cwd())),
        env=dict(os.environ),
        checkpoint_s=checkpoint_s,
        local_rank=rank,
        local_world=world,
        master_port=port,
    )
    place = prepare(task, layout)
    env = environment(task, layout, None, 0)
    for name in (procs.MARK, "CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "OMP_NUM_THREADS"):  # a service chooses these
        env.pop(name, None)
        if name in os.environ:
            env[name] = os.environ[name]
    try:
        return subprocess.Popen(command, env=env | dict(also or {}), **options), place
    except OSError as error:
        raise InputError(f"cannot run {command[0]!r}: {error.strerror}; give the program after --") from error
