"""A policy that cannot decide."""

from __future__ import annotations

from plait.core.plan import Plan
from plait.core.policy import View


class Broken:
    """Fails whenever it is asked."""

    name = "broken"

    def decide(self, view: View) -> Plan:
        """Never."""
        raise ZeroDivisionError("no plan")
