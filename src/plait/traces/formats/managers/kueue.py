"""Workloads of Kueue: `kubectl get workloads -A -o json` (or `yaml`), with the times of admission and end."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from decimal import Decimal, InvalidOperation
from typing import Any

from plait.core.errors import MissingExtra, TraceError
from plait.traces.files import RULES, Pathish, Rules, Source
from plait.traces.formats.reader import Format, Head, TableBuilder
from plait.traces.table import TraceTable
from plait.traces.times import stamp_s, utc_text

GROUP = "kueue.x-k8s.io"
#: Where the name of a user may be, in labels and annotations.
USERS = (f"{GROUP}/user", "user", "app.kubernetes.io/created-by")
_FACTORS: Mapping[str, Decimal | int] = {
    "": 1, "m": Decimal("0.001"), "k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12,
    "Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40,
}  # fmt: skip


def read(path: Pathish, *, rules: Rules = RULES) -> TraceTable:
    """Reads a list of Workloads, in JSON or YAML.

    GPUs are the resources whose name ends in `/gpu`, of the admission, else of the pod sets; their flavor is the kind.
    The cluster queue is the project, else the namespace. Start is the time of the condition `Admitted` (without it, of
    `QuotaReserved`), end that of `Finished`. A workload that was evicted and admitted again has only its last start.

    Dropped, counted: never_started, negative. A workload without end runs until the latest stamp of the file. Raises
    `TraceError` naming the workload, `MissingExtra` for YAML without PyYAML.
    """
    source = Source(path, rules)
    builder = TableBuilder(source)
    found: list[tuple[_Workload, list[float]]] = []

    def add(entry: Any) -> None:
        workload = _Workload(source, entry)
        found.append((workload, workload.stamps()))

    builder.read(_entries(source), add)
    latest_s = max((at_s for _, stamps in found for at_s in stamps), default=0.0)

    def keep(workload: _Workload) -> None:
        job, reason = workload.job(latest_s)
        if reason:
            builder.drop(reason)
        else:
            builder.keep(None, **job)

    builder.read((workload for workload, _ in found), keep)
    table = builder.finish(FORMAT, first_is_zero=True, time_zone="UTC")
    if "origin_s" in table.meta:
        table.meta["origin_utc"] = utc_text(table.meta["origin_s"])
    return table


def _entries(source: Source) -> Iterator[Any]:
    """The workloads of a list, or of several documents."""
    with source.open() as text:
        whole = text.read()
    found = 0
    for document in _documents(source, whole):
        items = document.get("items", [document]) if isinstance(document, dict) else None
        if not isinstance(items, list):
            raise source.error("expected a list of Workloads", hint="kubectl get workloads -A -o json")
        for item in items:
            found += 1
            yield item
    if not found:
        raise source.error("there is no Workload in it", hint="kubectl get workloads -A -o json")


def _documents(source: Source, text: str) -> list[Any]:
    if text.lstrip()[:1] in ("{", "["):
        try:
            return [json.loads(text, parse_constant=_refuse)]
        except (ValueError, RecursionError) as error:
            raise source.error(f"not JSON: {error}", hint="is the file cut short?") from error
    try:
        import yaml
    except ImportError as error:
        raise MissingExtra("PyYAML", "live", "a list of Workloads in YAML") from error
    try:
        return [document for document in yaml.safe_load_all(text) if document is not None]
    except (yaml.YAMLError, ValueError, OverflowError, TypeError, RecursionError) as error:
        raise source.error(
            f"not YAML: {str(error).splitlines()[0]}", hint="kubectl get workloads -A -o yaml"
        ) from error


def _refuse(word: str) -> None:
    raise ValueError(f"{word} is not a finite number")


class _Workload:
    """One entry, with errors that name it."""

    def __init__(self, source: Source, entry: Any) -> None:
        if not isinstance(entry, dict) or entry.get("kind") != "Workload":
            what = entry.get("kind") if isinstance(entry, dict) else entry
            raise source.error("expected a Workload of Kueue", value=what, hint="kubectl get workloads -A -o json")
        self.source, self.entry = source, entry
        meta = self.part(entry, "metadata")
        self.name = "/".join(str(meta[key]) for key in ("namespace", "name") if meta.get(key))
        if not self.name:
            raise source.error("a Workload without a name")
        self.meta, self.spec, self.status = meta, self.part(entry, "spec"), self.part(entry, "status")
        self.submit_s = self.stamp(meta.get("creationTimestamp"), "metadata.creationTimestamp")
        self.conditions = {
            str(one.get("type")): one for one in self.parts(self.status, "conditions") if one.get("status") == "True"
        }

    def error(self, problem: str, value: Any = None) -> TraceError:
        return self.source.error(f"workload {self.name}: {problem}", value=value)

    def part(self, of: Mapping[str, Any], name: str) -> Mapping[str, Any]:
        value = of.get(name) or {}
        if not isinstance(value, dict):
            raise self.source.error(f"{name} must be an object", value=value)
        return value

    def parts(self, of: Mapping[str, Any], name: str) -> list[Mapping[str, Any]]:
        value = of.get(name) or []
        if not isinstance(value, list) or not all(isinstance(one, dict) for one in value):
            raise self.error(f"{name} must be a list of objects")
        return value

    def stamp(self, text: Any, where: str) -> float:
        try:  # YAML reads stamps as such
            return stamp_s(text if isinstance(text, str) else text.isoformat())
        except (ValueError, OverflowError, AttributeError):
            raise self.error(f"{where} is not a time stamp", text) from None

    def at(self, condition: str) -> float | None:
        one = self.conditions.get(condition)
        return None if one is None else self.stamp(one.get("lastTransitionTime"), f"condition {condition}")

    def stamps(self) -> list[float]:
        return [self.submit_s, *(at for name in self.conditions if (at := self.at(name)) is not None)]

    def job(self, latest_s: float) -> tuple[dict[str, Any], str | None]:
        """The job, and why it is left out, if so."""
        start_s, end_s = self.at("Admitted"), self.at("Finished")
        start_s = self.at("QuotaReserved") if start_s is None else start_s
        if start_s is None:
            return {}, "never_started"
        seconds = (latest_s if end_s is None else end_s) - start_s
        if seconds < 0 or start_s < self.submit_s:
            return {}, "negative"
        gpus, kinds = self.gpus()
        admission = self.part(self.status, "admission")
        labels = {**self.part(self.meta, "annotations"), **self.part(self.meta, "labels")}
        user = next((str(labels[key]) for key in USERS if labels.get(key)), None)
        project = admission.get("clusterQueue") or self.meta.get("namespace")
        priority = self.spec.get("priority")
        if priority is not None and (isinstance(priority, bool) or not isinstance(priority, int | float)):
            raise self.error("spec.priority must be a number", priority)
        failed = self.conditions.get("Finished", {}).get("reason") in ("Failed", "JobFailed")
        return {
            "job_id": self.name,
            "submit_s": self.submit_s,
            "gpus": gpus,
            "duration_s": seconds if seconds > 0 else None,
            "duration_kind": "right_censored" if end_s is None else "exact" if seconds > 0 else "unknown",
            "state": "running" if end_s is None else "failed" if failed else "completed",
            "observed_start_s": start_s,
            "observed_end_s": end_s,
            "observed_queue_s": start_s - self.submit_s,
            "user": user,
            "project": None if project is None else str(project),
            "gpu_kinds": next(iter(kinds)) if len(kinds) == 1 else None,
            "priority": priority,
        }, None

    def gpus(self) -> tuple[int, set[str]]:
        """GPUs of all pods, and their flavors."""
        total, kinds = Decimal(0), set()
        assignments = self.parts(self.part(self.status, "admission"), "podSetAssignments")
        for one in assignments:
            for name, amount in self.part(one, "resourceUsage").items():
                if name.endswith("/gpu"):
                    total += self.amount(amount)
                    kind = self.part(one, "flavors").get(name)
                    kinds |= {str(kind)} if kind else set()
        if not assignments:
            for pods in self.parts(self.spec, "podSets"):
                template = self.part(self.part(pods, "template"), "spec")
                for container in self.parts(template, "containers"):
                    resources = self.part(container, "resources")
                    asked = self.part(resources, "requests") or self.part(resources, "limits")
                    for name, amount in asked.items():
                        if name.endswith("/gpu"):
                            total += self.amount(pods.get("count", 1)) * self.amount(amount)
        if total != int(total) or total > 2**31 - 1:
            raise self.error("must ask for a whole number of GPUs", str(total))
        return int(total), kinds

    def amount(self, text: Any) -> Decimal:
        """A Kubernetes quantity."""
        digits = str(text).rstrip("kmMGTi")
        try:
            value = Decimal(digits) * _FACTORS[str(text)[len(digits) :]]
        except (InvalidOperation, KeyError):
            value = Decimal("NaN")
        if isinstance(text, bool) or not value.is_finite() or not 0 <= value <= 2**63:
            raise self.error("is no quantity of a resource", text)
        return value


def _matches(head: Head) -> bool:
    return GROUP in head.start and "Workload" in head.start


FORMAT = Format(
    "kueue",
    read,
    _matches,
    units="stamps in UTC",
    source="Workloads of Kueue, kubectl get workloads -A -o json",
    licence="that of its source",
)
