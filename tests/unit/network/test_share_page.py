"""The examples of the page about sharing a network give what the page says."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

PAGE = Path(__file__).parents[3] / "docs" / "how-to" / "share-a-network.md"


@pytest.mark.skipif(not PAGE.exists(), reason="plait is installed without its documentation")
def test_examples_give_what_the_page_shows() -> None:
    names: dict[str, Any] = {}
    shown = 0
    for block in re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL):
        part = ""
        for line in block.splitlines():
            expression, comment, value = line.partition("  # ")
            if not comment:
                part += line + "\n"
                continue
            exec(part, names)
            assert repr(eval(expression, names)) == value
            part, shown = "", shown + 1
        exec(part, names)
    assert shown >= 2
