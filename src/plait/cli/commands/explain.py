"""`plait explain`, `plait fidelity`: why a job waits, when it will end, and how accurate such forecasts are."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

from plait.cli.commands.jobs import JobArgument, stop_text, stopped_text
from plait.cli.commands.status import reservation_line
from plait.cli.connection import HomeOption, JsonFlag, client, print_json, print_table
from plait.cli.policy_modules import AllowForLog
from plait.cli.render.forecast_lines import FIDELITY_HEADS, coverage_lines, fidelity_lines, fidelity_row, forecast_lines
from plait.cli.render.job_views import adaptive_lines
from plait.cli.render.tables import plain_lines
from plait.core.errors import InputError, PlaitError
from plait.core.words import duration

if TYPE_CHECKING:
    from plait.live.api.explain import Explanation, FairShare, JobOutlook, StageTime, Uncalibrated
    from plait.live.api.jobs import Stops
    from plait.live.client.client import Client
    from plait.outlook.eta import Forecast
    from plait.outlook.queue import Foreseen


def explain(
    job: JobArgument,
    eta: Annotated[
        bool,
        typer.Option(help="Check the times: simulate the whole queue, ten times, under the policy. Slow if long."),
    ] = False,
    seed: Annotated[int, typer.Option(help="Random seed of unknown durations, for --eta.")] = 0,
    home: HomeOption = None,
    as_json: JsonFlag = False,
) -> None:
    """Explain why a job waits, how it shares, and when it will end.

    For a waiting job, also shows what would start it now. Starts and ends are intervals.
    """
    from plait.live.client.client import FINAL

    with client(home) as service:
        found = service.explain(job)
        state = service.state() if eta and found.state not in FINAL else None
        forecast = found.forecast
        if forecast is not None:
            tell(service, found.id, forecast.said)
    simulated, unknown = (None, None) if state is None else try_to_foresee(state, seed, home)
    if simulated is not None and forecast is None:
        unknown = "the service has no forecast of it yet"
    checked = None
    if simulated is not None and forecast is not None:
        checked = checked_by(forecast, simulated.raw, found.number)
    if as_json:
        print_json({**msgspec.to_builtins(found), "eta": checked, "no_eta": unknown})
        return
    lines = explanation_lines(found)
    if forecast is not None:
        lines += forecast_lines(forecast)
    lines += [] if checked is None else check_lines(checked)
    lines += [f"  no estimate of times: {unknown}"] if unknown else []
    for line in lines:
        typer.echo(plain_lines(line))


def try_to_foresee(state: dict[str, Any], seed: int = 0, home: str | None = None) -> tuple[Foreseen | None, str | None]:
    """The forecast of the queue, or None and why: this process may be unable to load the service's policy.

    `state`: the service's answer to `/v1/state`; `seed`: of unknown durations; `home`: folder of the service.
    """
    from plait.cli.policy_modules import let_load
    from plait.live.layout import Layout
    from plait.live.supervisor.options import remembered
    from plait.outlook.queue import foresee

    try:
        let_load(str(state["policy"]), remembered(Layout.at(home)))
        return foresee(state, seed), None
    except Exception as error:  # whatever a user's module does when it is imported here
        why = str(error) if isinstance(error, PlaitError) else f"{type(error).__name__}: {error}"
        return None, f"the queue cannot be played forward here: {why}"


def tell(service: Client, job: str, said: Uncalibrated) -> None:
    """Have the forecast of `job` kept, for calibration; ignored if not permitted or the job has ended."""
    with contextlib.suppress(PlaitError):
        service.tell_forecast(job, said.start, said.end)


#: The verb of states that are over.
_HAS = {"finished": "has", "failed": "has", "cancelled": "was"}


def explanation_lines(found: Explanation) -> list[str]:
    """The service's explanation as lines: a headline, what blocks the job, what would start it, its stages."""
    head = f"{found.id} {_HAS.get(found.state, 'is')} {found.state}"
    if found.position is not None:
        head += f", place {found.position} of {found.waiting} in the queue"
    lines = [head + (f": {found.summary}" if found.summary else "")]
    if found.decision is not None and found.decision.at_s is not None:
        lines.append(f"  decided by {found.policy} in entry {found.decision.seq} of the log (plait events)")
    if found.predicted and found.left_s is None:
        lines.append(f"  its place follows from a prediction: {found.predicted}")
    lines += [f"  {found.first}"] if found.first else []
    lines += [f"  ahead of it: {blocker.text}" for blocker in found.blockers or ()]
    lines += [f"  {change.text}" for change in found.would_start or ()]
    if found.shares_with:
        lines.append(f"  takes turns with {', '.join(found.shares_with)} by {found.gate}")
    lines += [f"    {text}" for text in found.sharing_costs or ()]
    lines += adaptive_lines(found)
    if found.stages:
        lines += _iteration_lines(found, found.stages)
    if found.ina:
        from plait.cli.commands.network.cluster_view import ina_lines

        lines += ina_lines(found.ina)
    elif found.network:
        lines.append(f"  network: {found.network}")
    if found.preemption is not None:
        lines.append(f"  preemption: {found.preemption.text}")
    lines += [f"  {reservation_line(row)}" for row in found.reservations or ()]
    if found.state == "waiting" and any(row.in_s for row in found.reservations or ()):
        lines.append(f"  with a time limit that ends it before, it may start there: plait update {found.id} --time 30m")
    if found.fair is not None:
        lines.append(_fair_line(found.fair))
    if stops := found.stops:
        if found.state == "running":
            lines.append(f"  if it were stopped now, it {_stop(stops)}")
        if had := stopped_text(stops):
            lines.append(f"  stops have cost it so far: {had}")
    if found.left_s is not None:
        place = "; its place in the order follows from a prediction instead" if found.predicted else ""
        lines.append(f"  about {duration(found.left_s)} left by its own progress, at this pace{place}")
    if last := found.last_stop:
        lines.append(f"  attempt {last.attempt} was stopped: {last.why}")
    if found.limit_left_s is not None:
        lines.append(f"  {duration(found.limit_left_s)} left until its time limit (--time)")
    if found.last_trouble:
        lines.append(f"  last trouble: {found.last_trouble}")
    return lines + _next_lines(found)


def _fair_line(fair: FairShare) -> str:
    """Past use by which the policy orders jobs, as a line.

    >>> from plait.live.api.explain import FairShare
    >>> _fair_line(FairShare(604_800.0, "nlp", 2.0, 0.5))
    '  fair share (half-life 7 d 0 h): project nlp has used 2 times its share, its user 0.5 times theirs'
    """
    return (
        f"  fair share (half-life {duration(fair.half_life_s)}): project {fair.project} has used "
        f"{fair.project_times:.2g} times its share, its user {fair.user_times:.2g} times theirs"
    )


def _next_lines(found: Explanation) -> list[str]:
    """For a job that has ended, the commands that show more of it, and what to do next."""
    from plait.live.client.client import FINAL

    job, state = found.id, found.state
    if state not in FINAL:
        return []
    shows = f"plait show {job} its attempts and its command"
    if found.started is not False:
        shows = f"plait logs {job} shows what it wrote, {shows}"
    else:
        shows = shows.replace(job, f"{job} shows", 1)
    causes = {"failed": "; once its cause is mended", "cancelled": "; to run it again"}
    if state in causes and "plait clone" not in (found.summary or ""):
        shows += f"{causes[state]}: plait clone {job}"
    return [f"  next: {shows}"]


def _stop(stops: Stops) -> str:
    """The cost of a stop, as a condition.

    >>> from plait.live.api.jobs import Stops
    >>> cases = ({"resumable": True}, {}, {"unbegun": True})
    >>> tuple(_stop(Stops(lost_work_s=0.0, restarts=0, restart_s=None, **case)) for case in cases)
    ('would go on from a checkpoint', 'would begin at the beginning', 'would lose nothing, as it has made no step yet')
    """
    verb, rest = stop_text(stops).split(" ", 1)
    return f"would {({'goes': 'go'}).get(verb, verb.removesuffix('s'))} {rest}"


def _iteration_lines(found: Explanation, times: Mapping[str, StageTime]) -> list[str]:
    stages = dict(times)
    whole = stages.pop("iteration", None)
    if whole is None or whole.now_s is None:
        return ["  no iteration has been measured yet"]
    text = f"  an iteration takes {_ms(whole.now_s)}"
    if whole.alone_s is not None:
        text += f"; alone {_ms(whole.alone_s)}"
    if found.slowdown is not None:
        text += f" ({found.slowdown:.2f} times as long)"
    if found.contended:
        text += f"; it waits most for {found.contended}"
    shown = {name: s for name, s in stages.items() if s.now_s is not None or s.alone_s is not None}
    alone = {name: "" if s.alone_s is None else f", {_ms(s.alone_s)} alone" for name, s in shown.items()}
    return [text] + [f"    {name:<8} {_ms(s.now_s)} now{alone[name]}" for name, s in shown.items()]


def _ms(seconds: Any) -> str:
    return "-" if seconds is None else f"{1000 * float(seconds):.1f} ms"


def checked_by(forecast: JobOutlook, simulated: Forecast, number: int) -> dict[str, Any] | None:
    """The intervals of a job's `forecast`, and how many runs of the simulated queue lie in them.

    None for a job that the simulation does not have.
    """
    eta = simulated.etas.get(number)
    if eta is None:
        return None
    start, end = None if forecast.start is None else forecast.start.wide_s, forecast.end.wide_s
    return {
        "start_in_s": start,
        "end_in_s": end,
        "runs": simulated.runs,
        "starts_held": None if start is None or eta.start is None else eta.start.held(start),
        "ends_held": eta.end.held(end),
        "simulated_start_s": None if eta.start is None else eta.start.to_json(),
        "simulated_end_s": eta.end.to_json(),
        "assumptions": list(simulated.assumptions),
    }


def check_lines(found: Mapping[str, Any]) -> list[str]:
    """Lines that compare the forecast with the runs of the simulated queue, and the assumptions of these.

    >>> check_lines({"runs": 10, "starts_held": 9, "ends_held": 2, "simulated_end_s": [60.0, None], "assumptions": []})
    ['  simulated: starts as said above in 9 of 10 runs; ends as said in 2 of 10, mostly in 1 min 0 s or later']
    """
    runs, parts = found["runs"], list[str]()
    for verb in ("starts", "ends"):
        held = found[f"{verb}_held"]
        if held is not None:
            part = f"{verb} as said{'' if parts else ' above'} in {held} of {runs}{'' if parts else ' runs'}"
            other = "" if 2 * held >= runs else f", mostly {_span(found[f'simulated_{verb[:-1]}_s'])}"
            parts.append(part + other)
    return [f"  simulated: {'; '.join(parts)}", *(f"  assumed there: {text}" for text in found["assumptions"])]


def _span(bounds: Sequence[float | None]) -> str:
    """An interval of the simulation, null for never."""
    low, high = (None if s is None else duration(max(0.0, s)) for s in bounds)
    if low is None:
        return "never"
    return f"in {low} or later" if high is None else f"in {low} to {high}"


def fidelity(
    log: Annotated[Path | None, typer.Option(help="JSON file of saved events, instead of the service's log.")] = None,
    round_s: Annotated[
        float | None,
        typer.Option("--round", min=0, help="Seconds between decisions. [default: the service's; 1 with --log]"),
    ] = None,
    coverage: Annotated[
        bool, typer.Option("--coverage", help="How often forecasts of starts and ends held, instead.")
    ] = False,
    allow_policy: AllowForLog = None,
    home: HomeOption = None,
    as_json: JsonFlag = False,
) -> None:
    """Simulate the submitted jobs and compare completion times.

    Each job is simulated with its own measurements.

    The log supplies submissions, the stage times of each job running alone, how long its starts and stops took, and
    when profiles and policies changed. Predicted are all decisions, waits, and the speed of jobs that share GPUs.
    """
    from plait.cli.policy_modules import only_allowed
    from plait.live.layout import Layout
    from plait.live.supervisor.options import remembered
    from plait.outlook import fidelity as judge
    from plait.outlook.log_replay import read_rows

    allowed = allow_policy or ()

    if log is None:
        with client(home) as service:
            round_s = float(service.state()["round_s"]) if round_s is None else round_s
            rows = list(read_rows(only_allowed(service.all_events(), allowed, remembered(Layout.at(home)))))
    else:
        rows = list(read_rows(only_allowed(saved_events(log), allowed)))
    if coverage:  # how often intervals held, if each submission of this log had been forecast
        from plait.outlook.coverage import LogCoverage
        from plait.outlook.log_replay import replay

        watch = LogCoverage()
        replay(rows, compare=False, observe=watch)
        if as_json:
            print_json(watch.coverage.to_json())
        else:
            typer.echo("\n".join(coverage_lines(watch.coverage.shares())))
        return
    found = judge.fidelity(rows, round_s=1.0 if round_s is None else round_s)
    if as_json:
        print_json(found.to_json())
        return
    print_table(FIDELITY_HEADS, [fidelity_row(job) for job in found.jobs], "no job has finished yet")
    for line in fidelity_lines(found):
        typer.echo(line)


def saved_events(log: Path) -> list[Any]:
    """The entries of a saved log; `InputError` for any other file."""
    import json

    try:
        data = json.loads(log.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InputError(f"cannot read the log {log}: {error}; plait demo saves one in its folder") from error
    if not isinstance(data, list) or not all(isinstance(row, dict) and {"seq", "event"} <= row.keys() for row in data):
        raise InputError(
            f"{log} is not an event log: it needs a list of entries with seq and event, as plait demo saves them"
        )
    return data
