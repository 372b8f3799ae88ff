"""`plait explain`, `plait fidelity`: why a job waits, when it ends, and whether such forecasts come true."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any

import typer

from plait.cli.jobs import JobArgument
from plait.cli.live import HomeOption, JsonFlag, client, duration, print_json, print_table

if TYPE_CHECKING:
    from plait.forecast.eta import Eta, Forecast, Interval

#: What a start costs in forecasts, seconds: a process that imports PyTorch.
START_UP_S = 3.0


def explain(
    job: JobArgument,
    eta: Annotated[bool, typer.Option(help="Play the queue forward for an estimate of start and end.")] = True,
    seed: Annotated[int, typer.Option(help="Of what nobody knows.")] = 0,
    home: HomeOption = None,
    as_json: JsonFlag = False,
) -> None:
    """Say why a job waits and what would start it now; or how a running one shares; and when it will end."""
    from plait.live.client import FINAL
    from plait.live.layout import job_number

    with client(home) as service:
        found = service.explain(job)
        state = service.state() if eta and found.get("state") not in FINAL else None
    number = found.get("number", job_number(str(found.get("id", job))))
    foreseen = None if state is None else foresee(state, seed)
    mine = None if foreseen is None or number is None else foreseen.etas.get(int(number))
    if as_json:
        print_json({**found, "eta": _eta_json(foreseen, mine)})
        return
    for line in explanation_lines(found):
        typer.echo(line)
    if foreseen is not None and mine is not None:
        for line in eta_lines(foreseen, mine):
            typer.echo(line)


def foresee(state: dict[str, Any], seed: int = 0) -> Forecast | None:
    """The forecast of an answer of /v1/state, by the jobs' own numbers; None where no node is there."""
    from plait.forecast.eta import forecast
    from plait.forecast.queue import controller_of

    if state.get("controller") is None:
        return None
    make = controller_of(state)
    found = forecast(make, round_s=float(state.get("round_s") or 0.0), start_up_s=START_UP_S, seed=seed)
    numbers = state.get("job_numbers")
    return found if numbers is None else replace(found, etas={numbers[i]: eta for i, eta in found.etas.items()})


def explanation_lines(found: dict[str, Any]) -> list[str]:
    """The service's explanation for people: a headline, what blocks it in order, what would start it, its stages."""
    head = f"{found['id']} is {found['state']}"
    if found.get("position") is not None:
        head += f", place {found['position']} of {found.get('waiting')} in the queue"
    lines = [head + (f": {found['summary']}" if found.get("summary") else "")]
    decision = found.get("decision") or {}
    if decision.get("at_s") is not None:
        lines.append(f"  decided by {found.get('policy')} in entry {decision.get('seq')} of the log (plait events)")
    lines += [f"  ahead of it: {blocker['text']}" for blocker in found.get("blockers") or ()]
    lines += [f"  {change['text']}" for change in found.get("would_start") or ()]
    if found.get("shares_with"):
        lines.append(f"  takes turns with {', '.join(found['shares_with'])} by {found.get('gate')}")
    if found.get("stages"):
        lines += _iteration_lines(found)
    if found.get("left_s") is not None:
        lines.append(f"  about {duration(found['left_s'])} left at this pace")
    if found.get("last_trouble"):
        lines.append(f"  last trouble: {found['last_trouble']}")
    return lines


def _iteration_lines(found: dict[str, Any]) -> list[str]:
    """An iteration now and alone, by stage."""
    stages = dict(found["stages"])
    whole = stages.pop("iteration", {})
    if whole.get("now_s") is None:
        return ["  no iteration was measured yet"]
    text = f"  an iteration takes {_ms(whole['now_s'])}"
    if whole.get("alone_s") is not None:
        text += f"; alone {_ms(whole['alone_s'])}"
    if found.get("slowdown") is not None:
        text += f" ({found['slowdown']:.2f} times as long)"
    if found.get("contended"):
        text += f"; it waits most for {found['contended']}"
    shown = {name: s for name, s in stages.items() if s["now_s"] is not None or s["alone_s"] is not None}
    return [text] + [f"    {name:<8} {_ms(s['now_s'])} now, {_ms(s['alone_s'])} alone" for name, s in shown.items()]


def _ms(seconds: Any) -> str:
    return "-" if seconds is None else f"{1000 * float(seconds):.1f} ms"


def eta_lines(foreseen: Forecast, eta: Eta) -> list[str]:
    """Start and end as intervals, with what was assumed."""
    lines = []
    if eta.start is not None:
        lines.append(f"  starts in {_interval(eta.start)}")
    lines.append(f"  ends in   {_interval(eta.end)}")
    lines += [f"  assumed: {text}" for text in foreseen.assumptions]
    return lines


def _interval(interval: Interval) -> str:
    low, high = (duration(max(0.0, v)) if math.isfinite(v) else None for v in (interval.low_s, interval.high_s))
    if low is None:
        return "no run of the forecast"
    if high is None:
        return f"{low} or later; in some runs never"
    return low if low == high else f"{low} to {high}"


def _eta_json(foreseen: Forecast | None, eta: Eta | None) -> dict[str, Any] | None:
    if foreseen is None or eta is None:
        return None
    return {
        "start_in_s": None if eta.start is None else eta.start.to_json(),
        "end_in_s": eta.end.to_json(),
        "runs": foreseen.runs,
        "assumptions": list(foreseen.assumptions),
    }


def fidelity(
    home: HomeOption = None,
    as_json: JsonFlag = False,
) -> None:
    """Simulate what was submitted, with the measured profiles, and compare each job's completion time."""
    from plait.forecast import fidelity as judge
    from plait.forecast import replayed

    with client(home) as service:
        round_s = float(service.state().get("round_s") or 0.0)
        rows = list(replayed.read_rows(service.all_events()))
    found = judge.fidelity(rows, replayed.replay(rows, compare=False), round_s=round_s)
    if as_json:
        print_json(found.to_json())
        return
    table = [[j.id, f"{j.predicted_s:.2f} s", f"{j.measured_s:.2f} s", f"{j.error:+.1%}"] for j in found.jobs]
    print_table(("job", ">predicted", ">measured", ">error"), table, "no job has finished yet")
    typer.echo(f"{found.policy}; a start costs {found.start_up_s:.2f} s; the largest error is {found.worst:.1%}")
    if found.left_out:
        typer.echo(f"{found.left_out} jobs are left out: they did not finish")
