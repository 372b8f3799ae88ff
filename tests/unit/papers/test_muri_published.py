"""The published numbers agree with each other, and the figures with them."""

from __future__ import annotations

import pytest

from plait.core.errors import InputError
from plait_papers.muri import published
from plait_papers.muri.artifact.settings import CHOICES, MEANINGS, POLICIES, SUMMARIES, read_setting
from plait_papers.muri.figures import FIGURES, KINDS, LABELS, METRICS, chosen

CELLS = [v for v in published.values() if v.figure in FIGURES]


def test_every_value_says_where_it_is_from() -> None:
    for value in published.values():
        assert value.value >= 0
        assert value.mark in published.MARKS
        assert value.source
        assert value.figure in {*FIGURES, "8", "tables", ""}
    assert all(ratio.mark in published.MARKS for ratio in published.ratios())


def test_no_value_is_there_twice() -> None:
    keys = [(v.figure, v.trace, v.bar, v.metric, v.policy) for v in published.values()]
    assert len(set(keys)) == len(keys)


def test_policies_are_settings_of_the_world_in_one_spelling() -> None:
    texts = {v.policy for v in published.values()}
    texts |= {p for f in FIGURES.values() for b in f.bars for p in (b.policy, b.consistent) if p}
    for text in texts:
        assert read_setting(text).text == text


def test_cells_equal_the_run_of_their_setting() -> None:
    checked = 0
    for cell in CELLS:
        run = published.reference(cell.trace, cell.policy, cell.metric)
        if cell.policy != "themis":
            assert run is not None
            assert run.value == cell.value
            checked += 1
    assert checked > 60


def test_ratios_are_those_of_the_cells() -> None:
    checked = 0
    for ratio in published.ratios():
        over = published.cell(ratio.figure, ratio.trace, ratio.over, ratio.metric)
        under = published.cell(ratio.figure, ratio.trace, ratio.under, ratio.metric)
        if over and under:
            assert over.value / under.value == pytest.approx(ratio.low, abs=0.0051)
            assert ratio.low == ratio.high
            checked += 1
    assert checked > 40


def test_traces_lie_in_the_range_over_all_traces() -> None:
    for ratio in published.ratios():
        over_all = published.ratio(ratio.figure, "", ratio.metric, ratio.over)
        if ratio.trace and over_all:
            assert over_all.low <= ratio.low <= over_all.high


def test_a_trace_without_its_own_ratio_has_the_range() -> None:
    held_back = published.ratio("9", "trace2", "avg_jct_s", "SRTF")
    assert held_back is not None
    assert (held_back.trace, held_back.low, held_back.high) == ("", 1.5, 2.26)
    assert published.ratio("9", "trace2", "avg_jct_s", "Muri-S") is None


def test_every_cell_has_its_bar() -> None:
    for cell in CELLS:
        figure = FIGURES[cell.figure]
        assert cell.trace in figure.traces
        assert cell.metric in figure.metrics
        assert cell.bar in {bar.name for bar in figure.bars}


def test_figures_are_sound() -> None:
    for figure in FIGURES.values():
        names = {bar.name for bar in figure.bars}
        assert all(bar.over in names for bar in figure.bars)
        assert set(figure.traces) <= set(LABELS)
        assert set(figure.metrics) <= set(METRICS)


def test_the_published_setting_may_differ_by_metric() -> None:
    figure = FIGURES["10"]
    muri = figure.bars[-1]
    settings = {metric: figure.setting(muri, "trace3", metric) for metric in figure.metrics}
    assert settings == {"avg_jct_s": "muri-l", "makespan_s": "muri-l", "p99_jct_s": "muri-l:unpack=off"}
    assert figure.setting(muri, "trace2", "avg_jct_s") == "muri-l:unpack=off"


def test_chosen_figures() -> None:
    assert chosen(None) == KINDS
    assert chosen("tables, 9") == ("9", "tables")
    with pytest.raises(InputError, match=r"unknown figure '8'; known: 9, 10, 11, 12, 13, 14, tables, testbed"):
        chosen("8")


def test_every_policy_and_option_is_explained() -> None:
    assert tuple(SUMMARIES) == POLICIES
    assert set(MEANINGS) == set(CHOICES)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("fifo", "no policy 'fifo'; known: srtf"),
        ("muri-x", r"did you mean 'muri-.'\?; it has srtf, srsf"),
        ("srtf:unpack=off", "srtf takes no options"),
        ("muri-s:unpack", "'unpack' is not option=value"),
        ("muri-s:unpck=off", "did you mean 'unpack'"),
        ("muri-l:max_jobs=9", "max_jobs of muri-l cannot be '9'"),
        ("muri-s:order=discretised", "muri-s has no queues"),
    ],
)
def test_wrong_settings(text: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        read_setting(text)
