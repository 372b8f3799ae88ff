"""Keys of requests that have enough in common for one job to use the profile of another."""

import hashlib
import json
from collections.abc import Iterable, Mapping
from typing import Any

from plait.core.errors import InputError
from plait.runtime.command_line import parse_script

#: measured once, used for later jobs: key -> {"stage_s", "iteration_s", "skew"}, or {"sizes", "fit"}
LearnedProfiles = Mapping[str, Mapping[str, Any]]


def profile_key(request: Mapping[str, Any], kind: str) -> str:
    """Common key of jobs that share a profile: model (or command and folder), processes, GPU kind."""
    per_gpu = processes_per_gpu(request)
    return f"{_model(request)}|{request.get('gpus', 1)}{f'x{per_gpu}' if per_gpu > 1 else ''}|{kind}"


def fit_key(request: Mapping[str, Any], kind: str) -> str:
    """Common key of jobs that share what they learn of other sizes: model (or command and folder), GPU kind."""
    return f"sizes|{_model(request)}|{kind}"


def _model(request: Mapping[str, Any]) -> str:
    return str(request.get("model") or "command-" + _hash(request.get("workdir"), request["command"]))


def processes_per_gpu(request: Mapping[str, Any]) -> int:
    """Processes of the job on each of its GPUs."""
    return int(request.get("processes_per_gpu") or 1)


def like_keys(request: Mapping[str, Any]) -> list[str]:
    """Keys of similar jobs, the best first: the same model at any size, the same script with any arguments.

    >>> like_keys({"command": ["python", "a.py", "--lr", "1"], "model": "vgg"})[0]
    'like|model|vgg'
    """
    try:
        script = parse_script(request["command"])
        start = ["-m", script.target] if script.module else [script.target]
    except InputError:
        start = list(request["command"][:2])
    keys = ["like|script|" + _hash(request.get("workdir"), start)]
    return [f"like|model|{request['model']}", *keys] if request.get("model") else keys


def run_keys(request: Mapping[str, Any]) -> tuple[str, str]:
    """What the durations of runs have in common (`JobSpec.like`): the whole command, and its script with any arguments.

    >>> a, b = (run_keys({"command": ["python", "a.py", "--lr", rate]}) for rate in "12")
    >>> a[0] == b[0], a[1] == b[1]
    (False, True)
    """
    return "run|" + _hash(request.get("workdir"), request["command"]), like_keys(request)[-1]


def _hash(*parts: object) -> str:
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:16]


def known_profile(request: Mapping[str, Any], kinds: Iterable[str], learnt: LearnedProfiles) -> Mapping[str, Any]:
    """The profile that earlier jobs of this kind left, otherwise that of similar jobs; empty if there is none.

    `request`: of the job; `kinds`: GPU kinds of the cluster; `learnt`: profiles by key.
    """
    for key in (*(profile_key(request, kind) for kind in kinds), *like_keys(request)):
        found = learnt.get(key)
        if found is not None:
            return found
    return {}
