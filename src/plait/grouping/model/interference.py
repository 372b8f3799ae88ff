"""Measured slow-down of sharing beyond the ideal schedule."""

from __future__ import annotations

#: Slow-down of a group of 1, 2, 3, 4 jobs beyond the ideal schedule, measured by Muri's authors on V100
#: (their artifact: 1.33, 1.5 and 1.37; the factor 1.015 of a lone job is part of the trace's own times).
MEASURED_INTERFERENCE = (1.0, 1.33 / 1.015, 1.5 / 1.015, 1.37 / 1.015)
