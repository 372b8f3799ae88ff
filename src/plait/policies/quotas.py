"""GPU quotas of projects, as a policy around a policy.

A quota limits the GPUs that the *started* jobs of a project requested, so jobs that share GPUs count in full. Within a
project jobs pass in order of submission, running ones first; the policy inside decides among the jobs that passed.
Holding jobs back here, and not at submission, keeps every job in the queue under its number.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, runtime_checkable

import numpy as np

from plait.core.arrays import objects
from plait.core.errors import InputError, suggest
from plait.core.jobs import JobBatch, JobClass, JobSpec
from plait.core.plan import Plan
from plait.core.policy import Policy, UsesRequests, View, has_guests, has_preemption
from plait.core.resources import CPU_KIND
from plait.core.words import counted
from plait.placement.reserve import hold_back

#: Stands for every project that no rule names.
ALL = "*"


@dataclass(frozen=True)
class Quotas:
    """GPUs that projects may hold: rules (project, GPU kind or "" for all kinds together, GPUs).

    A project without a rule has the limits of `ALL`, if there are any; GPUs without a rule are not limited.

    >>> quotas = Quotas.parse("vision=32/speech@v100=16/*=8")
    >>> quotas.limit("vision"), quotas.limit("speech", "v100"), quotas.limit("speech", "a100"), quotas.limit("nlp")
    (32, 16, inf, 8)
    """

    rules: tuple[tuple[str, str, int], ...]

    @classmethod
    def parse(cls, text: str) -> Quotas:
        """Rules `PROJECT=GPUS` and `PROJECT@KIND=GPUS`, separated by `/`; `InputError` for anything else."""
        rules: dict[tuple[str, str], int] = {}
        for part in text.split("/"):
            name, equals, gpus = part.rpartition("=")
            project, at, kind = name.partition("@")
            right = equals and project and gpus.isdecimal() and len(gpus) < 10 and bool(at) == bool(kind)
            if not right or (project, kind) in rules:
                what = "is given twice" if right else "is no quota"
                raise InputError(
                    f"quota {part[:100]!r} {what}; it takes PROJECT=GPUS or PROJECT@KIND=GPUS, separated by /, e.g. "
                    f"vision=32/speech@v100=16/{ALL}=8"
                )
            rules[project, kind] = int(gpus)
        return cls(tuple((project, kind, gpus) for (project, kind), gpus in rules.items()))

    def limit(self, project: str, kind: str = "") -> float:
        """GPUs of a kind that a project may hold, or of all kinds together; infinite where there is no limit."""
        limits = self._of(project)
        return limits.get(kind, math.inf)

    def by_kind(self, project: str) -> bool:
        """Whether some kind of GPU has a quota of its own for the project."""
        return any(self._of(project))

    def exceeded(self, spec: JobSpec, kinds: Collection[str]) -> str | None:
        """Why a job can never run within the quota of its project on GPUs of these kinds; None if it can."""
        if spec.gpu_kinds == (CPU_KIND,):
            return None
        usable = [kind for kind in kinds if spec.gpu_kinds is None or kind in spec.gpu_kinds]
        most, kind = max(((self.limit(spec.project, kind), kind) for kind in usable), default=(math.inf, ""))
        if (in_all := self.limit(spec.project)) <= most:
            most, kind = in_all, ""
        if spec.gpus <= most:
            return None
        needs = counted(spec.gpus, f"{kind} GPU" if kind else "GPU")
        less = f", or ask for at most {most:g}" if most else ""
        return f"needs {needs}; the quota of project {spec.project} is {most:g}; raise it to {spec.gpus}{less}"

    def _of(self, project: str) -> Mapping[str, float]:
        own = {kind: gpus for name, kind, gpus in self.rules if name == project}
        return own or {kind: gpus for name, kind, gpus in self.rules if name == ALL}

    def refuse_unknown(self, projects: Collection[str], kinds: Collection[str]) -> None:
        """Raise `InputError` for a rule of a project without jobs, or of a GPU kind that the cluster does not have."""
        for project, kind, gpus in self.rules:
            if project != ALL and project not in projects:
                known = suggest(project, sorted(filter(None, projects))) if any(projects) else "no job has a project"
                raise InputError(f"quota {project}={gpus}: no job is of project {project!r}; {known}")
            if kind and kind not in kinds:
                raise InputError(f"quota {project}@{kind}={gpus}: no GPU is a {kind!r}; {suggest(kind, kinds)}")


@runtime_checkable
class AppliesQuotas(Protocol):
    """A policy that applies quotas itself: it knows which jobs count, and what jobs beyond a quota may still have."""

    @property
    def quotas(self) -> Quotas: ...

    def with_quotas(self, quotas: Quotas) -> Policy:
        """The same policy with these quotas instead."""
        ...


def never_admitted(policy: Policy, quotas: Quotas, jobs: JobBatch, kinds: Collection[str]) -> dict[int, str]:
    """Rows of the jobs that a policy with these quotas can never run on GPUs of these kinds, with the reason."""
    if not quotas.rules:
        return {}
    reasons = {}
    for row in np.flatnonzero(jobs.gpus > min(gpus for _, _, gpus in quotas.rules)).tolist():
        spec = jobs[row]
        if isinstance(policy, AppliesQuotas) and spec.job_class is not JobClass.GUARANTEED:
            continue  # it may have more than the quota
        if (why := quotas.exceeded(spec, kinds)) is not None:
            more = ", or submit it with class opportunistic or auto" if isinstance(policy, AppliesQuotas) else ""
            reasons[row] = why + more
    return reasons


def within(policy: Policy, quotas: Quotas) -> Policy:
    """`policy` within these quotas, which override its own for the same projects."""
    if not isinstance(policy, AppliesQuotas):
        return WithinQuotas(policy, quotas)
    named = {project for project, _, _ in quotas.rules}
    rest = tuple(rule for rule in policy.quotas.rules if rule[0] not in named)
    return policy.with_quotas(Quotas((*rest, *quotas.rules)))


@dataclass(frozen=True)
class WithinQuotas:
    """A policy that sees only jobs within their project's quota; the others wait, with the reason.

    Where kinds of GPU have quotas, each job that passes may use one kind, that which it has or of which most GPUs are
    free, and counts there.
    """

    policy: Policy
    quotas: Quotas

    @property
    def name(self) -> str:
        return str(getattr(self.policy, "name", "") or type(self.policy).__name__)

    @property
    def uses(self) -> frozenset[str]:
        """The requests that the policy inside takes into account."""
        return self.policy.uses if isinstance(self.policy, UsesRequests) else frozenset()

    @property
    def guests(self) -> bool:
        """Whether plans of the policy inside have guests."""
        return has_guests(self.policy)

    @property
    def preempts(self) -> bool:
        """Whether the policy inside stops running jobs for jobs ahead of them."""
        return has_preemption(self.policy)

    def decide(self, view: View) -> Plan:
        """The inner policy's plan for the jobs that may run."""
        admission = _Admission(self.quotas, view)
        admission.admit()
        if not admission.held and not admission.kind_of:
            return self.policy.decide(view)
        jobs = view.jobs
        keep = np.array([number not in admission.held for number in jobs.number.tolist()], dtype=bool)
        table = jobs.subset(jobs.number[keep], **admission.kinds())
        inside = replace(view, jobs=table)
        plan = self.policy.decide(inside) if len(table) else Plan.of([])
        if plan.order is None:  # otherwise held-back jobs would be in the queue
            plan = replace(plan, order=table.number[np.lexsort((table.number, -table.priority, ~table.running))])
        plan = hold_back(inside, plan, self.preempts)  # on GPUs of the kinds that quotas leave
        # When a job leaves, a held-back one may start: the plan is never settled.
        return replace(plan, reasons={**plan.reasons, **admission.held}, settled=False)


@dataclass
class _Admission:
    """Admission: GPUs used by project and kind ("" for all), jobs held back with reasons, and the kind of each job."""

    quotas: Quotas
    view: View
    used: dict[tuple[str, str], int] = field(default_factory=dict)
    full: set[tuple[str, str]] = field(default_factory=set)
    held: dict[int, str] = field(default_factory=dict)
    kind_of: dict[int, str] = field(default_factory=dict)

    def admit(self) -> None:
        jobs, stays = self.view.jobs, self.view.keeps.rows.tolist()
        numbers, sizes = jobs.number.tolist(), jobs.gpus.tolist()
        for row in np.lexsort((jobs.number, ~jobs.running)).tolist():
            spec, number, gpus = jobs[row].spec, numbers[row], sizes[row]
            if spec.gpu_kinds == (CPU_KIND,):  # quotas are of GPUs
                continue
            project = spec.project
            kinds: tuple[str, ...] = ("",)
            if self.quotas.by_kind(project):
                kinds = self._kinds(row, spec.gpu_kinds)
                self.kind_of[number] = kinds[0]
            elif math.isinf(self.quotas.limit(project)):
                continue
            reason = None if stays[row] else self._refusal(project, "", gpus)  # no reason to throw work away
            if reason is None and kinds != ("",):
                reasons = {kind: None if stays[row] else self._refusal(project, kind, gpus) for kind in kinds}
                kind = next((kind for kind in kinds if reasons[kind] is None), kinds[0])
                reason, self.kind_of[number] = reasons[kind], kind
            if reason is not None:
                self.held[number] = reason
                continue
            for kind in {"", self.kind_of.get(number, "")}:
                self.used[project, kind] = self.used.get((project, kind), 0) + gpus

    def _kinds(self, row: int, usable: tuple[str, ...] | None) -> tuple[str, ...]:
        """The kind of a running job, otherwise its usable kinds, most free GPUs first."""
        view, cluster = self.view, self.view.cluster
        group = int(view.jobs.running_group[row])
        kind_of_gpu = cluster.node_kind[cluster.gpu_node]
        if group >= 0:
            return (cluster.kinds[kind_of_gpu[view.running.gpus[view.running.first_gpu[group]]]],)
        free = np.bincount(kind_of_gpu, minlength=len(cluster.kinds)) - np.bincount(
            kind_of_gpu[np.unique(view.running.gpus)], minlength=len(cluster.kinds)
        )
        order = [cluster.kinds[i] for i in np.argsort(-free, kind="stable").tolist()]
        return tuple(kind for kind in order if usable is None or kind in usable) or (order[0],)

    def _refusal(self, project: str, kind: str, gpus: int) -> str | None:
        """Why a job has to wait for the quota of a kind, "" for all kinds together; None if it passes."""
        limit, taken = self.quotas.limit(project, kind), self.used.get((project, kind), 0)
        of_kind = f"{kind} " if kind else ""
        if gpus > limit:
            return f"needs {counted(gpus, f'{of_kind}GPU')}; the quota of project {project} is {limit:g}"
        if (project, kind) in self.full or taken + gpus > limit:
            self.full.add((project, kind))
            there = counted(int(limit), f"{of_kind}GPU")
            return f"the quota of project {project}, {there}, is used up: jobs ahead of it hold or wait for {taken}"
        return None

    def kinds(self) -> dict[str, Any]:
        """Columns of the job table by which each job that passes may use its kind only."""
        if not self.kind_of:
            return {}
        columns = self.view.jobs.columns
        kinds = columns["gpu_kinds"].copy()
        numbers = list(self.kind_of)
        kinds[numbers] = objects([(self.kind_of[number],) for number in numbers])
        return {"gpu_kinds": kinds, "has_kinds": np.ones(1, dtype=bool)}
