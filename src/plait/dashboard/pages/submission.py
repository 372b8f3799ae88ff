"""The form of a job: its outlook and its submission. The form's values stay where the API refuses them."""

import json
import shlex
import typing
from collections.abc import Mapping
from dataclasses import MISSING, dataclass
from typing import Any, Literal

from starlette.responses import RedirectResponse, Response

from plait.core.errors import InputError
from plait.core.options import Declared, declared
from plait.dashboard.api_client import Refused, segment
from plait.dashboard.figures import Fields, band, horizon_s
from plait.dashboard.pages.jobs import file_of
from plait.dashboard.web import ROOT, Viewer, checked_form, shown
from plait.live.protocol.job import BYTES, DURATIONS, Ina, Job, JobField, key_of, meaning_of
from plait.live.protocol.job_file import read_text


@shown
async def new_job(viewer: Viewer) -> Response:
    """The empty form; with `?from=JOB` filled in with that job."""
    if not viewer.session.may_submit:
        raise Refused(403, f"{viewer.session.user} is {viewer.session.role}; this needs admin or user")
    other = viewer.request.query_params.get("from")
    given = {"command": "python train.py", "gpus": "1"}
    if other:
        given = typed(file_of(await viewer.api.get(f"/v1/jobs/{segment(other)}")))
    return _form(viewer, given, other=other)


@shown
async def submit(viewer: Viewer) -> Response:
    """Store the job, and show it; or the form again with what is wrong."""
    form = await checked_form(viewer)
    try:
        found = await viewer.api.ask("POST", "/v1/jobs", body=job_of(form))
    except Refused as error:
        return _form(viewer, form, wrong=error)
    viewer.web.answers.forget()
    return RedirectResponse(f"{ROOT}/jobs/{found['id']}", 303)


@shown
async def what_if(viewer: Viewer) -> Response:
    """The form with what the job would get; `use` is an option of a variant to fill in first. Nothing is submitted."""
    form = await checked_form(viewer)
    option = form.pop("use", "")
    try:
        form = with_option(form, option) if option else form
        found = await viewer.api.ask("POST", "/v1/what-if", body=job_of(form))
    except Refused as error:
        return _form(viewer, form, wrong=error)
    return _form(viewer, form, found=Fields(found))


@shown
async def like_it(viewer: Viewer) -> Response:
    """A part of the page of a job that waits: what a job like it would get now, also at other sizes."""
    name = viewer.request.path_params["job"]
    job = await viewer.api.get(f"/v1/jobs/{segment(name)}")
    found, wrong = None, None
    try:
        found = Fields(await viewer.api.ask("POST", "/v1/what-if", body=file_of(job)))
    except Refused as error:
        wrong = error
    return viewer.page(
        "like_it.html.j2", job=job["id"], found=found, wrong=wrong, live=False, title=job["id"], **drawn(found)
    )


def _form(
    viewer: Viewer, given: Mapping[str, str], *, other: str | None = None, wrong: Refused | None = None,
    found: Mapping[str, Any] | None = None,
) -> Response:  # fmt: skip
    """The form: `other` the job it is filled in with, `wrong` why it was refused, `found` what the job would get."""
    return viewer.page(
        "submit.html.j2", 200 if wrong is None else wrong.status, title="Submit a job", other=other, wrong=wrong,
        main=fields(MAIN, given), more=fields(MORE, given), rest=given.get(REST, ""), found=found,
        folder=given.get("workdir", "").strip(),
        more_open=any(given.get(name, "").strip() for name in (*MORE, REST)), live=False, **drawn(found),
    )  # fmt: skip


def drawn(found: Mapping[str, Any] | None) -> dict[str, Any]:
    """Values for the drawings of a forecast and of its variants: how far they reach, and where bands lie."""
    rows = [] if found is None else [found, *(one for one in found["variants"] if one["change"] != "later")]
    most_s = horizon_s([one[name] for one in rows for name in ("start", "end")])
    return {"most_s": most_s, "band": band}


# -- The form of a job: its fields are a job file's, and its values become a submission --------------------

#: Fields that are always visible, and fields behind "more"; all others of a job are written as JSON.
MAIN = (
    "command", "workdir", "name", "gpus", "class", "priority", "deadline_s", "time_limit_s", "iterations", "model",
    "project", "gpu_memory",
)  # fmt: skip
MORE = (
    "min_gpus", "max_gpus", "cpus", "memory", "python", "container", "output", "exclusive", "retries",
    "checkpoint_s", "signal_s", "begin_s", "hold", "ina", "wait_for_nodes", "merge",
)  # fmt: skip
#: Notes of fields whose default is another one here than for `plait submit`.
_NOTES = {
    "workdir": "Folder on the nodes in which the job runs, e.g. /home/ada/nlp; default: an empty folder of the job's "
    "own, jobs/j-N in plait's home folder on the node.",
}
#: The field of the form that holds the other fields.
REST = "rest"
#: Fields that a smaller or larger gang does away with.
_SIZES = ("min_gpus", "max_gpus")
_DECLARED: Mapping[str, Declared] = {key_of(one): one for one in declared(Job)}


@dataclass(frozen=True)
class Field:
    """One field of the page: `kind` is text, number, select or checkbox, `attributes` its number's."""

    key: str
    label: str
    note: str
    kind: str
    value: str
    choices: tuple[str, ...] = ()
    least: float | None = None
    most: float | None = None
    step: str = "any"
    required: bool = False


def fields(keys: tuple[str, ...], given: Mapping[str, str]) -> list[Field]:
    """The fields to draw, with what was typed."""
    return [_field(_DECLARED[key], key, given.get(key, "")) for key in keys]


def _field(one: Declared, key: str, value: str) -> Field:
    rule = typing.cast("JobField", one.option).rule
    label = (one.name if key == "class" else key).removesuffix("_s").replace("_", " ")
    label = label.replace("gpus", "GPUs").replace("gpu", "GPU").replace("cpus", "CPU cores")
    label = {"ina": "In-network aggregation", "job class": "Class", "checkpoint": "Checkpoint every"}.get(
        label, label[0].upper() + label[1:]
    )
    note, choices, kind = _NOTES.get(key) or meaning_of(one), (), "text"
    if typing.get_origin(one.type) is Literal:
        kind, choices = "select", typing.get_args(one.type)
    elif one.type is bool:
        kind = "checkbox"
    elif one.type in (int, float) and key not in BYTES + DURATIONS:
        kind = "number"
    return Field(
        key, label, note, kind, value, choices, rule.get("minimum", rule.get("exclusiveMinimum")), rule.get("maximum"),
        "1" if one.type is int else "any", one.default is MISSING,
    )  # fmt: skip


def typed(job: Mapping[str, Any]) -> dict[str, str]:
    """A job as what would have been typed for it.

    >>> typed({"command": ["python", "my train.py"], "gpus": 2, "env": {"A": "1"}})["command"]
    "python 'my train.py'"
    """
    out, rest = {}, {}
    for key, value in job.items():
        if key not in MAIN + MORE or isinstance(value, Mapping):
            rest[key] = value
        elif key == "command":
            out[key] = shlex.join(value)
        elif value is not False:
            out[key] = "on" if value is True else f"{value:.15g}" if isinstance(value, float) else str(value)
            out[key] += "s" * (key in DURATIONS)
    if rest:
        out[REST] = json.dumps(rest, indent=2, ensure_ascii=False)
    return out


def job_of(given: Mapping[str, str]) -> dict[str, Any]:
    """The form's values as the body of a submission; raises `Refused` that names the field.

    >>> job_of({"command": "python 'my train.py'", "gpus": "2", "priority": "", "gpu_memory": "4G", "rest": ""})
    {'command': ['python', 'my train.py'], 'gpus': 2, 'gpu_memory': 4000000000}
    """
    job: dict[str, Any] = {}
    for key in MAIN + MORE:
        if (text := given.get(key, "").strip()) and not _is_default(_DECLARED[key], text):
            job[key] = _value(_DECLARED[key], key, text)
    rest = _rest(given.get(REST, ""))
    if twice := sorted(set(job) & set(rest)):
        raise Refused(422, "is in the form and among the other fields; give it once", field=twice[0])
    job |= rest
    if "command" not in job:
        raise Refused(422, "needs the program and its arguments, e.g. python train.py", field="command")
    return job


def _is_default(one: Declared, text: str) -> bool:
    """Whether it is the choice that a list shows by itself: then no value was given."""
    return typing.get_origin(one.type) is Literal and text == one.default


def _rest(text: str) -> dict[str, Any]:
    if not text.strip():
        return {}
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise Refused(400, f"this is not JSON: {error}", field="other fields") from None
    if not isinstance(found, dict):
        raise Refused(422, 'need an object, e.g. {"env": {"SEED": "1"}}', field="other fields")
    return found


def _value(one: Declared, key: str, text: str) -> Any:
    try:
        if key == "command":
            return shlex.split(text)
        if key in BYTES + DURATIONS:
            return read_text(key, text, key)
        if one.type is bool:
            return text == "on"
        return text if one.type in (str, Ina) or typing.get_origin(one.type) is Literal else one.type(text)
    except InputError as error:
        raise Refused(422, str(error)) from None
    except ValueError as error:
        if key == "command":
            raise Refused(422, f"cannot be split into words: {error}", field=key) from None
        kind = "a whole number" if one.type is int else "a number"
        raise Refused(422, f"needs {kind} (got {text[:40]!r})", field=key) from None


def with_option(given: Mapping[str, str], option: str) -> dict[str, str]:
    """The form's values with an option of `plait submit` applied, as variants of a job name it.

    Raises `Refused` for what is no option of a field in the form.

    >>> with_option({"gpus": "4", "min_gpus": "2"}, "--gpus 2")
    {'gpus': '2'}
    """
    word, _, value = option.partition(" ")
    key = next((key for key in MAIN + MORE if f"--{_DECLARED[key].word}" == word), None)
    if key is None or not value:
        raise Refused(422, f"no field of this form is set by {option[:80]!r}")
    drop = _SIZES if key == "gpus" else ()
    return {**{name: text for name, text in given.items() if name not in drop}, key: value}
