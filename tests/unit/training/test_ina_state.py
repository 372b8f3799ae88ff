"""The state of the hook in a single process: who says what, and what reaches the agent."""

import pytest

pytest.importorskip("torch")

import torch
import torch.distributed as dist

from plait.core.errors import InputError
from plait.runtime.network.report import read_report
from plait.training import ina, ina_allreduce_hook
from plait.training.collectives.aggregation_engine import Engine
from plait.training.collectives.aggregation_session import Session


@pytest.fixture
def alone(tmp_path):
    """A process group of one rank."""
    dist.init_process_group("gloo", init_method=f"file://{tmp_path / 'store'}", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


class Group:
    """Of a rank that has no others to agree with."""

    rank, size = 0, 2

    def close(self) -> None:
        pass


def test_it_needs_process_groups() -> None:
    with pytest.raises(InputError, match="needs process groups"):
        ina()


@pytest.mark.parametrize("wrong", [0, -1, 1.5, True, "3"])
def test_it_needs_a_number_of_buckets(alone, wrong) -> None:
    with pytest.raises(InputError, match="give a number of buckets, 1 or more"):
        ina(give_up_after=wrong)


def test_a_rank_alone_reduces_by_itself(alone, capfd) -> None:
    state = ina(environ={})

    class Bucket:
        def buffer(self):
            return torch.arange(4.0)

    assert torch.equal(ina_allreduce_hook(state, Bucket()).wait(), torch.arange(4.0))
    assert state.report().reason == state.reason == "this is one rank alone"
    assert "plait:" not in capfd.readouterr().err


def test_a_script_with_another_hook_is_in_the_report_of_the_rank(alone, tmp_path) -> None:
    state = ina(environ={"PLAIT_RUN_DIR": str(tmp_path)})
    state._engine = Engine(Group(), Session(None, 0, 2), give_up_after=3, folder=str(tmp_path))
    state.not_used("the script has one of its own")
    found = read_report(tmp_path)
    assert (found.mode, found.reason, found.aggregated) == ("gloo", "the script has one of its own", 0)
    assert found.events[-1].text == "gradients are not aggregated: the script has one of its own"
    assert "gradients are not aggregated" in (tmp_path / "plait.log").read_text()
    assert state.reason == "the script has one of its own"
