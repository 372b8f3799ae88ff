"""The listing of policies beside the catalog says what the catalog says, and is asked only while it does."""

import json
import subprocess
import sys
from types import SimpleNamespace

import pytest

from plait.cli import listing
from plait.policies.catalog import CATALOG


def test_the_listing_is_that_of_the_catalog():
    assert listing.LISTING.read_text() == listing.text(), "write it again: python -m plait.cli.listing"


def test_listing_policies_loads_none():
    code = (
        "import sys; from plait.cli import main\n"
        "try: main(['policies', '--json'])\n"
        "except SystemExit: print(sorted(m for m in ('numba', 'numpy', 'plait.policies') if m in sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.splitlines()[-1] == "[]"
    assert f'"name": "{next(iter(CATALOG))}"' in done.stdout


@pytest.mark.parametrize("kept", [None, "{", "{}", '{"catalog_crc32": 1, "policies": []}'])
def test_a_listing_that_is_not_of_this_catalog_is_not_used(monkeypatch, tmp_path, kept):
    monkeypatch.setattr(listing, "LISTING", tmp_path / "listing.json")
    if kept is not None:
        listing.LISTING.write_text(kept)
    assert [row["name"] for row in listing.listed()][: len(CATALOG)] == list(CATALOG)


def test_policies_of_installed_packages_are_listed(monkeypatch, plait):
    row = CATALOG["fifo"]
    theirs = [SimpleNamespace(name="theirs", load=lambda: row)]
    monkeypatch.setattr(listing, "entry_points", lambda group: theirs)
    monkeypatch.setattr("plait.policies.catalog.entry_points", lambda group: theirs)
    assert [row["name"] for row in json.loads(plait("policies", "--json").out)][-1] == "theirs"
