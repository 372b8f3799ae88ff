"""Headers of answers while the store cannot be written: the reason, and the age of the answer."""

import json
import time

from plait.core.errors import shortened
from plait.core.words import duration
from plait.live.notes import time_of_day

#: Header of every answer of that time.
HEADER = "plait-not-current"


def header_value(why: str, ago_s: float) -> str:
    """The value of the header: `why` nothing can be stored, and for how many seconds."""
    return json.dumps({"why": shortened(why), "ago_s": round(ago_s, 3)})


def sentence_of(value: str | None) -> str:
    """The value of the header as a sentence; empty for none, and for one that cannot be read."""
    try:
        found = json.loads(value or "{}")
        return sentence(str(found["why"]), float(found["ago_s"]))
    except (ValueError, KeyError, TypeError):
        return ""


def sentence(why: str, ago_s: float) -> str:
    """Why what is shown is not current, since when, and what that means.

    >>> sentence("the disk is full", 75.0).partition(", 1 min 15 s ago")[2]
    '; what runs goes on, and nothing new is taken until there is room'
    """
    date_s = time.time()
    then = time_of_day(date_s - ago_s, date_s, seconds=True)
    return (
        f"{why}; shown as of {then}, {duration(ago_s)} ago; what runs goes on, and nothing new is taken until there "
        "is room"
    )
