"""Numbers in sentences."""

from __future__ import annotations


def counted(number: int, what: str) -> str:
    """A number and its noun, which is in the plural unless there is one.

    >>> counted(1, "GPU"), counted(2, "GPU"), counted(1200, "job")
    ('1 GPU', '2 GPUs', '1,200 jobs')
    """
    return f"{number:,} {what}" + "s" * (number != 1)
