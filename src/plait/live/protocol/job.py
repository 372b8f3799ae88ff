"""Fields of a job, declared once: schema, check of the service and options of `plait submit` are made of them."""

import typing
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field, is_dataclass
from typing import Any, Literal

from plait.core.ina_request import MOST_MEMORY, MOST_PRIORITY, MOST_WINDOW, Addressing, Mode, Protocol
from plait.core.options import Declared, Option, declared, put

_JSON = {int: "integer", float: "number", str: "string", bool: "boolean"}


@dataclass(frozen=True)
class JobField(Option):
    """A field of a job; `help` is its text in the command line, too.

    more    sentences that only the schema has
    null    whether null is a value, and means that it is not given
    rule    what its values have to be, in words of JSON Schema
    items   the same of the texts in a list or a mapping, and `names` of the keys of a mapping
    """

    more: str = ""
    null: bool = False
    rule: Mapping[str, Any] = field(default_factory=dict)
    items: Mapping[str, Any] = field(default_factory=dict)
    names: Mapping[str, Any] = field(default_factory=dict)


def said(meaning: str, *, default: Any = None, **more: Any) -> Any:
    """A field of a job; `more` are fields of `JobField`, or else what its values have to be."""
    own = {name: more.pop(name) for name in tuple(more) if name in JobField.__dataclass_fields__}
    return put(JobField(meaning, rule=more, **own), default)


#: One line: no control characters, also of the second set, and no marks that turn the direction of writing.
LINE = {"maxLength": 200, "pattern": r"^[^\x00-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069]*$"}
#: Characters of a word of a command, and of the value of a variable, at most.
LONGEST_WORD = 65_536
_TEXT = {"maxLength": LONGEST_WORD, "pattern": r"^[^\x00]*$"}
_GPUS = {"minimum": 1, "maximum": 100_000}
_EXAMPLES = {"minimum": 1, "maximum": 1_000_000_000}
_SIZE = {"minimum": 0, "maximum": 1e18}
#: A tag has no space, and matches in any case.
TAG = {"minLength": 1, "maxLength": 100, "pattern": r"^[A-Za-z0-9][A-Za-z0-9._@:/=+-]*$"}
_JOBS: dict[str, Any] = {"items": {"minLength": 1, **LINE}, "maxItems": 1000}
_SECONDS = {"minimum": 0, "maximum": 1e6}


@dataclass(frozen=True)
class Batch:
    """Bounds of the batch of an adaptive job, in examples; see `plait.core.goodput.BatchLimits`."""

    initial: int = said(
        "Adaptive: the batch its learning rate was tuned for", default=MISSING, flag="batch-size",
        more="Examples of one optimizer step, all GPUs together.", **_EXAMPLES,
    )  # fmt: skip
    most: int | None = said(
        "Adaptive: the largest batch, all GPUs together", flag="max-batch-size",
        more="Default: initial, which keeps the batch and lets only the GPUs change.", **_EXAMPLES,
    )  # fmt: skip
    least_local: int | None = said(
        "Minimum examples of one GPU in one pass", unset="1", flag="local-batch", **_EXAMPLES
    )
    most_local: int | None = said(
        "Most examples that fit on one GPU in one pass", unset="most", flag="local-batch", **_EXAMPLES
    )
    accumulation: bool = said("Adaptive jobs: allow several passes per optimizer step", default=False)
    parameters: int | None = said(
        "Parameters of the model, if plait chooses its execution plan", unset="no plan is chosen",
        more="For scripts that call plait.training.adaptive.parallelize.", minimum=1, maximum=10**15,
    )  # fmt: skip
    example_bytes: int | None = said(
        "Bytes of activations of an example on a GPU; with parameters", unset="0", minimum=0, maximum=10**15
    )
    zero_stage: int | None = said("The only ZeRO stage of its plans: 0, 2 or 3", unset="any", minimum=0, maximum=3)


@dataclass(frozen=True)
class Profile:
    """Seconds that an iteration uses each resource when the job runs alone."""

    storage: float = said("Seconds of reading data", default=0.0, **_SECONDS)
    cpu: float = said("Seconds of CPU work", default=0.0, **_SECONDS)
    gpu: float = said("Seconds of GPU work", default=0.0, **_SECONDS)
    network: float = said("Seconds of synchronization", default=0.0, **_SECONDS)
    iteration_s: float | None = said("Less than the sum where stages overlap", exclusiveMinimum=0, maximum=1e6)


@dataclass(frozen=True)
class Ina:
    """Request for in-network aggregation; see `plait.core.ina_request.InaRequest`."""

    mode: Mode = said("auto: where it is granted; require: run only with a grant; off: never", default="auto")
    protocol: Protocol | None = said("Aggregate as this system does", unset="as the manager decides")
    index: Addressing | None = said("How workers choose aggregators", unset="as the system does")
    memory: int = said(
        "Aggregators of a switch; 0: as many as the memory manager decides", default=0, minimum=0, maximum=MOST_MEMORY
    )
    window: int = said(
        "Packets that a worker may have outstanding; 0: by bandwidth and delay", default=0, minimum=0,
        maximum=MOST_WINDOW,
    )  # fmt: skip
    priority: int = said(
        "Priority of its packets, for systems with priorities; 0: computed", default=0, minimum=0,
        maximum=MOST_PRIORITY,
    )  # fmt: skip
    ttl_s: float | None = said(
        "Seconds after which a grant ends by itself", unset="with the job", exclusiveMinimum=0, maximum=1e12
    )


@dataclass(frozen=True, kw_only=True)
class Job:
    """One job: a command that runs as one process a GPU. `plait submit -f job.yaml` reads it as YAML or TOML."""

    command: list[str] = said(
        "The program and its arguments", default=MISSING, items=_TEXT, minItems=1, maxItems=4096,
        more="They are passed on unchanged, without a shell.",
    )  # fmt: skip
    name: str | None = said("Label of the job", short="n", more="Need not be unique.", **LINE)
    workdir: str | None = said(
        "Folder to run in", unset="where `plait submit` is called", maxLength=4096, pattern=r"^[^\x00]*$"
    )
    python: str | None = said(
        "Interpreter that runs as `python` and `python3` in the command", unset="the submitter's",
        minLength=1, maxLength=4096, pattern=r"^/[^\x00]*$",
    )  # fmt: skip
    container: str | None = said(
        "Image to run in (Apptainer, Podman or Docker)",
        more="Runs with the one that its node has; the interpreter is that of the image.",
        maxLength=4096, pattern=r"^[^\x00-\x20-][^\x00-\x20]*$",
    )  # fmt: skip
    env: dict[str, str] | None = said(
        "Environment variables, added to those of the node", maxProperties=1000, items=_TEXT,
        names={"minLength": 1, "maxLength": 1000, "pattern": r"^[^\x00=]*$"},
    )  # fmt: skip
    gpus: int = said(
        "Number of GPUs, one process on each; the job gets all of them or none; 0: one process on a CPU slot",
        default=1,
        short="g",
        minimum=0,
        maximum=100_000,
    )
    nodes: int | None = said(
        "Number of nodes, with --gpus-per-node another way to write --gpus", **_GPUS,
        more="A job gets as few nodes as can hold it, so these may be fewer.",
    )  # fmt: skip
    gpus_per_node: int | None = said("GPUs of each of the --nodes", unset="1", **_GPUS)
    exclusive: bool = said(
        "Whole nodes: the number of GPUs is raised to that of the nodes that hold them", default=False
    )
    gpu_kinds: list[str] | None = said(
        "GPU kind that the job may use, e.g. a100", flag="gpu-kind", unset="any", items={"minLength": 1, **LINE},
        maxItems=20, more="A part of the name that the driver gives is enough, in any case.",
    )  # fmt: skip
    wait_for_nodes: bool = said(
        "Accept the job even if the cluster cannot grow enough to hold it", default=False,
        more="Without it such a job is refused.",
    )  # fmt: skip
    min_gpus: int | None = said("Elastic jobs: minimum GPUs that it can run on", unset="gpus", **_GPUS)
    max_gpus: int | None = said("Elastic jobs: most GPUs that it can use", unset="gpus", **_GPUS)
    batch: Batch | None = said(
        "Adaptive jobs: bounds of the batch size in examples",
        more="A policy that knows goodput then chooses its GPUs between min_gpus and max_gpus.",
    )
    processes_per_gpu: int = said(
        "Processes on each GPU or slot; the gang has gpus times this many", default=1, minimum=1, maximum=64
    )
    iterations: float | None = said(
        "Optimizer steps that the job makes", unset="until exit", null=True,
        more="Adaptive jobs: steps at the initial batch. Empty: until it exits.",
        exclusiveMinimum=0, maximum=1e15,
    )  # fmt: skip
    model: str | None = said("Name of the trained model; jobs of one model share measurements", **LINE)
    job_class: Literal["guaranteed", "opportunistic", "auto"] = said(
        "Job class: guaranteed, opportunistic or auto", default="guaranteed", flag="class",
        more="A guaranteed job owns its GPUs; an opportunistic one uses GPUs that others leave free. "
        "auto: guaranteed if quota and GPUs allow it, otherwise opportunistic until they do.",
    )  # fmt: skip
    output: str | None = said(
        "File to which the output is appended too; {job} in it is the job's id", maxLength=4096, minLength=1,
        pattern=r"^[^\x00]*$", more="Relative to workdir, on the nodes.",
    )  # fmt: skip
    retries: int | None = said(
        "Restarts after failures", unset="3, or until it ends twice in the same way", minimum=0, maximum=1000
    )
    gpu_memory: float | None = said("GPU memory per process, e.g. 4G", more="A plain number is in bytes.", **_SIZE)
    cpus: float | None = said("CPU cores of the whole job", more="0: no limit.", **_SIZE)
    memory: float | None = said(
        "Memory of the whole job, e.g. 16G", more="A plain number is in bytes; 0: no limit.", **_SIZE
    )
    deadline_s: float | None = said(
        "Deadline in seconds from the submission, for policies with deadlines=on", exclusiveMinimum=0, maximum=1e12
    )
    time_limit_s: float | None = said(
        "End the job after so long on GPUs, all its attempts together, e.g. 90m, 2h or 1d12h", flag="time",
        exclusiveMinimum=0, maximum=1e9, more="In seconds, or a text with units.",
    )  # fmt: skip
    signal_s: float | None = said(
        "Request the last checkpoint so long before the time limit, e.g. 120s; the job may run on until the limit",
        unset="at the limit, with the usual time for a checkpoint", minimum=0, maximum=1e6,
        more="In seconds, or a text with units.",
    )  # fmt: skip
    hold: bool = said("Let the job wait until `plait release`", default=False)
    begin_s: float | None = said(
        "Start the job no earlier, e.g. 18:00, 2h or 2026-12-24T18:00", minimum=0, maximum=1e9,
        more="Seconds from the submission, or a text with units.",
    )  # fmt: skip
    after: list[str] | None = said(
        "Start the job once this job has finished, e.g. j-3", **_JOBS,
        more="If that fails or is cancelled, this job fails. In job files also the name of another job of the file.",
    )  # fmt: skip
    after_any: list[str] | None = said("Start the job once this job has ended, in whatever way, e.g. j-3", **_JOBS)
    after_fail: list[str] | None = said("Start the job once this job has failed, e.g. j-3", **_JOBS)
    notify: list[str] | None = said(
        "Send events of the job to this channel, e.g. mail or mail:started+failed", unset="as the channels say",
        more="Channels are declared with `plait up --notify`.",
        items={"minLength": 1, **LINE}, maxItems=20,
    )  # fmt: skip
    array: str | None = said(
        "Array: a job for each index, e.g. 0-19, 1,3,5 or 0-90:10; with %4 behind it at most 4 run at once",
        maxLength=1000, pattern=r"^[0-9,:%-]+$",
        more="PLAIT_ARRAY_INDEX in its environment and {index} in its command are a job's index.",
    )  # fmt: skip
    matrix: dict[str, list[Any]] | None = said(
        "Array: a job for each combination of values, e.g. lr=0.1,0.01 seed=1,2",
        more="Variables of its environment and {lr} in its command have a job's values. `array: '%4'` next to it: at "
        "most 4 run at once.",
        maxProperties=100, items=_TEXT, names={"minLength": 1, **LINE},
    )  # fmt: skip
    tags: list[str] | None = said(
        "Tag by which jobs can be listed and changed together", flag="tag", items=TAG, maxItems=20,
    )  # fmt: skip
    ina: Ina | None = said(
        "In-network aggregation: auto, require or off, then fields, e.g. require:memory=2048", unset="auto",
        more="A text in the form of the option --ina stands for the fields.",
    )  # fmt: skip
    servers: int | None = said(
        "Parameter servers: ranks that PLAIT_SERVERS lists start one each", unset="none", minimum=0, maximum=1000,
        more="A JSON list with the rank that starts each server, on nodes where they level the load of links.",
    )  # fmt: skip
    gradient_bytes: float | None = said(
        "Size of all gradients of an iteration, e.g. 100M", unset="by the name of the model",
        more="A plain number is in bytes; what memory of switches is planned with.", **_SIZE,
    )  # fmt: skip
    checkpoint_s: float = said("Seconds between checkpoints", default=60.0, exclusiveMinimum=0, maximum=1e9)
    merge: bool = said(
        "Allow the job to share a process with your other jobs in this folder", default=False,
        more="Such jobs have the same user, project, folder and Python, and one CUDA context.",
    )  # fmt: skip
    project: str | None = said(
        "Project whose quota the job counts against", maxLength=100, pattern=r"^[A-Za-z0-9][A-Za-z0-9._@-]*$"
    )
    priority: float | None = said(
        "Priority; higher runs first",
        unset="0",
        more="The submission warns if the policy ignores it.",
        minimum=-1e9,
        maximum=1e9,
    )
    profile: Profile | None = said(
        "Seconds that an iteration uses each resource when the job runs alone", unset="measured"
    )
    skew: float | None = said(
        "Size of the largest tensor relative to all tensors, 0 to 1 (Tiresias, section 3)", minimum=0, maximum=1
    )


#: Fields that hold bytes; files and options may write 4G or 512Mi.
BYTES = ("gpu_memory", "memory", "gradient_bytes")
#: Fields that hold durations in seconds; files and options may write 90m or 1d12h.
DURATIONS = ("time_limit_s", "signal_s", "begin_s")


def key_of(one: Declared) -> str:
    """The name of a field in job files: that of the attribute, unless Python keeps it for itself.

    >>> [key_of(one) for one in declared(Job) if one.word == "class"]
    ['class']
    """
    return "class" if one.name == "job_class" else one.name


def schema_of(kind: type[Any]) -> dict[str, Any]:
    """The JSON Schema of `Job`, or of a part of it."""
    known = declared(kind)
    required = [key_of(one) for one in known if one.default is MISSING]
    return {
        "type": "object", "additionalProperties": False, **({"required": required} if required else {}),
        "properties": {key_of(one): _schema(one) for one in known},
    }  # fmt: skip


def meaning_of(one: Declared) -> str:
    """Description of a field in schemas."""
    rules = typing.cast("JobField", one.option)
    text = one.text if rules.unset else f"{rules.help}."
    return f"{text} {rules.more}".strip()


def _schema(one: Declared) -> dict[str, Any]:
    rules, origin = typing.cast("JobField", one.option), typing.get_origin(one.type)
    out: dict[str, Any] = {"description": meaning_of(one)}
    if is_dataclass(one.type):
        return out | schema_of(typing.cast("type[Any]", one.type))
    if origin is Literal:
        out["enum"] = list(typing.get_args(one.type))
    elif origin is list:
        out |= {"type": "array", "items": {"type": "string", **rules.items}}
    elif origin is dict:
        text: dict[str, Any] = {"type": "string", **rules.items}
        several = typing.get_origin(typing.get_args(one.type)[1]) is list
        values = {"type": "array", "minItems": 1, "items": {**text, "type": ["string", "number"]}}
        out |= {
            "type": "object",
            "propertyNames": rules.names,
            "additionalProperties": values if several else text,
        }
    else:
        out["type"] = [_JSON[one.type], "null"] if rules.null else _JSON[one.type]
    out |= rules.rule
    if one.default is not None and one.default is not MISSING:
        out["default"] = one.default
    return out
