"""`plait network turns`: the figures of one group, and what is refused."""

from __future__ import annotations

import json

import pytest

WHERE = ("-c", "8x4@2", "-n", "leaf-spine:oversubscription=4,link_gbps=10")


def test_a_job_alone_is_as_its_profile_says_and_turns_never_exchange_together(plait):
    rows = json.loads(plait("network", "turns", *WHERE, "--json", "vgg16@n0,n1", "bert@n0,n1", "gpt2@n2,n3").out)
    alone = plait("network", "turns", *WHERE, "--json", "vgg16@n0,n1")
    assert json.loads(alone.out)[0]["alone_s"] == pytest.approx(0.214)
    for row in rows:  # every group has a rack: links between them are idle
        assert row["in_turns_s"] == pytest.approx(row["turns_alone_s"])
        assert row["exchange_in_turns_s"] == pytest.approx(row["exchange_alone_s"])
        assert row["in_turns_s"] >= row["alone_s"] * (1 - 1e-9)
    assert rows[2]["in_turns_s"] == pytest.approx(rows[2]["alone_s"])


def test_groups_between_racks_slow_each_other_down_and_the_table_says_what_turns_are_worth(plait):
    jobs = ("vgg16@n0,n2", "bert@n0,n2", "vgg19@n1,n3", "gpt2@n1,n3")
    rows = json.loads(plait("network", "turns", *WHERE, "--json", *jobs).out)
    assert all(row["exchange_in_turns_s"] > 1.1 * row["exchange_alone_s"] for row in rows)
    assert all(row["in_turns_s"] > row["turns_alone_s"] for row in rows)
    table = plait("network", "turns", *WHERE, *jobs).out
    assert "iterations of all jobs together" in table


@pytest.mark.parametrize(
    ("jobs", "words"),
    [
        (["vgg16"], "job 'vgg16': write MODEL@NODES, e.g. vgg16@n0..n1; models: "),
        (["vgg@n0"], "vgg"),
        (["vgg16@n0,n1>n2"], "exchanges in a ring; leave out > and the server"),
        (["vgg16@n0,n1", "bert@n1,n2"], "two groups share some of their nodes"),
    ],
)
def test_wrong_jobs_are_named(plait, jobs, words):
    answer = plait("network", "turns", *WHERE, *jobs)
    assert (answer.code, words in answer.err) == (2, True), answer.err
