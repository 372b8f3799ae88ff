"""The costs of the cluster, as text: by user, project and job."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from plait.cli.connection import print_json, print_table
from plait.core.words import duration, gpu_hours
from plait.live.notes import note

if TYPE_CHECKING:
    from plait.live.api.costs import CostRow, Costs, Part

#: Share of what was held from which on a part that was not measured is named.
PARTLY = 0.05


def money(part: Part | None, currency: str) -> str:
    """The cost of a part, or its GPU-hours where prices are missing.

    >>> from plait.live.api.costs import Part
    >>> money(Part(2.0, cost=5.0), "EUR"), money(Part(2.5, cost=None), ""), money(None, "EUR")
    ('5.00 EUR', '2.50 GPU-hours', 'not measured')
    """
    if part is None:
        return "not measured"
    if part.cost is None:
        return f"{gpu_hours(part.gpu_h)} GPU-hours"
    return f"{part.cost:,.2f} {currency}".strip()


def cost_text(bill: Costs) -> str:
    """All of a period in one sentence."""
    currency = bill.currency
    parts = ", ".join(f"{name} {money(getattr(bill, name), currency)}" for name in ("jobs", "idle", "down"))
    of_jobs = _of_jobs(bill, bill.jobs, currency)
    span = duration(bill.now_s - bill.from_s)
    return f"{money(bill.total, currency)} in the last {span}: {parts}; of jobs: {of_jobs}"


def cost_rows(bill: Costs) -> list[tuple[str, object]]:
    """Rows of `plait show`: what one job held, and what of that was idle or lost."""
    (row,) = bill.by_job[:1]
    name = "held" if bill.prices is None else "cost"
    text = _of_jobs(row, row.held, bill.currency)
    return [(name, f"{money(row.held, bill.currency)}, of which {text}")]


def _of_jobs(row: Costs | CostRow, held: Part, currency: str) -> str:
    """Of what jobs held: what was idle, as far as that was measured, and what is lost."""
    idle, unmeasured = row.held_idle, row.unmeasured
    partly = f" ({money(unmeasured, currency)} not measured)"
    text = money(idle, currency) + (partly if idle and unmeasured.gpu_h > PARTLY * held.gpu_h else "")
    return f"held but idle: {text}, lost work: {money(row.lost, currency)}"


def note_unpriced(bill: Costs) -> None:
    """Note which GPU kinds count as free because their price is missing."""
    if bill.unpriced:
        note(f"no price for GPU kind {', '.join(bill.unpriced)}, which counts as free: plait up --price KIND=PRICE")


def print_costs(bill: Costs, *, as_json: bool) -> None:
    """All of an answer of `GET /v1/costs`."""
    if as_json:
        print_json(bill)
        return
    typer.echo(cost_text(bill))
    note_unpriced(bill)
    priced = bill.prices is not None
    for name, key, holders in (
        ("project", "project", bill.by_project),
        ("user", "user", bill.by_user),
        ("job", "id", bill.by_job),
    ):
        rows = [
            [getattr(row, key), gpu_hours(row.held.gpu_h), *([money(row.held, bill.currency)] if priced else [])]
            + [money(part, bill.currency) for part in (row.held_idle, row.lost)]
            for row in holders
        ]
        if rows:
            typer.echo("")
            held = (">GPU-hours held", ">cost") if priced else (">GPU-hours held",)
            print_table((name, *held, ">held but idle", ">lost work"), rows, "")
