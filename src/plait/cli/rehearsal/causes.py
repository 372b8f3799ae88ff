"""Name the likely cause of a difference, in plain words, from what the resumed process lacked."""

from __future__ import annotations

import ast
from collections.abc import Iterable
from pathlib import Path

from plait.cli.rehearsal.comparing import Difference, Noise, differing
from plait.cli.rehearsal.traces import Step, Trace

#: Variables that a sentence lists.
MOST = 6
BUFFER = "a buffer with persistent=False"


def causes(expected: Trace, got: Trace, difference: Difference, noise: Noise, script: str) -> list[str]:
    """Likely causes, the most likely first; at least one. `script`: its source, "" if unknown."""
    place = max((at for at in got.resumed if at < difference.step), default=None)
    if place is None:
        return ["the runs differ before the first stop, so the script is not deterministic"]
    a, b = expected.steps.get(place + 1, {}), got.steps.get(place + 1, {})
    found = [*_from_buffers(a, b), *_from_variables(a, b, noise, script)]
    if difference.kind == "batches":
        found.insert(0, _from_batches(expected, got, difference))
    if "cycle(" in script:
        found.append(
            "cycle() repeats batches that it holds itself; over a stream no resume can load them again: write a "
            "generator that begins the loader again, while True: yield from loader"
        )
    if not expected.batched and "DataLoader(" in script:
        found.append(
            "no loader is wrapped, so each resumed epoch starts at its first batch: loader = job.wrap_loader(loader)"
        )
    return found or [_from_kind(difference)]


def suspects(expected: Trace, got: Trace, noise: Noise, script: str) -> list[str]:
    """Sentences on variables that differ after a resume, whether or not that changed the training."""
    found: list[str] = []
    for at in got.resumed:
        a, b = expected.steps.get(at + 1, {}), got.steps.get(at + 1, {})
        found += [text for text in _from_variables(a, b, noise, script) if text not in found]
    return found


def source_of(command: Iterable[str]) -> str:
    """The source of the script in a command; "" without one."""
    for word in command:
        if word.endswith(".py") and Path(word).is_file():
            return Path(word).read_text(encoding="utf-8", errors="replace")
    return ""


def counters_of(script: str) -> set[str]:
    """Names that `for NAME, ... in enumerate(...)` counts.

    >>> counters_of("for i, (x, y) in enumerate(loader):\\n    pass")
    {'i'}
    """
    try:
        tree = ast.parse(script)
    except (SyntaxError, ValueError):
        return set()
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.For) and isinstance(node.target, ast.Tuple) and isinstance(node.iter, ast.Call):
            inner = [node.iter, *(part for part in node.iter.args if isinstance(part, ast.Call))]
            named = any(isinstance(call.func, ast.Name) and call.func.id == "enumerate" for call in inner)
            first = node.target.elts[0]
            if named and isinstance(first, ast.Name):
                found.add(first.id)
    return found


def _from_buffers(a: Step, b: Step) -> list[str]:
    names = {name for name in differing(a.get("state"), b.get("state")) if "." in name}
    names |= {name for name in differing(a.get("before"), b.get("before")) if a["before"][name][1] == BUFFER}
    if not names:
        return []
    text = f"{_list(names)}: a buffer with persistent=False is in no state_dict(), so no checkpoint has it"
    return [text + "; make it persistent, or register it: job.register_state(name=buffer)"]


def _from_variables(a: Step, b: Step, noise: Noise, script: str) -> list[str]:
    """Differences of variables at the first step after the resume, and of the counters of `enumerate` after it."""
    found = []
    counted = counters_of(script) & differing(a.get("after"), b.get("after")) - noise.variables
    if counted:
        values = ", ".join(_both(name, a["after"], b["after"]) for name in sorted(counted))
        found.append(
            f"the counter of enumerate() does not go on after a resume in mid-epoch: {values}; count with the library: "
            "for i, batch in job.batches(loader)"
        )
    before = differing(a.get("before"), b.get("before")) - noise.variables - counted
    carried = sorted(name for name in before if a["before"][name][1] != BUFFER)
    if carried:
        values = ", ".join(_both(name, a["before"], b["before"]) for name in carried[:MOST])
        more = f" and {len(carried) - MOST} more" if len(carried) > MOST else ""
        found.append(
            f"variables of the script that no checkpoint has: {values}{more}; keep them in a registered dict: "
            'state = {...}; job = attach(..., state=state), then state["NAME"]'
        )
    return found


def _from_batches(expected: Trace, got: Trace, difference: Difference) -> str:
    ours = expected.steps[difference.step].get("batches") or []
    theirs = got.steps[difference.step].get("batches") or []
    for (name, number, length, _), (other, now, _, _) in zip(ours, theirs, strict=False):
        if (name, number) != (other, now):
            return (
                f"{name!r} is at batch {now} and would be at batch {number} of {length or '?'} undisturbed: a pass "
                "ended early or began again after the resume (an iterator around the loader, as of zip and cycle, "
                "holds a place that no checkpoint has)"
            )
    if len(ours) != len(theirs):
        return f"a step takes {len(theirs)} batches after the resume and {len(ours)} undisturbed"
    return (
        "the place in the data is right, but the samples are others: the order comes from a sampler or a dataset with "
        "state of its own, or from random numbers that are drawn elsewhere"
    )


def _from_kind(difference: Difference) -> str:
    return {
        "streams": "random numbers: the streams are at another place after the resume, so something draws more or "
        "fewer numbers in a process that resumes",
        "rates": "the learning rate is computed from something that no checkpoint has: register the scheduler, or "
        "derive the rate from job.step",
        "length": "the number of steps depends on something that no checkpoint has, such as the counters of early "
        "stopping",
    }.get(
        difference.kind,
        "state that is neither registered nor a variable of the script: an attribute of an unregistered object, a "
        "global of a library, a cache; register all that changes",
    )


def _both(name: str, a: dict[str, list[str]], b: dict[str, list[str]]) -> str:
    left, right = a[name][1], b[name][1]
    return f"{name} ({left} undisturbed, {right} resumed)" if left != right else f"{name} ({left}, other values)"


def _list(names: Iterable[str]) -> str:
    return ", ".join(sorted(names)[:MOST])
