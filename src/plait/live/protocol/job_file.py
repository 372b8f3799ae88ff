"""Job files: YAML or TOML, checked against the published schema before anything is sent.

The schema (printed by `plait submit --schema`) is made of `plait.live.protocol.job`, the one declaration of the fields
of a job. The checker here knows the part of JSON Schema that it uses and names the field that is wrong.
"""

import json
import math
import re
import tomllib
from collections.abc import Collection, Mapping
from dataclasses import MISSING, is_dataclass
from functools import cache
from pathlib import Path
from typing import Any

from plait.core.errors import InputError, MissingExtra, suggest
from plait.core.ina_request import fields_of
from plait.core.options import declared
from plait.live.protocol.arrays import extent
from plait.live.protocol.job import BYTES, DURATIONS, Job, key_of, schema_of


class WrongField(InputError):
    """A field of a job that does not fit the schema."""

    def __init__(self, message: str, field: str) -> None:
        """`field`: its path, such as batch.initial; empty for the job itself."""
        super().__init__(message)
        self.field = field


_TYPES: Mapping[str, tuple[type, ...]] = {
    "object": (dict,),
    "array": (list,),
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "null": (type(None),),
    "boolean": (bool,),
}
#: Names of JSON's types in messages.
_KINDS: Mapping[str, str] = {
    "object": "fields",
    "array": "a list",
    "string": "a text",
    "integer": "a whole number",
    "number": "a number",
    "null": "nothing",
    "boolean": "true or false",
}
_UNITS = {"": 1, "k": 1e3, "m": 1e6, "g": 1e9, "t": 1e12, "ki": 2**10, "mi": 2**20, "gi": 2**30, "ti": 2**40}


def schema_text() -> str:
    """The published JSON Schema of a job, as text."""
    return json.dumps(schema(), indent=2) + "\n"


@cache
def schema() -> dict[str, Any]:
    """The published JSON Schema of a job."""
    about = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "plait job",
        "description": Job.__doc__,
    }
    found: dict[str, Any] = _as_text({**about, **schema_of(Job)})
    return found


def _as_text(value: Any) -> Any:
    """The same with characters in patterns as JSON Schema has them."""
    if isinstance(value, Mapping):
        return {
            name: one.replace("\\x", "\\u00") if name == "pattern" else _as_text(one) for name, one in value.items()
        }
    return value


def check(job: Any, where: str) -> dict[str, Any]:
    """The job, with sizes in bytes and durations in seconds.

    Raises `InputError` naming `where` and the field that does not fit the schema.

    >>> check({"command": ["python", "train.py"], "memory": "4G"}, "job.yaml")["memory"]
    4000000000
    """
    if isinstance(job, dict):
        start = f"{where}: " if where else ""
        job = {k: read_text(k, v, f"{start}{k}") if isinstance(v, str) else v for k, v in job.items()}
        if isinstance(job.get("ina"), str):
            job["ina"] = ina_fields(job["ina"], start)
    _check(job, schema(), where, "")
    checked = _with_gpus_of_nodes(job, where)
    try:
        extent(checked)
    except InputError as error:
        raise WrongField(f"{where}: {error}" if where else str(error), str(error).split()[0]) from None
    return checked


def _with_gpus_of_nodes(job: Mapping[str, Any], where: str) -> dict[str, Any]:
    """The job with `gpus` in place of its nodes and their GPUs; a job of whole nodes keeps its number of these."""
    out = {key: value for key, value in job.items() if key != "gpus_per_node"}
    nodes, each = job.get("nodes"), job.get("gpus_per_node")
    if each is None and (nodes is None or (job.get("exclusive") and "gpus" in job)):
        return out
    gpus = (nodes or 1) * (each or 1)
    if job.get("gpus", gpus) != gpus:
        name = ": ".join(filter(None, (where, "gpus")))
        raise WrongField(f"{name} is {job['gpus']}, and {nodes or 1} nodes of {each or 1} GPUs have {gpus}", "gpus")
    if nodes is not None and not job.get("exclusive"):
        del out["nodes"]
    return {**out, "gpus": gpus}


def request_of(data: Any, where: str = "") -> dict[str, Any]:
    """The stored form of a job: its fields with the defaults of those that are missing, numbers as JSON reads them.

    A null means that the field is not given. Raises `InputError`, a `WrongField` that has the field where one is wrong.

    >>> request_of({"command": ["true"], "priority": 3, "name": None})["priority"]
    3.0
    """
    data = without_nulls(data)
    checked = check(data, where)
    if not checked["command"][0].strip():
        raise WrongField("command: the program's name is empty", "command")
    profile = checked.get("profile")
    if profile and not sum(profile.get(stage, 0.0) for stage in ("storage", "cpu", "gpu", "network")) > 0:
        raise WrongField("profile: all stages take 0 s", "profile")
    return _whole(Job, checked)


def check_fields(fields: Any, names: Collection[str]) -> dict[str, Any]:
    """Some fields of a job, of these names, as they are stored; a null stays. Raises `WrongField` for others."""
    known = schema()["properties"]
    _check(fields, {"type": "object"}, "", "")
    floats = {key_of(one) for one in declared(Job) if one.type is float}
    out = {}
    for name, value in fields.items():
        if name not in names:
            raise WrongField(f"{name} cannot be given here; {suggest(str(name), names)}", str(name))
        if value is not None:
            _check(value, known[name], "", name)
        out[name] = float(value) if name in floats and value is not None else value
    return out


def without_nulls(data: Any) -> Any:
    """The same without fields of null, in objects as deep as fields of a job are."""
    if not isinstance(data, dict):
        return data
    return {
        name: {k: v for k, v in value.items() if v is not None} if isinstance(value, dict) and name != "env" else value
        for name, value in data.items()
        if value is not None
    }


def _whole(kind: type[Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """Fields of a job, or of a part of it, as they are stored: with defaults, but for flags, and floats as floats."""
    out: dict[str, Any] = {}
    for one in declared(kind):
        key, default = key_of(one), {} if one.name == "env" else one.default
        value = given.get(key, None if one.type is bool or default is MISSING else default)
        if value is not None:
            of_fields = is_dataclass(one.type)
            out[key] = _whole(one.type, value) if of_fields else float(value) if one.type is float else value
    return out


def read_jobs(path: str | Path) -> list[dict[str, Any]]:
    """The jobs of a file: one job, a list of jobs, or `jobs:` with a list; by its ending `.toml`, `.json` or YAML.

    Raises `InputError` naming file and field; `MissingExtra` for YAML without PyYAML.
    """
    file = Path(path)
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise InputError(f"cannot read the job file {path}: {reason}") from error
    return jobs_of_text(text, str(path))


def jobs_of_text(text: str, name: str) -> list[dict[str, Any]]:
    """The jobs of the text of a file of this name, whose ending sets the format as in `read_jobs`; its errors, too."""
    data = _parse(text, Path(name))
    several = data.get("jobs") if isinstance(data, dict) and set(data) == {"jobs"} else data
    if isinstance(several, list):
        if not several:
            raise InputError(f"{name} has no jobs in it")
        return [check(job, f"{name}: job {i}") for i, job in enumerate(several, start=1)]
    return [check(data, name)]


def parse_bytes(text: str, what: str) -> int:
    """Bytes of `512Mi`, `4G`, `1e9`; decimal without an `i`, as units of the SI are.

    >>> parse_bytes("512Mi", "--memory")
    536870912
    """
    match = re.fullmatch(r"\s*([0-9.]+(?:e[0-9]+)?)\s*([kmgt]i?)?b?\s*", text, flags=re.IGNORECASE)
    try:
        if match is None:
            raise ValueError
        value = int(float(match[1]) * _UNITS[(match[2] or "").lower()])
        if not match[2] and 0 < value < 1e6:  # meant as megabytes or gigabytes, as elsewhere
            raise ValueError
        return value
    except (ValueError, OverflowError):
        raise InputError(f"{what} is {text[:80]!r}; write a size such as 512Mi or 4G") from None


def ina_fields(text: str, where: str) -> dict[str, Any]:
    """The fields of `ina` that a short text sets; `InputError` that begins with `where` if it is not one.

    >>> ina_fields("require:memory=2048", "job.yaml: ")
    {'mode': 'require', 'memory': 2048}
    """
    try:
        return fields_of(text)
    except InputError as error:
        raise InputError(f"{where}{error}") from None


def read_text(key: str, text: str, what: str) -> Any:
    """The value of a field of a job that a text stands for: bytes, seconds, or the text itself."""
    if key in BYTES:
        return parse_bytes(text, what)
    return parse_seconds(text, what) if key in DURATIONS else text


def parse_seconds(text: str, what: str, *, above_zero: bool = False) -> float:
    """Seconds of `90m`, `1d12h`, `2:00:00` or `1-12:00:00`; a number needs a unit, as it is minutes elsewhere.

    >>> parse_seconds("1d12h", "--time"), parse_seconds("1-12:00:00", "--time"), parse_seconds("90s", "--time")
    (129600.0, 129600.0, 90.0)
    """
    units = r"(?:(\d{1,5})w)?(?:(\d{1,6})d)?(?:(\d{1,8})h)?(?:(\d{1,9})m(?:in)?)?(?:(\d{1,10}(?:\.\d+)?)s)?"
    match = re.fullmatch(units, text.strip()) or re.fullmatch(r"()(?:(\d{1,6})-)?(\d{1,8}):(\d\d):(\d\d)", text.strip())
    if match is None or not any(match.groups()):
        raise InputError(f"{what} is {text[:80]!r}; write a duration with units, e.g. 90m, 2h, 1d12h or 2:00:00")
    units_s = (604800, 86400, 3600, 60, 1)
    seconds = sum(float(part or 0) * unit_s for part, unit_s in zip(match.groups(), units_s, strict=True))
    if above_zero and seconds == 0:
        raise InputError(f"{what} is {text[:80]!r}, needs more than 0 s, e.g. 30m or 4h")
    return seconds


def _parse(text: str, file: Path) -> Any:
    suffix = file.suffix.lower()
    try:
        if suffix == ".toml":
            return tomllib.loads(text)
        if suffix == ".json":
            return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InputError(f"{file}: not {suffix[1:].upper()}, or nested too deeply: {error}") from error
    try:
        import yaml
    except ImportError:
        raise MissingExtra("PyYAML", "live", f"reading {file}") from None
    try:
        return yaml.safe_load(text)
    except (yaml.YAMLError, ValueError, OverflowError, TypeError, RecursionError) as error:
        # PyYAML raises other errors for invalid dates, numbers of 4,300 digits, and deep nesting.
        problem = " ".join(str(error).split())
        raise InputError(f"{file}: not YAML, or nested too deeply: {problem}") from error


# -- the part of JSON Schema that the published schema uses ------------------------------------------------


def _check(value: Any, rule: Mapping[str, Any], where: str, field: str) -> None:
    name = ": ".join(filter(None, (where, field)))
    if "enum" in rule and value not in rule["enum"]:
        hint = suggest(_said(value).strip("'"), [str(v) for v in rule["enum"]])
        raise WrongField(f"{name} is {_said(value)}; {hint}", field)
    if "type" in rule:
        wanted = rule["type"] if isinstance(rule["type"], list) else [rule["type"]]
        kinds = tuple(kind for w in wanted for kind in _TYPES[w])
        if not isinstance(value, kinds) or (isinstance(value, bool) and "boolean" not in wanted):
            kinds_wanted = " or ".join(_KINDS[w] for w in wanted)
            raise WrongField(f"{name} is {_said(value)}, needs {kinds_wanted}" + _form(value, wanted, rule), field)
    if isinstance(value, (int, float)):
        low, above, high = rule.get("minimum"), rule.get("exclusiveMinimum"), rule.get("maximum")
        if value != value or value in (math.inf, -math.inf):
            raise WrongField(f"{name} is {_said(value)}, needs a finite number", field)
        if low is not None and value < low:
            raise WrongField(f"{name} is {_said(value)}, needs at least {low}", field)
        if above is not None and value <= above:
            raise WrongField(f"{name} is {_said(value)}, needs more than {above}", field)
        if high is not None and value > high:
            raise WrongField(f"{name} is {_said(value)}, needs at most {high}", field)
    elif isinstance(value, str):
        _check_text(value, rule, name, field)
    elif isinstance(value, list):
        if len(value) < rule.get("minItems", 0):
            raise WrongField(f"{name} is empty; give at least {rule['minItems']}", field)
        if len(value) > rule.get("maxItems", len(value)):
            raise WrongField(f"{name} has {len(value)} entries; at most {rule['maxItems']} fit", field)
        for i, item in enumerate(value):
            _check(item, rule.get("items", {}), where, f"{field}[{i}]")
    elif isinstance(value, dict):
        known, others = rule.get("properties", {}), rule.get("additionalProperties", True)
        start = f"{where}: " if where else ""
        if len(value) > rule.get("maxProperties", len(value)):
            raise WrongField(f"{start}{field} has {len(value)} entries; at most {rule['maxProperties']} fit", field)
        for key, part in value.items():
            if "propertyNames" in rule:
                _check_text(str(key), rule["propertyNames"], f"{start}a name in {field}", field)
            inner = f"{field}.{key}" if field else str(key)
            if key in known:
                _check(part, known[key], where, inner)
            elif others is False:
                raise WrongField(f"{start}unknown field {inner!r}; {suggest(str(key), known)}", inner)
            elif isinstance(others, Mapping):
                _check(part, others, where, inner)
        missing = [key for key in rule.get("required", ()) if key not in value]
        if missing:
            key = f"{field}.{missing[0]}" if field else missing[0]
            raise WrongField(f"{start}{key} is missing; `plait submit --schema` lists the fields of a job", key)


def _said(value: Any) -> str:
    """A value as it was given, shortened to fit into a message."""
    try:
        return f"{value!r:.80}"
    except (ValueError, RecursionError):  # more digits than Python writes, or too deep
        return f"a {type(value).__name__} too large to print"


def _check_text(value: str, rule: Mapping[str, Any], name: str, field: str) -> None:
    if len(value) < rule.get("minLength", 0):
        raise WrongField(f"{name} is empty; give it a name", field)
    if len(value) > rule.get("maxLength", len(value)):
        raise WrongField(f"{name} has {len(value)} characters; at most {rule['maxLength']} fit", field)
    if "pattern" in rule and not re.search(rule["pattern"].removesuffix("$") + r"\Z", value):
        wrong = next((c for i, c in enumerate(value) if not re.search(rule["pattern"], value[: i + 1])), value[-1:])
        raise WrongField(f"{name} is {value!r:.80}, which has characters that cannot be there: {wrong!r}", field)


def _form(value: Any, wanted: list[str], rule: Mapping[str, Any]) -> str:
    """The right form: YAML and TOML read 1 and true as they are, a text needs quotes; fields have names."""
    if wanted == ["array"] and isinstance(value, str):
        return f": {json.dumps(value.split())}"
    if wanted == ["object"] and len(rule.get("properties", ())) <= 10:
        return f": {', '.join(rule.get('properties', ()))}".removesuffix(": ")
    return f'; write it in quotes: "{_said(value)}"' if wanted == ["string"] and isinstance(value, (int, float)) else ""
