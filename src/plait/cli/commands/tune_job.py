"""`plait tune-job`: search hyper-parameters by training jobs, which stop early if they are hopeless.

Optuna's Tree-structured Parzen Estimator (Bergstra et al., NeurIPS 2011) proposes the values of a trial from the
results of earlier ones, as in the experiment of Pollux (section 5.3.4). Each trial is a job of the cluster: it waits,
shares, is stopped and resumed like any other, and its batch may adapt. The search reads the metric from the lines that
a job prints. Its state is Optuna's journal and the store of the service, so it may be stopped and started again.
"""

from __future__ import annotations

import math
import os
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from plait.cli.connection import client, print_json, print_table
from plait.cli.declared import command
from plait.cli.submission import Asked, requests_of, runs_here
from plait.core.errors import InputError
from plait.core.options import option
from plait.live.notes import note
from plait.live.protocol.arrays import members

if TYPE_CHECKING:
    from plait.live.client.client import Client

#: Seconds between two looks at the trials.
LOOK_S = 1.0
_RANGE = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)=(log:)?([-+0-9.eE]+)\.\.([-+0-9.eE]+)")
_NUMBER = r"[-+]?(?:\d+\.?\d*(?:[eE][-+]?\d+)?|\.\d+(?:[eE][-+]?\d+)?|nan|inf)"


@dataclass(frozen=True, kw_only=True)
class TuneRequest(Asked):
    """The options of `plait tune-job`: its own, and those of `plait submit` for each trial."""

    param: list[str] | None = option(
        "A parameter, {lr} in the command: lr=log:1e-4..1e-1, layers=1..4 (whole numbers) or act=relu,tanh",
        default=None,
    )
    metric: str = option("Name before the number in the lines that a trial prints: `loss 0.31`", default="loss")
    maximize: bool = option("Look for the highest metric, instead of the lowest", default=False)
    trials: int = option("Trials in all", default=20, least=1)
    at_once: int = option("Trials that wait or run at once", default=4, least=1)
    no_stop: bool = option("Let each trial run to its end, however bad it is", default=False)
    study: Path | None = option("File that keeps the search, to continue it", default=None, unset="not kept")
    seed: int = option("Random seed of the search", default=0)


def parse_parameter(text: str) -> tuple[str, dict[str, Any]]:
    """The name of a parameter and its distribution, as Optuna's JSON of one; raises `InputError`.

    >>> parse_parameter("lr=log:1e-4..1e-1")
    ('lr', {'name': 'FloatDistribution', 'attributes': {'low': 0.0001, 'high': 0.1, 'log': True, 'step': None}})
    """
    name, equals, values = text.partition("=")
    found = _RANGE.fullmatch(text)
    try:
        if found is None:
            if not (equals and name.isidentifier() and values) or ".." in values:
                raise ValueError
            return name, {"name": "CategoricalDistribution", "attributes": {"choices": values.split(",")}}
        whole = not re.search(r"[.eE]", found[3] + found[4])
        low, high = (int(end) if whole else float(end) for end in found.groups()[2:])
        if not (low < high and (low > 0 or not found[2])):
            raise ValueError
    except ValueError:
        raise InputError(
            f"--param {text[:80]!r} is no parameter; write lr=log:1e-4..1e-1 (above 0), drop=0.0..0.5, layers=1..4 "
            "(whole numbers) or act=relu,tanh"
        ) from None
    kind, step = ("IntDistribution", 1) if whole else ("FloatDistribution", None)
    return name, {"name": kind, "attributes": {"low": low, "high": high, "log": bool(found[2]), "step": step}}


@dataclass
class JobTrial:
    """A trial that waits or runs: Optuna's, its job, and what its log has shown up to `offset`.

    `reported`: values that an earlier search has reported to Optuna.
    """

    inner: Any
    job: str
    reported: int = 0
    values: list[float] = field(default_factory=list)
    offset: int = 0
    rest: str = ""
    hopeless: bool = False


class JobSearch:
    """A search by jobs that are made of one request; `look` once in a while until it returns False."""

    def __init__(self, service: Client, request: Mapping[str, Any], asked: TuneRequest) -> None:
        """Continue the study of `asked`, or begin one. Raises `InputError` for bad parameters, or without Optuna."""
        try:
            import optuna
            from optuna.distributions import json_to_distribution
            from optuna.storages import JournalStorage
            from optuna.storages.journal import JournalFileBackend
        except ImportError:
            raise InputError("plait tune-job needs Optuna; install it: pip install 'plait[tune]'") from None
        import json

        given = dict(map(parse_parameter, asked.param or ()))
        if not given:
            raise InputError("nothing to search; give e.g. --param lr=log:1e-4..1e-1, and {lr} in the command")
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        storage = None if asked.study is None else JournalStorage(JournalFileBackend(str(asked.study)))
        self._distributions = {name: json_to_distribution(json.dumps(value)) for name, value in given.items()}
        self.study = optuna.create_study(
            study_name="plait", storage=storage, load_if_exists=True,
            direction="maximize" if asked.maximize else "minimize",
            sampler=optuna.samplers.TPESampler(seed=asked.seed),
            pruner=optuna.pruners.NopPruner() if asked.no_stop else optuna.pruners.MedianPruner(),
        )  # fmt: skip
        self._states = optuna.trial.TrialState
        self._service, self._request, self._asked = service, request, asked
        self._line = re.compile(rf"(?<![\w.]){re.escape(asked.metric)}\s*[:= ]\s*({_NUMBER})(?![\w.])", re.IGNORECASE)
        running = self.study.get_trials(states=(self._states.RUNNING,))
        #: Trials whose jobs have not ended; those of an earlier search are taken over.
        self.running = [
            JobTrial(optuna.trial.Trial(self.study, one._trial_id), one.user_attrs["job"], len(one.intermediate_values))
            for one in running
            if "job" in one.user_attrs
        ]

    def look(self, tell: Callable[[str], object] = lambda text: None) -> bool:
        """Submit trials and read what jobs have printed; `tell` gets a line for each end; returns whether to go on."""
        from plait.live.client.client import FINAL

        while len(self.running) < self._asked.at_once and self._left():
            self.running.append(self._submit())
        for trial in list(self.running):
            state = self._service.job(trial.job).state
            self._read(trial)
            if state in FINAL:
                self.running.remove(trial)
                tell(self._end(trial, state))
            elif not trial.hopeless and trial.values and trial.inner.should_prune():
                trial.hopeless = True
                self._service.cancel(trial.job)
        return bool(self.running) or self._left()

    def _left(self) -> bool:
        return len(self.study.get_trials(deepcopy=False)) < self._asked.trials

    def _submit(self) -> JobTrial:
        inner = self.study.ask(self._distributions)
        texts = {name: f"{v:.6g}" if isinstance(v, float) else str(v) for name, v in inner.params.items()}
        # The values go where those of an array with this one combination would go.
        request = next(members({**self._request, "matrix": {name: [text] for name, text in texts.items()}}, 0))
        del request["member"]
        tags = [*(request.get("tags") or ()), "tune-job"]
        job = self._service.submit([{**request, "tags": tags}])[0].id
        inner.set_user_attr("job", job)
        return JobTrial(inner, job)

    def _read(self, trial: JobTrial) -> None:
        """Report the metrics of whole new lines; each is a step, so trials are compared by how often they printed."""
        from plait.live.client.client import Refused

        while True:
            try:
                part = self._service.logs(trial.job, offset=trial.offset)
            except Refused:  # it has not written a log yet
                return
            trial.offset, text = part.next, trial.rest + part.text
            whole, _, trial.rest = text.rpartition("\n")
            for found in self._line.finditer(whole):
                value = float(found[1])
                if len(trial.values) >= trial.reported:
                    trial.inner.report(value, len(trial.values))
                trial.values.append(value)
            if part.next >= part.size:
                return

    def _end(self, trial: JobTrial, state: str) -> str:
        """Record the end of a trial; returns a line about it."""
        values, params = trial.values, " ".join(f"{name}={value}" for name, value in trial.inner.params.items())
        if state == "finished" and values and math.isfinite(values[-1]):
            self.study.tell(trial.inner, values[-1])
            return f"{trial.job} {params}: {self._asked.metric} {values[-1]:.6g}"
        if trial.hopeless:
            self.study.tell(trial.inner, state=self._states.PRUNED)
            return f"{trial.job} {params}: stopped early at {self._asked.metric} {values[-1]:.6g}"
        self.study.tell(trial.inner, state=self._states.FAIL)
        why = f"{state}, and printed no `{self._asked.metric} NUMBER`" if not values else f"{state} at {values[-1]:.6g}"
        return f"{trial.job} {params}: {why}"

    def rows(self) -> list[dict[str, Any]]:
        """All trials, the best first: job, state, value, parameters, and how often each printed the metric."""
        sign = -1.0 if self._asked.maximize else 1.0
        rows = [
            {"job": one.user_attrs.get("job"), "state": one.state.name.lower()}
            | {"steps": len(one.intermediate_values), self._asked.metric: one.value, **one.params}
            for one in self.study.get_trials()
        ]
        best = {"complete": 0, "pruned": 1}
        return sorted(rows, key=lambda row: (best.get(row["state"], 2), sign * (row[self._asked.metric] or 0.0)))


def _tune(asked: TuneRequest) -> None:
    (request, *more) = requests_of(asked, os.environ, here=runs_here(asked.home, os.environ))
    if more or request.get("array") or request.get("matrix"):
        raise InputError("plait tune-job searches by one job; leave out --array, --matrix and files of several jobs")
    with client(asked.home) as service:
        search = JobSearch(service, request, asked)
        while search.look(note):
            time.sleep(LOOK_S)
    rows = search.rows()
    if asked.as_json:
        print_json(rows)
    else:
        print_table(tuple(rows[0]), [[str(value) for value in row.values()] for row in rows], "no trials")


@command(TuneRequest, _tune)
def tune_job() -> None:
    """Search the hyper-parameters of a training by jobs.

    A trial that is worse than the median of the others at the same step is cancelled.

    \b
    plait tune-job --param lr=log:1e-4..1e-1 --trials 30 -- python train.py --lr {lr}
    plait tune-job --param layers=1..4 --metric accuracy --maximize --study search.log -- python train.py {layers}
    """
