"""The dashboard and the alerts name figures that the service really has."""

import json
import re
from pathlib import Path

import pytest
from live_cases import Cluster
from msgspec import structs

from plait.live.api.cluster import ClusterStatus
from plait.live.protocol.wire import Exchange
from plait.live.service.http.metrics import Metrics
from plait.live.service.worker import Worker

DEPLOY = Path(__file__).parents[3] / "deploy"
yaml = pytest.importorskip("yaml")


def expressions() -> list[str]:
    board = json.loads((DEPLOY / "grafana" / "plait.json").read_text())
    rules = yaml.safe_load((DEPLOY / "prometheus" / "alerts.yml").read_text())
    found = [target["expr"] for panel in board["panels"] for target in panel["targets"]]
    return found + [rule["expr"] for group in rules["groups"] for rule in group["rules"]]


def test_every_figure_that_is_shown_is_there(tmp_path: Path) -> None:
    c = Cluster(tmp_path, (1, 1, 1), "fifo:ina=atp", network="single-switch:aggregators=64", expect_gpus=3)
    metrics = Metrics(Worker(c.engine, lambda: c.now, lambda versions: None, lambda error: None))
    c.submit({}, {}, then_s=2)
    c.nodes[0].end(0)
    c.nodes[1].end(0, then_s=2)
    c.submit({"gpus": 2}, then_s=2)
    for node in c.nodes:
        node.report(2, exchange=Exchange("aggregation", "", 1, 9e6, 1e6, 0.1, 0.25))
    c.pass_s(1)
    metrics.notice(c.engine)
    metrics.requests.labels("GET", "200").inc()
    figures = structs.asdict(c.engine.status(c.now))
    status = ClusterStatus(**figures, prices=None, store_error=None, stored_s=None, version="", uptime_s=0.0)
    text = metrics.render(status, c.engine.network(c.now), None, 0.0).decode()
    c.store.close()
    there = set(re.findall(r"^(plait_\w+)[{ ]", text, re.M))
    named = {name for words in expressions() for name in re.findall(r"plait_\w+", words)}
    assert len(named) >= 9
    assert named <= there
    assert 'plait_job_jct_seconds_count{how="finished"} 1.0' in text
    assert 'plait_attempts_total{outcome="finished"} 1.0' in text
    assert 'plait_switch_up{switch="leaf0"} 1.0' in text
    assert 'plait_network_jobs{mode="aggregation"} 1.0' in text
    assert "plait_network_fallback_share 0.25" in text
    for state in ("waiting", "running", "held", "total", "lost", "suspect"):
        assert f'state="{state}"' in text


def test_changes_of_gauges_are_those_of_all_services_together() -> None:
    """Who leads has a series of its own, which ends when another one leads: nothing that changes then is in it."""
    for words in expressions():
        assert not re.search(r"\b(delta|idelta|deriv|changes)\(plait_\w+[\[{]", words), words
