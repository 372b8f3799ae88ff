"""`plait run` and `plait rehearse`: one command under the training library, without a service."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from plait.core.words import number

if TYPE_CHECKING:
    from plait.cli.rehearsal import Verdict

Command = Annotated[list[str], typer.Argument(metavar="[--] COMMAND...", help="The program and its arguments.")]
Steps = Annotated[int, typer.Option("--steps", min=4, help="Steps to compare at most; shorter scripts run whole.")]
Stops = Annotated[int, typer.Option("--stops", min=1, max=20, help="How often the script is stopped and resumed.")]
Ranks = Annotated[int, typer.Option("--ranks", min=1, help="Processes, as of a job of several GPUs.")]
Seed = Annotated[int, typer.Option("--seed", help="Draws the steps of the stops.")]
Json = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]


def run(
    command: Command,
    folder: Annotated[Path, typer.Option(help="Folder of checkpoints; the next run resumes from them.")] = Path(
        ".plait-run"
    ),
    checkpoint_s: Annotated[float, typer.Option("--checkpoint", min=0.1, help="Seconds between checkpoints.")] = 60.0,
    rehearsal: Annotated[
        bool, typer.Option("--rehearse", help="Check that the script resumes, as `plait rehearse`.")
    ] = False,
) -> None:
    """Run a training script here, without a service.

    Counts its steps, measures its stages and writes checkpoints; the next run resumes from them exactly. The script
    has the environment and the folder of the shell.

    \b
    plait run -- python train.py
    """
    if rehearsal:
        rehearse(command)
    import signal

    from plait.cli.rehearsal import next_attempt, start
    from plait.live.layout import Layout
    from plait.runtime.page import Page

    layout = Layout(folder.resolve())
    child, place = start(command, layout, next_attempt(layout), checkpoint_s=checkpoint_s)
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


def rehearse(
    command: Command,
    steps: Steps = 200,
    stops: Stops = 1,
    ranks: Ranks = 1,
    seed: Seed = 0,
    as_json: Json = False,
) -> None:
    """Check that a training script resumes exactly.

    Trains undisturbed, trains with a stop, and compares each step. Names the first step that differs and the likely
    cause. Exit code: 0 it resumes, 1 it does not. Checkpoints go to a scratch folder, and
    files that the script writes are put back afterwards.

    \b
    plait rehearse -- python train.py
    """
    import json
    import tempfile

    from plait.cli.rehearsal import rehearse as rehearsed

    def report(text: str) -> None:
        typer.echo(f"plait: {text}", err=True)

    with tempfile.TemporaryDirectory(prefix="plait-rehearsal-") as scratch:
        verdict = rehearsed(command, Path(scratch), steps=steps, stops=stops, seed=seed, ranks=ranks, report=report)
    typer.echo(json.dumps(verdict.to_json(), indent=2) if as_json else _verdict(verdict))
    raise typer.Exit(0 if verdict.resumes else 1)


def _verdict(verdict: Verdict) -> str:
    until = "the whole script" if verdict.finished else "the script goes on; compare more with --steps"
    stops = f"stopped after step {', '.join(map(str, verdict.stops))}"
    compared = f"{verdict.steps} steps ({until}), {stops}"
    if verdict.resumes:
        alike = "bit for bit" if verdict.noise_from is None else "within the noise of two undisturbed runs"
        lines = [
            f"It resumes: batches, losses, learning rates and weights are equal {alike}.",
            f"  compared: {compared}",
        ]
    else:
        lines = [f"It does not resume: {verdict.problem}."]
        lines += [f"  likely cause: {text}" for text in verdict.causes]
        lines.append(f"  compared: {compared}")
    if verdict.repeated:
        lines.append(f"  repeated after the stops: {verdict.repeated} steps")
    if verdict.noise_from is not None:
        lines.append(
            f"  not deterministic: two undisturbed runs differ from step {verdict.noise_from} on, so small differences "
            "cannot be seen (torch.use_deterministic_algorithms, seeds, one thread)"
        )
    effect = "without effect in these steps" if verdict.resumes else "also"
    lines += [f"  note, {effect}: {text}" for text in verdict.notes]
    if verdict.resumes:
        lines += [f"  not tried: {text}" for text in verdict.untried]
    if verdict.put_back:
        shown = ", ".join(verdict.put_back[:3]) + (" ..." if len(verdict.put_back) > 3 else "")
        lines.append(f"  files that the script wrote, put back as they were: {shown}")
    return "\n".join(lines)


def _summary(page: object) -> str:
    from plait.core.resources import Resource

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
