"""What the page of errors and citations of sections say is so."""

import re
from pathlib import Path

import plait
from plait.core import errors
from plait.core.errors import PlaitError


def test_the_page_of_errors_lists_its_own_classes_and_claims_no_others():
    classes = [v for v in vars(errors).values() if isinstance(v, type) and issubclass(v, PlaitError)]
    listed = re.findall(r"^ +([A-Z]\w+)(?:  .*)?$", errors.__doc__, re.M)
    assert sorted(listed) == sorted(c.__name__ for c in classes)
    assert "Other packages define further errors" in errors.__doc__


def test_no_section_of_pollux_is_cited_that_the_published_paper_lacks():
    """Its sections 3 to 5 have one further level; the earlier preprint had two."""
    for path in Path(plait.__file__).parent.rglob("*.py"):
        text = path.read_text(encoding="utf-8")
        for cited in re.findall(r"(?:Pollux|OSDI'21)[^;()]{0,40}section (\d[\d.]*\d)", text):
            assert cited in ("3.1", "3.2", "4.1", "4.2", "5.1", "5.2", "5.3"), (path, cited)
