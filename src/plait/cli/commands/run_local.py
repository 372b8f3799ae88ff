"""`plait run`: one command under the training library, without a service."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def run(
    command: Annotated[list[str], typer.Argument(metavar="[--] COMMAND...", help="The program and its arguments.")],
    folder: Annotated[Path, typer.Option(help="Folder of checkpoints; the next run resumes from them.")] = Path(
        ".plait-run"
    ),
    checkpoint_s: Annotated[float, typer.Option("--checkpoint", min=0.1, help="Seconds between checkpoints.")] = 60.0,
) -> None:
    """Run a training script here, without a service.

    Counts its steps, measures its stages and writes checkpoints; the next run resumes from them exactly.

    \b
    plait run -- python train.py
    """
    import os
    import signal
    import subprocess

    from plait.core.errors import InputError
    from plait.live.agent.processes.launch import environment, prepare
    from plait.live.layout import Layout, make_private
    from plait.live.protocol.wire import GroupInfo, Run
    from plait.live.system import procs
    from plait.runtime.page import Page

    layout = Layout(folder.resolve())
    make_private(layout.home)
    epochs = layout.epoch_file(0)
    last = int(epochs.read_text()) if epochs.exists() else 0
    epoch = last + 1
    task = Run(0, epoch, 0, 1, command, [], GroupInfo("alone"), str(Path.cwd()), checkpoint_s=checkpoint_s)
    place = prepare(task, layout)
    epochs.write_text(str(epoch))
    env = environment(task, layout, None, 0)
    for name in (procs.MARK, "CUDA_VISIBLE_DEVICES", "OMP_NUM_THREADS"):  # only service jobs need the others
        env.pop(name, None)
        if name in os.environ:
            env[name] = os.environ[name]
    try:
        child = subprocess.Popen(command, env=env)
    except OSError as error:
        raise InputError(f"cannot run {command[0]!r}: {error.strerror}; give the program after --") from error
    signal.signal(signal.SIGTERM, lambda number, frame: child.send_signal(number))
    while True:
        try:
            code = child.wait()
            break
        except KeyboardInterrupt:
            continue  # the child gets it too and decides when to end
    page = Page.open(place / "page.bin")
    try:
        typer.echo(f"plait: {_summary(page)}", err=True)
    finally:
        page.close()
    raise typer.Exit(code if code >= 0 else 128 - code)


def _summary(page: object) -> str:
    from plait.core.resources import Resource
    from plait.core.words import number

    steps = number(getattr(page, "steps", 0))
    if not steps:
        return "no optimizer step was seen"
    text = f"{steps:,.0f} steps, {1000 * number(getattr(page, 'step_s', None)):.1f} ms each lately"
    profile = getattr(page, "profile", None)
    stages = getattr(profile, "stage_s", None)
    if stages:
        parts = zip(Resource, stages, strict=True)
        text += "; alone: " + ", ".join(f"{r.name.lower()} {1000 * s:.1f} ms" for r, s in parts)
    return text
