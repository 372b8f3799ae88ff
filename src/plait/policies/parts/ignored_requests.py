"""Warn users of priorities and deadlines that a policy ignores."""

from __future__ import annotations

from plait.core.policy import DEADLINE, Policy, ignored_by
from plait.policies.catalog import rows

_PLURAL = {DEADLINE: "deadlines"}


def remarks(text: str, policy: Policy, priority: float, deadline_s: float | None) -> list[str]:
    """A sentence for each thing that a job asks for and the policy ignores, with what would work instead.

    `text` is the policy as it was named, `policy` what was made of it, the rest what the job asks for: 0 and None are
    nothing.

    >>> from plait.policies.catalog import make_policy
    >>> remarks("fifo", make_policy("fifo"), 0.0, 3600.0)
    ['policy fifo ignores deadlines; fifo:deadlines=on orders by them']
    >>> remarks("fifo", make_policy("fifo"), 2.0, None)
    []
    """
    found = []
    for what in ignored_by(policy, priority, deadline_s):
        head = f"policy {text} ignores {_PLURAL.get(what, 'priorities')}"
        name = text.partition(":")[0]
        known = rows()
        if name in known and _PLURAL.get(what) in known[name].options:
            given = [option for option in text.partition(":")[2].split(",") if not option.startswith("deadlines=")]
            options = ",".join([*filter(None, given), "deadlines=on"])
            found.append(f"{head}; {name}:{options} orders by them")
        else:
            others = [other for other, row in known.items() if "deadlines" in row.options]
            option = ":deadlines=on" if what == DEADLINE else ""
            found.append(f"{head}; policies that order by them: {', '.join(other + option for other in others)}")
    return found
