"""Group times of the artifact's world: its printed values, and the fast ones against the plain recurrence."""

from __future__ import annotations

from itertools import combinations_with_replacement

import numpy as np
import pytest
from artifact_jobs import PROFILES_MS, SIZES, of_profiles, profile_ms

from plait.core.errors import InputError
from plait_papers.muri.artifact import speeds
from plait_papers.muri.artifact.speeds import INTERFERENCE, Profiles, raw_time

SHORT = {"shufflenet": "shufflenet_v2_x1_0"}
FACTOR = np.array(INTERFERENCE)
PRINTED = """
16 shufflenet+a2c+gpt2+vgg16 901 1301 1216.1281 1.999740 0.451597
8 shufflenet+a2c+gpt2+vgg16 851 1271 1148.6404 1.911342 0.444874
1 shufflenet+a2c+gpt2+vgg16 823 1220 1110.8473 1.688549 0.425036
8 shufflenet+a2c+gpt2 836 1271 1235.4680 1.601203 0.368484
8 a2c+a2c+gpt2+vgg16 591 1004 797.7044 2.240698 0.540426
8 dqn+dqn+dqn+shufflenet 870 1204 1174.2857 2.147058 0.461238
8 bert+gpt2+gpt2+gpt2 1424 1424 1922.0493 0.793708 0.212312
8 a2c+a2c 530 1004 694.4828 1.622286 0.371787
8 dqn+dqn 451 870 590.9655 1.748444 0.375233
8 a2c+gpt2 516.4 935 676.6621 1.488010 0.363919
8 dqn+gpt2 476.5 862 624.3793 1.537831 0.365203
8 gpt2+gpt2 838.6 936 1098.8552 0.807304 0.213222
8 bert+bert 334.5 452 438.3103 0.889233 0.258379
8 bert+gpt2 586.5 694 768.5172 0.830736 0.226117
8 bert+vgg16 242.5 367 317.7586 1.296865 0.353649
8 gpt2+vgg16 494.6 609 648.0966 1.019547 0.266781
8 resnet18+shufflenet 978 1553 1281.5172 1.557923 0.353877
8 resnet18+resnet18 1018 1568 1333.9310 1.537036 0.366586
8 shufflenet+gpt2 836 1245 1095.4483 1.291626 0.297732
8 shufflenet+vgg16 845 901 1107.2414 1.073447 0.239108
8 vgg16+vgg16 232 282 304.0000 1.429013 0.366776
1 a2c+vgg16 528 631 691.8621 0.915443 0.257638
""".strip().splitlines()


def group(jobs: int) -> tuple[np.ndarray, np.ndarray]:
    """The first jobs of a trace as one group."""
    members = np.zeros((1, 4), dtype=np.int64)
    members[0, :jobs] = range(jobs)
    return members, np.array([jobs])


@pytest.mark.parametrize("line", PRINTED)
def test_printed_group_times(line: str) -> None:
    size, names, raw, worst, time, speedup, gamma = line.split()
    models = [SHORT.get(name, name) for name in names.split("+")]
    trace = of_profiles(models, int(size))
    profiles, members = Profiles.from_trace(trace), group(len(models))
    ones = np.ones(5)
    assert 1000 * profiles.times(*members, ones)[0] == pytest.approx(float(raw), abs=1e-9)
    assert 1000 * profiles.times(*members, ones, worst=True)[0] == pytest.approx(float(worst), abs=1e-9)
    time_s = profiles.times(*members, FACTOR)[0]
    assert f"{1000 * time_s:.4f}" == time
    assert f"{trace.iteration_s.sum() / time_s:.6f}" == speedup
    left, right = group(len(models) - 1)
    pair = np.concatenate([left, np.array([[len(models) - 1, 0, 0, 0]])]), np.append(right, 1)
    assert f"{profiles.weights(*pair, 4, FACTOR)[0, 1]:.6f}" == gamma


@pytest.mark.parametrize("gpus", SIZES)
@pytest.mark.parametrize("worst", [False, True])
def test_fast_times_are_the_plain_ones(gpus: int, worst: bool) -> None:
    """All groups of 2, 3 and 4 of the 48 profiles, to the last bit, asked twice."""
    models = list(PROFILES_MS)
    profiles = Profiles.from_trace(of_profiles(models, gpus))
    groups = [c for p in (2, 3, 4) for c in combinations_with_replacement(range(len(models)), p)]
    members = np.array([[*c, 0, 0][:4] for c in groups])
    size = np.array([len(c) for c in groups])
    stages = [tuple(x / 1000 for x in profile_ms(m, gpus)[1:]) for m in models]
    plain = [raw_time([stages[i] for i in c], worst=worst) for c in groups]
    for _ in range(2):
        assert profiles.times(members, size, np.ones(5), worst=worst).tolist() == plain


def test_times_do_not_depend_on_the_order_of_members() -> None:
    profiles = Profiles.from_trace(of_profiles(list(PROFILES_MS), 8))
    members = np.array([[0, 3, 5, 7], [7, 5, 3, 0], [3, 7, 0, 5]])
    times = profiles.times(members, np.full(3, 4), FACTOR)
    assert times[0] == times[1] == times[2]


def test_what_is_remembered_gives_way_without_harm(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(speeds, "REMEMBERED", 2)
    few = Profiles.from_trace(of_profiles(list(PROFILES_MS), 8))
    monkeypatch.setattr(speeds, "REMEMBERED", 1 << 12)
    many = Profiles.from_trace(of_profiles(list(PROFILES_MS), 8))
    members = np.array([[*c, 0][:4] for c in combinations_with_replacement(range(8), 3)])
    size = np.full(len(members), 3)
    assert few.times(members, size, FACTOR).tolist() == many.times(members, size, FACTOR).tolist()


def test_weights_sum_the_members_of_u_then_of_v() -> None:
    """Both orders of a pair, each to its last bit; nothing where the two are too many together."""
    profiles = Profiles.from_trace(of_profiles(list(PROFILES_MS), 4))
    members = np.array([[0, 1, 0, 0], [2, 0, 0, 0], [3, 4, 0, 0], [5, 6, 7, 0]])
    size = np.array([2, 1, 2, 3])
    weights = profiles.weights(members, size, 4, FACTOR)
    for u in range(4):
        for v in range(4):
            jobs = [*members[u, : size[u]], *members[v, : size[v]]]
            if u == v or len(jobs) > 4:
                assert weights[u, v] == 0
                continue
            busy = 0.0
            for j in jobs:
                busy += profiles.total[profiles.of[j]]
            raw = raw_time([tuple(profiles.stages[profiles.of[j]]) for j in jobs])
            assert weights[u, v] == busy / (raw * FACTOR[len(jobs)] * 4)
    assert (weights > 0).sum() == 8


def test_too_many_profiles_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(speeds, "BITS", 3)
    with pytest.raises(InputError, match="8 different stage profiles in one trace; at most 7 work"):
        Profiles.from_trace(of_profiles(list(PROFILES_MS), 8))
