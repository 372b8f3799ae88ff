"""`plait tune-job`: search hyper-parameters by training jobs, which stop early if they are hopeless.

Optuna's Tree-structured Parzen Estimator (Bergstra et al., NeurIPS 2011) proposes the values of a trial from the
results of earlier ones, as in the experiment of Pollux (section 5.3.4). Each trial is a job of the cluster: it waits,
shares, is stopped and resumed like any other, and its batch may adapt. The search reads the metric from the lines that
a job prints. Its state is Optuna's journal and the store of the service, so it may be stopped and started again.
"""

from __future__ import annotations

import contextlib
import fcntl
import math
import os
import re
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from plait.cli.connection import client, print_json, print_table
from plait.cli.lazy import command
from plait.cli.submission import Asked, requests_of, runs_here
from plait.core.errors import InputError
from plait.core.options import option
from plait.live.notes import note
from plait.live.protocol.arrays import members

if TYPE_CHECKING:
    from plait.live.client.client import Client

#: Seconds between two looks at the trials.
LOOK_S = 1.0
#: Seconds of a pause while no service answers.
AWAY_S = 10.0
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
    """A trial that waits or runs: Optuna's, its job, and what the log of attempt `epoch` has shown up to `offset`.

    `job` is "" before it is submitted. `reported`: values that an earlier search has reported to Optuna.
    """

    inner: Any
    job: str = ""
    reported: int = 0
    values: list[float] = field(default_factory=list)
    epoch: int = 1
    offset: int = 0
    rest: str = ""
    hopeless: bool = False


class JobSearch:
    """A search by jobs that are made of one request; `look` once in a while until it returns False."""

    def __init__(self, service: Client, request: Mapping[str, Any], asked: TuneRequest) -> None:
        """Continue the study of `asked`, or begin one.

        Raises `InputError` for bad parameters, a file that holds no study of them, and without Optuna.
        """
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
        self._distributions = {name: json_to_distribution(json.dumps(value)) for name, value in given.items()}
        try:
            self.study = optuna.create_study(
                study_name="plait", load_if_exists=True, direction="maximize" if asked.maximize else "minimize",
                storage=None if asked.study is None else JournalStorage(JournalFileBackend(str(asked.study))),
                pruner=optuna.pruners.NopPruner() if asked.no_stop else optuna.pruners.MedianPruner(),
            )  # fmt: skip
        except ValueError as error:
            raise InputError(f"--study {asked.study} cannot be continued: {error}; give a new file") from None
        if (self.study.direction is optuna.study.StudyDirection.MAXIMIZE) != asked.maximize:
            other, change = ("lowest", "leave out") if asked.maximize else ("highest", "give")
            raise InputError(f"--study {asked.study} looks for the {other} metric; {change} --maximize, or a new file")
        known = [one.distributions.items() for one in self.study.get_trials(deepcopy=False)]
        if not all(kinds <= self._distributions.items() for kinds in known):
            raise InputError(f"--study {asked.study} searches other parameters; give the same --param, or a new file")
        # A search that continues with the same numbers would propose its first trials again.
        self.study.sampler = optuna.samplers.TPESampler(seed=asked.seed + len(known))
        #: By it the service recognises a trial that is submitted twice.
        self._key = self.study.user_attrs.get("key") or uuid.uuid4().hex
        self.study.set_user_attr("key", self._key)
        self._states = optuna.trial.TrialState
        self._service, self._request, self._asked = service, request, asked
        self._line = re.compile(rf"(?<![\w.]){re.escape(asked.metric)}\s*[:= ]\s*({_NUMBER})(?![\w.])", re.IGNORECASE)
        running = self.study.get_trials(states=(self._states.RUNNING,))
        #: Trials whose jobs have not ended; those of an earlier search are taken over.
        self.running = [
            JobTrial(
                optuna.trial.Trial(self.study, one._trial_id),
                one.user_attrs.get("job", ""),
                len(one.intermediate_values),
            )
            for one in running
        ]

    def look(self, tell: Callable[[str], object] = lambda text: None) -> bool:
        """Submit trials and read what jobs have printed; `tell` gets a line for each end; returns whether to go on."""
        from plait.live.client.client import FINAL, Refused

        while len(self.running) < self._asked.at_once and self._left():
            self.running.append(JobTrial(self.study.ask()))
        for trial in list(self.running):
            if not trial.job:
                # Submit the job of a trial; one that an interrupted search has submitted is not submitted again.
                params = {name: trial.inner._suggest(name, kind) for name, kind in self._distributions.items()}
                texts = {name: f"{v:.6g}" if isinstance(v, float) else str(v) for name, v in params.items()}
                # The values go where those of an array with this one combination would go.
                request = next(members({**self._request, "matrix": {name: [text] for name, text in texts.items()}}, 0))
                del request["member"]
                request["tags"] = [*(request.get("tags") or ()), "tune-job"]
                trial.job = self._service.submit([request], key=f"tune-job-{self._key}-{trial.inner.number}")[0].id
                trial.inner.set_user_attr("job", trial.job)
            job = self._service.job(trial.job)
            state = job.state
            self._read(trial, [one.epoch for one in job.attempts])
            if state in FINAL:
                self.running.remove(trial)
                tell(self._end(trial, state))
            elif not trial.hopeless and trial.values and trial.inner.should_prune():
                trial.hopeless = True
                with contextlib.suppress(Refused):  # it has just ended
                    self._service.cancel(trial.job)
        return bool(self.running) or self._left()

    def _left(self) -> bool:
        return len(self.study.get_trials(deepcopy=False)) < self._asked.trials

    def _read(self, trial: JobTrial, epochs: Sequence[int]) -> None:
        """Report the metrics of whole new lines; each is a step, so trials are compared by how often they printed."""
        from plait.live.client.client import Refused

        for trial.epoch in [epoch for epoch in epochs if epoch >= trial.epoch]:
            while True:
                try:
                    part = self._service.logs(trial.job, offset=trial.offset, epoch=trial.epoch)
                except Refused:  # it has not written a log yet, or its node is gone
                    break
                trial.offset, text = part.next, trial.rest + part.text
                whole, _, trial.rest = text.rpartition("\n")
                for found in self._line.finditer(whole):
                    value = float(found[1])
                    if len(trial.values) >= trial.reported:
                        trial.inner.report(value, len(trial.values))
                    trial.values.append(value)
                if part.next >= part.size:
                    break
            if trial.epoch != epochs[-1]:
                trial.offset, trial.rest = 0, ""

    def _end(self, trial: JobTrial, state: str) -> str:
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

    def interrupted(self) -> str:
        """A sentence about the jobs that run on when the search is stopped, and what to do with them."""
        jobs = " ".join(trial.job for trial in self.running if trial.job)
        again = "; continue it: the same command" if self._asked.study else ""
        return f"the search is stopped{again}" + (f"; its jobs go on, end them: plait cancel {jobs}" if jobs else "")

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


@contextlib.contextmanager
def alone(study: Path) -> Iterator[None]:
    """Let no other search use the file of a study meanwhile; `InputError` where one does, and for other files.

    A last line that a killed search has not finished is dropped: Optuna would continue it.
    """
    try:
        file = study.open("a+b")
    except OSError as error:
        raise InputError(f"--study {study} cannot be written: {error.strerror}") from None
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise InputError(f"--study {study} is used by another plait tune-job; give a new file") from None
        file.seek(0)
        lines = file.read()
        if lines[:1] not in (b"", b"{"):
            raise InputError(f"--study {study} is a file of something else; give a new file")
        file.truncate(lines.rfind(b"\n") + 1)
        yield


def looked(search: JobSearch) -> bool:
    """Look once; without a service later, as jobs run on meanwhile."""
    from plait.live.client.client import NotRunning

    try:
        return search.look(note)
    except NotRunning as error:
        note(f"{error}; waiting for the service")
        time.sleep(AWAY_S)
        return True


def _tune(asked: TuneRequest) -> None:
    (request, *more) = requests_of(asked, os.environ, here=runs_here(asked.home, os.environ))
    if more or request.get("array") or request.get("matrix"):
        raise InputError("plait tune-job searches by one job; leave out --array, --matrix and files of several jobs")
    with client(asked.home) as service, alone(asked.study) if asked.study else contextlib.nullcontext():
        search = JobSearch(service, request, asked)
        try:
            while looked(search):
                time.sleep(LOOK_S)
        except KeyboardInterrupt:
            note(search.interrupted())
            raise
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
