"""Arrays: one submitted job that stands for many, which differ in an index or in the values of a matrix.

The members of an array are ordinary jobs with numbers in a row. The array is named after its first member: with members
j-5 to j-24 it is a-5, and a-5.3 is its member of index 3. The stored request of a member has `member` instead of
`array` and `matrix`; its command and its variables are its own.
"""

import itertools
import json
import re
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from plait.core.errors import InputError
from plait.live.layout import array_name
from plait.live.protocol.job import LONGEST_WORD

#: Members of an array, and jobs of a submission, at most.
MOST_JOBS = 10_000
#: Characters of the requests of all members of the arrays of a submission at most.
MOST_TEXT = 32_000_000
#: The variable of a member's environment that has its index.
INDEX_VARIABLE = "PLAIT_ARRAY_INDEX"
_RANGE = re.compile(r"([0-9]{1,9})(?:-([0-9]{1,9})(?::([1-9][0-9]{0,8}))?)?")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def parse_array(text: str) -> tuple[list[int], int | None]:
    """The indexes of `0-19`, `1,3,5` or `0-90:10`, and the limit behind `%`, None for none; raises `InputError`.

    >>> parse_array("0-90:30,7%2")
    ([0, 30, 60, 90, 7], 2)
    """
    ranges, percent, limit = text.partition("%")
    indexes: list[int] = []
    for part in ranges.split(",") if ranges else ():
        match = _RANGE.fullmatch(part)
        if match is None or int(match[2] or match[1]) < int(match[1]):
            raise InputError(f"array is {text[:80]!r}; write indexes such as 0-19, 1,3,5 or 0-90:10, then e.g. %4")
        several = range(int(match[1]), int(match[2] or match[1]) + 1, int(match[3] or 1))
        if len(indexes) + len(several) > MOST_JOBS:
            raise InputError(f"array is {text[:80]!r}, more than {MOST_JOBS:,} jobs; submit several arrays")
        indexes += several
    if len(set(indexes)) < len(indexes):
        raise InputError(f"array is {text[:80]!r}, which has an index twice; give each once")
    if percent and not re.fullmatch("[1-9][0-9]{0,4}", limit):
        raise InputError(f"array is {text[:80]!r}; write after % how many jobs may run at once, e.g. 0-19%4")
    return indexes, int(limit) if percent else None


def parse_matrix(words: Sequence[str]) -> dict[str, list[str]]:
    """The values by name of `lr=0.1,0.01 seed=1,2`; raises `InputError`.

    >>> parse_matrix(["lr=0.1,0.01", "seed=1,2"])
    {'lr': ['0.1', '0.01'], 'seed': ['1', '2']}
    """
    out: dict[str, list[str]] = {}
    for word in itertools.chain.from_iterable(text.split() for text in words):
        name, equals, values = word.partition("=")
        if not equals or name in out:
            why = "names it twice" if name in out else "has no values"
            raise InputError(f"--matrix {word[:80]!r} {why}; write NAME=VALUE,VALUE once for each name: lr=0.1,0.01")
        out[name] = values.split(",")
    return out


def array_of(request: Mapping[str, Any]) -> str:
    """The array that the stored request of a job is a member of; "" for none."""
    return str((request.get("member") or {}).get("array", ""))


def is_array(request: Mapping[str, Any]) -> bool:
    """Whether a request stands for several jobs."""
    return bool(request.get("array") or request.get("matrix"))


def _array(request: Mapping[str, Any]) -> tuple[Sequence[int], dict[str, list[str]], int | None]:
    """The indexes of an array, its values by name, and how many members may run at once; `InputError`: invalid."""
    text, matrix = request.get("array", ""), request.get("matrix") or {}
    indexes, at_most = parse_array(text)
    if not matrix:
        if not indexes:
            raise InputError(f"array is {text[:80]!r}, which has no index; write e.g. 0-19 or 0-19%4")
        return indexes, {}, at_most
    if indexes:
        raise InputError(
            f"array is {text[:80]!r} next to a matrix, whose combinations have the indexes 0, 1, ...; leave it out, "
            "or give only how many jobs may run at once: %4"
        )
    count = 1
    for name, values in matrix.items():
        if not _NAME.fullmatch(name) or name == "index" or name.startswith("PLAIT_"):
            raise InputError(f"matrix has the name {name[:80]!r}; use letters, digits and _, not index or PLAIT_...")
        if len({str(value) for value in values}) < len(values):
            raise InputError(f"matrix has a value of {name} twice; give each once")
        count *= len(values)
    if count > MOST_JOBS:
        raise InputError(f"matrix has {count:,} combinations; an array has at most {MOST_JOBS:,} jobs")
    return range(count), {name: [str(value) for value in values] for name, values in matrix.items()}, at_most


def extent(request: Mapping[str, Any]) -> tuple[int, int]:
    """How many jobs a request stands for, and the characters of their requests if it is an array, in all.

    Raises `InputError` for an invalid array, and for one whose jobs would have too long a word or too long requests.

    >>> extent({"command": ["x"]}), extent({"command": ["x", "{lr}"], "matrix": {"lr": [0.1, 0.01]}})[0]
    ((1, 0), 2)
    """
    if not is_array(request):
        return 1, 0
    indexes, matrix, _ = _array(request)
    count, places = len(indexes), _places(matrix)
    lengths = {"index": [len(str(index)) for index in indexes]}
    lengths |= {name: [len(value) for value in values] for name, values in matrix.items()}
    sums = {name: sum(those) * count // len(those) for name, those in lengths.items()}
    common = {name: value for name, value in request.items() if name not in ("array", "matrix")}
    total = count * len(json.dumps(common)) + sum(sums.values()) + count * sum(map(len, matrix))
    for i, word in enumerate(request["command"]):
        longest = len(word)
        for name, times in Counter(places.findall(word)).items():
            longest += times * (max(lengths[name]) - len(name) - 2)
            total += times * (sums[name] - count * (len(name) + 2))
        if longest > LONGEST_WORD:
            raise InputError(
                f"command[{i}] has {longest:,} characters with the values of a job in it, at most {LONGEST_WORD:,} "
                "fit; put long values into files, or read them from the environment"
            )
    if total > MOST_TEXT:
        raise InputError(
            f"{'matrix' if matrix else 'array'} makes {count:,} jobs whose requests have {total:,} characters in all, "
            f"at most {MOST_TEXT:,} fit; submit several smaller arrays, or put long values into files"
        )
    return count, total


def members(request: Mapping[str, Any], number: int) -> Iterator[dict[str, Any]]:
    """The requests of the jobs that a request stands for, the first of which is job `number`; itself if it is one job.

    >>> next(members({"command": ["x", "{lr}"], "matrix": {"lr": [0.1]}}, 5))["command"]
    ['x', '0.1']
    """
    if not is_array(request):
        yield dict(request)
        return
    common = {name: value for name, value in request.items() if name not in ("array", "matrix")}
    indexes, matrix, at_most = _array(request)
    shared: dict[str, Any] = {"array": array_name(number), "jobs": len(indexes)}
    if at_most is not None:
        shared["at_most"] = at_most
    places = _places(matrix)
    combined = itertools.product(*matrix.values()) if matrix else itertools.repeat(())
    for index, combination in zip(indexes, combined, strict=False):
        values = dict(zip(matrix, combination, strict=True))
        known = {"index": str(index), **values}
        command = _filled(request["command"], places, known)
        filled = {"output": _filled([request["output"]], places, known)[0]} if request.get("output") else {}
        env = {**(request.get("env") or {}), **values, INDEX_VARIABLE: str(index)}
        yield {**common, **filled, "command": command, "env": env, "member": {**shared, "index": index}}


def _places(matrix: Collection[str]) -> re.Pattern[str]:
    """Names in braces; `${lr}` is a variable of a shell and stays."""
    return re.compile(r"(?<!\$)\{(" + "|".join(["index", *matrix]) + r")\}")


def _filled(command: Sequence[str], places: re.Pattern[str], values: Mapping[str, str]) -> list[str]:
    """A command with values in the place of their names in braces; other braces stay."""
    return [places.sub(lambda found: values[found[1]], word) for word in command]


def all_members(requests: Sequence[Mapping[str, Any]], first: int) -> list[dict[str, Any]]:
    """The jobs of a submission, the first of which has the number `first`; `InputError` for too many."""
    out: list[dict[str, Any]] = []
    for request in requests:
        if len(out) + extent(request)[0] > MOST_JOBS:
            raise InputError(f"more than {MOST_JOBS:,} jobs at once; submit them in several parts")
        out += members(request, first + len(out))
    return out
