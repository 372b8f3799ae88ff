"""What requests send, checked: structs of small bodies, and jobs by the schema that job files have."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType

from plait.core.errors import InputError
from plait.live.layout import NODE_NAME
from plait.live.protocol.arrays import MOST_JOBS, MOST_TEXT, extent
from plait.live.protocol.job import LINE, LONGEST_WORD, Job, schema_of
from plait.live.protocol.job_file import WrongField, check_fields, request_of
from plait.live.protocol.wire import decode_report
from plait.live.scheduler.requests.changes import CHANGEABLE

PREFIX = "#/components/schemas/"
#: Numbers in queries are not larger: every store and every reader of JSON has them whole.
LARGEST = 2**53
Text = Annotated[str, Meta(max_length=LINE["maxLength"], pattern=LINE["pattern"])]
Word = Annotated[str, Meta(max_length=LONGEST_WORD, pattern=r"^[^\x00]*$")]
Name = Annotated[str, Meta(min_length=1, max_length=100, pattern=r"^[A-Za-z0-9][A-Za-z0-9._@-]*$")]
Node = Annotated[str, Meta(pattern=f"^{NODE_NAME.pattern}$")]
#: Bounds keep sums and products over many jobs finite: one job must not make decisions fail for all.
Seconds = Annotated[float, Meta(ge=0, le=1e12)]
PolicyText = Annotated[str, Meta(min_length=1, max_length=500)]
Three = Annotated[list[Seconds | None], Meta(min_length=3, max_length=3)]


class Invalid(Exception):
    """A request that is not well formed; `status` 400 for no JSON, 422 for a wrong field."""

    def __init__(self, message: str, field: str | None = None, status: int = 422) -> None:
        super().__init__(message)
        self.field, self.status = field, status


class Body(Struct, frozen=True, forbid_unknown_fields=True):
    """What a request sends."""


class RequeueIn(Body, frozen=True):
    """A job goes back to the queue."""

    may_lose_work: bool = False
    """Whether it may begin at the beginning, as it cannot resume from a checkpoint."""


class ConsoleIn(Body, frozen=True):
    """A request to a console of a job, the first of which starts its program."""

    command: Annotated[list[Word], Meta(max_length=1000)] = []
    """The program and its arguments, while the console is not known to run."""
    rank: Annotated[int, Meta(ge=0, le=LARGEST)] = 0
    """The process next to which it runs."""
    input: Annotated[str, Meta(max_length=100_000, pattern=r"^[A-Za-z0-9+/]*=*$")] = ""
    """Bytes for the program, in base64."""
    input_at: Annotated[int, Meta(ge=0, le=LARGEST)] = 0
    """Bytes of input before these."""
    input_over: bool = False
    """Whether no more input follows."""
    output_at: Annotated[int, Meta(ge=0, le=LARGEST)] = 0
    """Bytes of output that have been received."""
    term: Annotated[str, Meta(max_length=50, pattern=r"^[A-Za-z0-9._+-]*$")] = ""
    """Type of the terminal; none, if it is empty."""
    rows: Annotated[int, Meta(ge=0, le=10_000)] = 0
    columns: Annotated[int, Meta(ge=0, le=10_000)] = 0
    end: bool = False
    """Whether to end the program."""


class DrainIn(Body, frozen=True):
    """A node takes no new work."""

    may_lose_work: bool = False
    """Whether jobs there may lose work, as they cannot resume from a checkpoint."""


class PolicyIn(Body, frozen=True):
    """A policy of the catalog, with options: muri-l:quantum_s=60."""

    policy: PolicyText
    may_lose_work: bool = False
    """Whether it may stop jobs that cannot resume from a checkpoint."""


class ForecastIn(Body, frozen=True):
    """Early end, middle and late end of what is expected, seconds from now; null for never."""

    end: Three
    start: Three | None = None
    """null for a job that runs."""


class ChoiceIn(Body, frozen=True):
    """Changes to assume: another policy, nodes (`+2x8`), nodes that were not there, priorities by job."""

    policy: PolicyText | None = None
    """The policy that would decide; null: the current one."""
    nodes: Annotated[str, Meta(min_length=1, max_length=200)] | None = None
    """Nodes more: +2x8 is two with 8 GPUs each."""
    without: Annotated[list[Text], Meta(max_length=1000)] = []
    """Names of nodes that would be gone."""
    priority: Annotated[
        dict[Annotated[str, Meta(pattern=r"^j-[0-9]{1,15}$")], Annotated[float, Meta(ge=-1e9, le=1e9)]],
        Meta(max_length=1000),
    ] = {}
    """Name of a job -> the priority that it would have."""


class GoneIn(Body, frozen=True):
    """How a backend knows that a node is dead."""

    why: Text = ""
    certain: bool = True
    """Whether it is certain that nothing runs there any more; otherwise its lease is waited for."""


class TokenIn(Body, frozen=True):
    """The user and role of a new token."""

    user: Name
    role: Literal["admin", "user", "viewer", "agent"] = "user"
    project: Name = "default"
    expires_in_s: Annotated[float, Meta(gt=0, le=1e10)] | None = None
    """Seconds until the token expires; null: never."""
    node: Node | None = None
    """The node that an agent's token is for; of the role agent only."""

    def __post_init__(self) -> None:
        if (self.role == "agent") != (self.node is not None):
            raise ValueError("an agent's token names its node, and no other does")


class ProjectIn(Body, frozen=True):
    """A project: GPUs that its jobs may hold together, its share relative to others, and time limits of its jobs."""

    name: Name
    quota_gpus: Annotated[int, Meta(ge=0, le=1_000_000)] | UnsetType | None = UNSET
    """null: no limit; left out: as it is."""
    weight: Annotated[float, Meta(gt=0, le=1e9)] | None = None
    """null: as it is."""
    default_time_s: Annotated[float, Meta(gt=0, le=1e10)] | UnsetType | None = UNSET
    """The time limit of jobs that state none. null: none; left out: as it is."""
    most_time_s: Annotated[float, Meta(gt=0, le=1e10)] | UnsetType | None = UNSET
    """The longest time limit that jobs may state. null: any; left out: as it is."""
    most_idle_s: Annotated[float, Meta(gt=0, le=1e10)] | UnsetType | None = UNSET
    """End jobs whose GPUs were all unused for so long. null: do not; left out: as it is."""


class ReservationIn(Body, frozen=True):
    """Nodes that are to be for jobs of a project alone, for some time."""

    nodes: Annotated[list[Name], Meta(min_length=1, max_length=1000)]
    project: Name
    for_s: Annotated[float, Meta(gt=0, le=1e9)]
    """Seconds from its beginning to its end."""
    in_s: Annotated[float, Meta(ge=0, le=1e9)] = 0.0
    """Seconds from now to its beginning."""


class BackupIn(Body, frozen=True):
    """Where the copy goes, on the machine of the service."""

    path: Annotated[str, Meta(min_length=1, max_length=4096, pattern=r"^[^\x00]*$")]


# -- jobs ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Schema:
    """A body with a schema of its own, and the function that reads its JSON, or if `raw` its bytes."""

    schema: Mapping[str, Any]
    read: Callable[[Any], Any]
    raw: bool = False


def _read_submission(data: Any) -> tuple[list[dict[str, Any]], bool]:
    """The stored forms of the jobs, and whether they were sent as several."""
    if not isinstance(data, dict) or "jobs" not in data:
        return [request_of(data)], False
    jobs = data["jobs"]
    if set(data) != {"jobs"} or not isinstance(jobs, list) or not 1 <= len(jobs) <= MOST_JOBS:
        raise WrongField(f"jobs needs to be a list of 1 to {MOST_JOBS:,} jobs, and nothing next to it", "jobs")
    out, count, text = [], 0, 0
    for i, job in enumerate(jobs):
        try:
            out.append(request_of(job))
        except WrongField as error:
            raise WrongField(f"job {i}: {error}", f"jobs.{i}.{error.field}".rstrip(".")) from None
        more, characters = extent(out[-1])
        count, text = count + more, text + characters
        if count > MOST_JOBS or text > MOST_TEXT:  # at once, as the rest may cost much more
            raise WrongField(
                f"jobs has more than {MOST_JOBS:,} jobs with the members of its arrays, or more than {MOST_TEXT:,} "
                "characters in their requests; submit them in several parts", "jobs",
            )  # fmt: skip
    return out, True


@dataclass(frozen=True)
class Update:
    """Changes of a job by the names of its fields; None: as if the field had not been given."""

    fields: dict[str, Any]
    may_lose_work: bool


def _read_update(data: Any) -> Update:
    fields = dict(data) if isinstance(data, dict) else data
    lose = _flag(fields, "may_lose_work") if isinstance(fields, dict) else False
    changed = check_fields(fields, CHANGEABLE)
    if not changed:
        raise InputError(f"nothing is to change; give one of {', '.join(CHANGEABLE)}")
    return Update(changed, lose)


def _flag(fields: dict[str, Any], name: str) -> bool:
    """Take a flag out of `fields`."""
    value = fields.pop(name, False)
    if not isinstance(value, bool):
        raise WrongField(f"{name} is {value!r:.60}, needs true or false", name)
    return value


def _read_different(data: Any) -> tuple[dict[str, Any], bool]:
    """The fields in which a clone differs, and whether it starts from the last checkpoint."""
    if not isinstance(data, dict):
        raise InputError("needs an object of the fields that are to be different")
    fields = dict(data)
    start = _flag(fields, "from_checkpoint")
    return fields, start


_JOB = {"title": "JobIn", "description": "A job as it is submitted.", **schema_of(Job)}
_CHANGES = {name: rule for name, rule in _JOB["properties"].items() if name in CHANGEABLE}
JOB = Schema({"$ref": f"{PREFIX}JobIn"}, request_of)
SUBMISSION = Schema({"anyOf": [{"$ref": f"{PREFIX}JobIn"}, {"$ref": f"{PREFIX}JobsIn"}]}, _read_submission)
UPDATE = Schema({"$ref": f"{PREFIX}UpdateIn"}, _read_update)
#: Some fields of a job, which are checked together with its current ones.
DIFFERENT = Schema(
    {
        "type": "object", "description": "Fields of a submission that are to be different.",
        "additionalProperties": True,
        "properties": {
            "from_checkpoint": {
                "type": "boolean", "default": False,
                "description": "Whether to start from the last checkpoint of the job, which has to have ended.",
            }
        },
    },
    _read_different,
)  # fmt: skip
#: Components of the description to which these refer.
COMPONENTS: dict[str, Any] = {
    "JobIn": _JOB,
    "JobsIn": {
        "title": "JobsIn", "description": "Several jobs, all or none.", "type": "object", "required": ["jobs"],
        "additionalProperties": False,
        "properties": {
            "jobs": {"type": "array", "items": {"$ref": f"{PREFIX}JobIn"}, "minItems": 1, "maxItems": MOST_JOBS}
        },
    },
    "UpdateIn": {
        "title": "UpdateIn", "type": "object", "additionalProperties": False,
        "description": "Changes of a job; null: as if the field had not been given. A missing field stays.",
        "properties": {
            **{name: {"anyOf": [rule, {"type": "null"}]} for name, rule in _CHANGES.items()},
            "may_lose_work": {
                "type": "boolean", "default": False,
                "description": "Whether it may begin at the beginning, as it cannot resume from a checkpoint.",
            },
        },
    },
}  # fmt: skip


# -- messages that have types of their own -------------------------------------------------------------------

REPORT = Schema({"$ref": f"{PREFIX}agent.Observed"}, decode_report, raw=True)
ASSIGNMENT: dict[str, Any] = {"$ref": f"{PREFIX}agent.Assignment"}
#: Entries of the log.
ENTRIES: dict[str, Any] = {
    "type": "object", "required": ["events"],
    "properties": {
        "events": {
            "type": "array", "items": {"$ref": f"{PREFIX}log.LogEntry"}, "description": "Entries, oldest first.",
        }
    },
}  # fmt: skip


# -- reading ------------------------------------------------------------------------------------------------

_KINDS = {
    "int": "a whole number", "float": "a number", "str": "a text", "bool": "true or false", "array": "a list",
    "object": "fields", "null": "null",
}  # fmt: skip
_SIGNED = "letters, digits and {} -, the first a letter or a digit"
_FORMS = {
    "^[A-Za-z0-9][A-Za-z0-9._@-]*$": _SIGNED.format(". _ @"), f"^{NODE_NAME.pattern}$": _SIGNED.format(". _"),
}  # fmt: skip
_PLACE = re.compile(r"(?: - at `(?:key` in `)?\$(?P<path>[^`]*)`)?$")
_NAMED = re.compile(r"Object (?:missing required|contains unknown) field `(?P<name>[^`]*)`")


def parse(kind: Any, data: Any, *, strict: bool = True) -> Any:
    """A request as this struct or `Schema`; raises `Invalid` that names the first wrong field.

    Not `strict`: texts may stand for numbers, as in queries.
    """
    try:
        if isinstance(kind, Schema):
            return kind.read(data)
        return msgspec.convert(data, kind, strict=strict)
    except WrongField as error:
        raise Invalid(str(error), re.sub(r"\[(\d+)\]", r".\1", error.field) or None) from None
    except InputError as error:
        raise Invalid(str(error)) from None
    except msgspec.ValidationError as error:
        raise _invalid(str(error), data) from None


def _invalid(text: str, data: Any) -> Invalid:
    """An error of msgspec in the words of this API: Expected `int`, got `str` - at `$.jobs[0].gpus`."""
    place = _PLACE.search(text)
    assert place is not None, "the whole of it may be missing"
    steps = re.findall(r"\w+", place["path"] or "")
    if named := _NAMED.match(text):
        missing = "missing" in named[0]
        name = named["name"]
        return Invalid(f"{name} is missing" if missing else f"{name} is not known", ".".join([*steps, name]))
    for step in steps:
        data = data[int(step)] if isinstance(data, list) else data.get(step) if isinstance(data, dict) else None
    message = re.sub(r", got `\w+`$", "", text[: place.start()])
    message = re.sub(r"`([^`]+)`", lambda found: " or ".join(_KINDS.get(w, w) for w in found[1].split(" | ")), message)
    message = message.replace("Expected ", "needs ")
    message = re.sub(r"a text matching regex '(.*)'", lambda m: _FORMS.get(m[1], "other characters"), message)
    if not isinstance(data, (dict, list)):
        message += f" (got {str(data)[:60]!r})"
    return Invalid(message, ".".join(steps) or None)
