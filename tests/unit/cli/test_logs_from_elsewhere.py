"""`plait replay` and `plait fidelity` import nothing because a log names it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

SPY = """
from pathlib import Path
Path("imported").write_text("")
from plait.policies.catalog import make_policy

def Best():
    return make_policy("fifo")
"""


@pytest.fixture
def simulated(plait, small, tmp_path: Path) -> Path:
    """A log of a policy in `spy.py`, which leaves a mark when it is imported."""
    (tmp_path / "spy.py").write_text(SPY)
    assert plait("simulate", small, "-p", "fifo", "-c", "2x4", "--log", "log.jsonl").code == 0
    log = tmp_path / "log.jsonl"
    head, *rest = log.read_text().splitlines()
    log.write_text("\n".join([json.dumps({**json.loads(head), "policy": "spy:Best"}), *rest]) + "\n")
    return log


def test_replay_imports_what_the_user_named_alone(plait, simulated: Path, tmp_path: Path) -> None:
    refused = plait("replay", simulated)
    assert refused.code == 2
    assert "--allow-policy spy" in refused.err
    assert "a log runs nothing" in refused.err
    assert not (tmp_path / "imported").exists()
    assert plait("replay", simulated, "--allow-policy", "other").code == 2
    assert not (tmp_path / "imported").exists()
    assert plait("replay", simulated, "--allow-policy", "spy", "--verify").code == 0
    assert (tmp_path / "imported").exists()


def test_replay_runs_only_policies_of_a_module_that_was_named(plait, simulated: Path, tmp_path: Path) -> None:
    """And not what that module has from elsewhere."""
    (tmp_path / "mine.py").write_text("from os import system\n")
    simulated.write_text(simulated.read_text().replace("spy:Best", "mine:system:command=touch ran"))
    refused = plait("replay", simulated, "--allow-policy", "mine")
    assert refused.code == 2
    assert "mine.system is no policy" in refused.err
    assert not (tmp_path / "ran").exists()


def test_fidelity_imports_nothing_that_a_saved_log_names(plait, tmp_path: Path) -> None:
    entry = {"type": "PolicySet", "at_s": 0.0, "policy": "os:system:command=touch ran", "may_lose_work": False}
    log = tmp_path / "events.json"
    log.write_text(json.dumps([{"seq": 1, "event": entry, "commands": []}]))
    refused = plait("fidelity", "--log", log)
    assert refused.code == 2
    assert "--allow-policy os" in refused.err
    assert not (tmp_path / "ran").exists()
