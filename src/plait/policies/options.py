"""Options of policies: each is declared once, with its type, its range, and what `plait tune` may try.

    KNOB = number("promote after waiting this many times the run time", over=0, infinite=True,
                  fit=Range(0.5, 1000, "log", also=("inf",)))
    KNOB.parse("tiresias-l", "knob", "8")      # 8

The command line, `plait policies`, the reference and `plait tune` all read the same declaration.
"""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from plait.core.errors import InputError

SWITCH: Mapping[str, Any] = {"on": True, "off": False}
#: Other spellings of a switch.
_SAME = {"true": "on", "yes": "on", "false": "off", "no": "off"}
_UNITS_S = {"d": 86_400.0, "h": 3600.0, "m": 60.0, "s": 1.0}
#: Seeds are 63 bits; a policy that decides more than once a millisecond would leave no time to run anything.
MOST_SEED = 2**63 - 1
LEAST_S = 1e-3
#: Opportunistic jobs a GPU, at most; controllers refuse more.
MOST_GUESTS = 8
#: Generations and population of a genetic search that still ends and fits into memory (published: 100 and 100).
MOST_OF_SEARCH = 10_000
#: Orders of a project's guaranteed jobs under `antman`.
GuaranteedOrder = Literal["fifo", "tiresias", "srtf", "srsf"]


@dataclass(frozen=True)
class Range:
    """Range of an option for `plait tune`: `low` to `high`, evenly on `scale`, and the texts of `also`."""

    low: float = 0.0
    high: float = 0.0
    scale: Literal["linear", "log", "words"] = "words"
    also: tuple[str, ...] = ()
    whole: bool = False

    @property
    def spread(self) -> bool:
        """Whether there are numbers to choose from, besides the texts of `also`."""
        return self.scale != "words"


@dataclass(frozen=True)
class PolicyOption:
    """One option of a policy as text: `parse` returns its value or an error with a remedy.

    help      what it does, with its unit
    kind      number, whole (number), words (only those of `words`), text, or any (a number, a switch or text)
    unit      of a number, for messages, e.g. "seconds"
    least     the smallest number; refused itself where `over` is set
    most      the largest
    infinite  whether `inf` is a value
    words     texts that stand for values, besides numbers
    units     of a number of seconds: d, h, m or s may follow it
    many      several numbers, separated by /
    fit       what `plait tune` may choose from; None = not fitted
    """

    help: str
    kind: Literal["number", "whole", "words", "text", "any"] = "any"
    unit: str = ""
    least: float = -math.inf
    over: bool = False
    most: float = math.inf
    infinite: bool = False
    words: Mapping[str, Any] = field(default_factory=dict)
    many: bool = False
    units: bool = False
    fit: Range | None = None

    def parse(self, policy: str, name: str, text: str) -> Any:
        """The value that `text` stands for.

        Raises `InputError` naming policy, option, what was given and what works.
        """
        if self.kind == "text":
            return text
        if self.kind == "any":
            return _guess(text)
        if self.many:
            return tuple(self._number(policy, name, part) for part in text.split("/"))
        word = _SAME.get(text, text) if "on" in self.words or "off" in self.words else text
        if word in self.words:
            return self.words[word]
        return self._number(policy, name, text)

    def _number(self, policy: str, name: str, text: str) -> float:
        if self.units and (match := re.fullmatch(r"(\d{1,9}(?:\.\d+)?)([dhms])", text)):
            text = str(float(match[1]) * _UNITS_S[match[2]])
        value = _guess(text)
        number = isinstance(value, (int, float)) and not isinstance(value, bool)
        if not number or self.kind == "words":
            raise InputError(f"policy {policy}: {name} is {value if number else repr(text)}; it takes {self.takes}")
        huge = isinstance(value, int) and abs(value) > sys.float_info.max
        wrong = huge or math.isnan(value) or value < self.least or value > self.most
        wrong |= not huge and math.isinf(value) and not (self.infinite and value > 0)
        wrong |= self.over and value <= self.least
        if not wrong and self.kind == "whole":
            wrong = value != int(value)
            value = value if wrong else int(value)
        if wrong:
            raise InputError(f"policy {policy}: {name} is {value}; it takes {self.takes}")
        return value  # type: ignore[no-any-return]

    @property
    def takes(self) -> str:
        """Accepted values, in words."""
        if self.kind in ("text", "any"):
            return "text"
        words = [name for name in self.words if name not in ("on", "off")]
        words += [name for name in self.words if name in ("on", "off")]
        if self.kind == "words":
            return _either(words)
        return _either([self._numbers(), *words, *(["inf"] if self.infinite else [])])

    def _numbers(self) -> str:
        bounded = math.isfinite(self.least) and math.isfinite(self.most)
        what = "a whole number" if self.kind == "whole" else "a number" if bounded else "a finite number"
        if self.many:
            what = "numbers"
        if self.unit:
            what += f" of {self.unit}"
        if bounded:
            what += f" from {self.least:g} to {_short(self.most)}"
        elif math.isfinite(self.least):
            what += f" {'>' if self.over else '>='} {self.least:g}"
        return what + (", separated by /" if self.many else "")


def switch(meaning: str, fit: bool = False) -> PolicyOption:
    """`on` or `off`; `fit`: whether tuning may try both."""
    return PolicyOption(meaning, "words", words=SWITCH, fit=Range(also=("on", "off")) if fit else None)


def choice(
    meaning: str, *names: str, fit: tuple[str, ...] = (), words: Mapping[str, Any] | None = None
) -> PolicyOption:
    """One of `names`; `words` are others, and the values that they stand for."""
    return PolicyOption(
        meaning, "words", words={n: n for n in names} | dict(words or {}), fit=Range(also=fit) if fit else None
    )


def number(meaning: str, least: float = 0.0, most: float = math.inf, **more: Any) -> PolicyOption:
    """A number from `least` to `most`; `more` are other fields of an `PolicyOption`."""
    return PolicyOption(meaning, "number", least=least, most=most, **more)


def seconds(meaning: str, least: float = 0.0, **more: Any) -> PolicyOption:
    """A number of seconds from `least` on; `more` are other fields of an `PolicyOption`."""
    return number(meaning, least, unit="seconds", **more)


def duration(meaning: str) -> PolicyOption:
    """A duration with a unit, such as 7d, or seconds; inf."""
    return PolicyOption(meaning, "number", least=0.0, over=True, infinite=True, unit="seconds", units=True)


def whole(meaning: str, least: int, most: int, **more: Any) -> PolicyOption:
    """A whole number from `least` to `most`."""
    return PolicyOption(meaning, "whole", least=least, most=most, **more)


def free_text(meaning: str) -> PolicyOption:
    """Text that the policy itself reads."""
    return PolicyOption(meaning, "text")


def _guess(text: str) -> Any:
    """The text as a number, a switch or text, by its form."""
    if text in _SAME or text in SWITCH:
        return SWITCH[_SAME.get(text, text)]
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def _either(names: list[str]) -> str:
    """Names as a list in a sentence.

    >>> _either(["a", "b", "c"])
    'a, b or c'
    """
    return " or ".join(filter(None, (", ".join(names[:-1]), names[-1])))


def _short(value: float) -> str:
    return str(int(value)) if value == int(value) else f"{value:g}"
