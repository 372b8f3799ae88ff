"""Warn users of priorities, deadlines and job classes that a policy ignores."""

from __future__ import annotations

from collections.abc import Sequence

from plait.core.jobs import JobClass
from plait.core.policy import DEADLINE, JOB_CLASS, Policy, ignored_by
from plait.policies.catalog import rows

_PLURAL = {DEADLINE: "deadlines"}


def remarks(
    text: str,
    policy: Policy,
    priority: float,
    deadline_s: float | None,
    job_class: JobClass = JobClass.GUARANTEED,
) -> list[str]:
    """A sentence for each request of a job that the policy ignores, with what would work instead.

    `text` is the name of the policy, `policy` the object made of it, the rest the job's requests: 0, None and the class
    guaranteed request nothing.

    >>> from plait.policies.catalog import make_policy
    >>> remarks("fifo", make_policy("fifo"), 0.0, 3600.0)
    ['policy fifo ignores deadlines; fifo:deadlines=on orders by them']
    >>> remarks("fifo", make_policy("fifo"), 2.0, None)
    []
    """
    found = []
    for what in ignored_by(policy, priority, deadline_s, job_class):
        if what == JOB_CLASS:
            found.append(classes_ignored([text]))
            continue
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


#: Policies that look at classes; a test compares them with what policies declare.
TELL_CLASSES_APART = ("pollux", "pollux-ga", "sia", "optimus", "antman", "yarn-cs:preempt=on")


def classes_ignored(policies: Sequence[str]) -> str:
    """Warnings for users of these policies, by the names given, about the classes of their jobs.

    >>> classes_ignored(["fifo"]).partition(";")[0]
    'policy fifo ignores job classes and treats all jobs as guaranteed'
    """
    which = f"policy {policies[0]} ignores" if len(policies) == 1 else f"policies {', '.join(policies)} ignore"
    treats = "treats" if len(policies) == 1 else "treat"
    others = f"policies that honour classes: {', '.join(TELL_CLASSES_APART)}"
    return f"{which} job classes and {treats} all jobs as guaranteed; {others}"
