"""The package of papers registers its command and worlds, and plait works without it."""

from __future__ import annotations

import configparser
import tomllib
from pathlib import Path

import plait as package
import plait_papers
from plait.cli import lazy

PROJECT = Path(plait_papers.__file__).parents[2] / "pyproject.toml"


def test_a_checkout_registers_what_an_installation_would():
    project = tomllib.loads(PROJECT.read_text(encoding="utf-8"))["project"]
    beside = PROJECT.parent / "src" / "plait_papers.dist-info"
    text = configparser.ConfigParser(delimiters="=")
    text.read(beside / "entry_points.txt")
    assert {group: dict(text[group]) for group in text.sections()} == project["entry-points"]
    assert f"Version: {project['version']}\n" in (beside / "METADATA").read_text(encoding="utf-8")
    assert project["version"] == package.__version__
    assert project["dependencies"] == [f"plait[sim]=={project['version']}"]


def test_without_the_package_the_command_names_it(plait, monkeypatch):
    assert "reproduce" in plait("--help").out
    monkeypatch.setattr(lazy, "entry_points", lambda group: [])
    answer = plait("reproduce", "muri", "--data", "x")
    assert answer.code == 2
    assert "in plait: pip install ./papers, in a checkout of plait, adds it" in answer.err.replace("\n", " ")
    assert "reproduce" not in plait("--help").out
    assert plait("worlds").code == 0
