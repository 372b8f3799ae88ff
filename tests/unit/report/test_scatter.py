"""Pictures of measured against predicted."""

from __future__ import annotations

import pytest

from plait.core.errors import InputError
from plait.report.charts import Cloud, scatter_svg


def test_scatter_refuses_what_cannot_be_drawn() -> None:
    drawn = scatter_svg("Goodput", [Cloud("atp", [1.0, 2.0], [1.1, 1.9])], "simulated", "live", band=0.15)
    assert drawn.count("<path transform") == 3  # two points and the legend
    with pytest.raises(InputError, match="'atp' need as many y as x"):
        scatter_svg("Goodput", [Cloud("atp", [1.0], [])], "simulated", "live")
