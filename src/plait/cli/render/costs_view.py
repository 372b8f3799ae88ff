"""What the cluster cost, as text: by user, project and job."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import typer

from plait.cli.connection import print_json, print_table
from plait.core.words import duration
from plait.live.notes import note

_WORDS = {"held_idle": "held but idle", "lost": "lost work"}


def money(part: Mapping[str, Any], currency: str) -> str:
    """What a part cost, or its GPU-hours where nobody said prices.

    >>> money({"gpu_h": 2.0, "cost": 5.0}, "EUR"), money({"gpu_h": 2.5, "cost": None}, "")
    ('5.00 EUR', '2.5 GPU-hours')
    """
    if part["cost"] is None:
        return f"{part['gpu_h']:,.4g} GPU-hours"
    return f"{part['cost']:,.2f} {currency}".strip()


def cost_text(bill: Mapping[str, Any]) -> str:
    """All of a period in one sentence."""
    currency = bill["currency"]
    parts = ", ".join(f"{name} {money(bill[name], currency)}" for name in ("jobs", "idle", "down"))
    of_jobs = ", ".join(f"{words} {money(bill[name], currency)}" for name, words in _WORDS.items())
    span = duration(bill["now_s"] - bill["from_s"])
    return f"{money(bill['total'], currency)} in the last {span}: {parts}; of the jobs' {of_jobs}"


def cost_rows(bill: Mapping[str, Any]) -> list[tuple[str, object]]:
    """Rows of `plait show`: what one job held, and what of that was idle or lost."""
    (row,) = bill["by_job"][:1]
    text = ", ".join(f"{words} {money(row[name], bill['currency'])}" for name, words in _WORDS.items())
    return [("cost", f"{money(row['held'], bill['currency'])}, of which {text}")]


def note_unpriced(bill: Mapping[str, Any]) -> None:
    """Say which GPU kinds count as free because nobody said their price."""
    if bill.get("unpriced"):
        note(f"no price for GPU kind {', '.join(bill['unpriced'])}, which counts as free: plait up --price KIND=PRICE")


def print_costs(bill: Mapping[str, Any], *, as_json: bool) -> None:
    """All of an answer of `GET /v1/costs`."""
    if as_json:
        print_json(bill)
        return
    typer.echo(cost_text(bill))
    note_unpriced(bill)
    for name, key in (("project", "project"), ("user", "user"), ("job", "id")):
        rows = [
            [row[key], f"{row['held']['gpu_h']:,.4g}"]
            + [money(row[part], bill["currency"]) for part in ("held", "held_idle", "lost")]
            for row in bill[f"by_{name}"]
        ]
        if rows:
            typer.echo("")
            print_table((name, ">GPU-hours", ">held", ">held but idle", ">lost work"), rows, "")
