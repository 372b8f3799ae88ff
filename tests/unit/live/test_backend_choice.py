"""A backend is picked by its name: plait's own, or one that somebody else's package brings."""

import fcntl
from importlib.metadata import EntryPoint, EntryPoints
from pathlib import Path
from typing import Any

import pytest

from plait.core.errors import InputError
from plait.live.backends import base, registry
from plait.live.layout import Layout, make_private
from plait.live.supervisor.options import and_remembered, pairs, remember


class Foreign:
    name = "foreign"

    def __init__(self, layout: Layout, options: object, stop_grace_s: float) -> None:
        self.options = options


def test_this_machine_is_the_default_and_takes_its_options(tmp_path: Path) -> None:
    backend = registry.open_backend(Layout(tmp_path), {"nodes": 3, "gpus-per-node": 2, "fake": True})
    assert (backend.name, backend.expected()) == ("local", 3)
    assert [(place.name, place.gpus, place.state) for place in backend.list_nodes()] == [
        ("n0", 2, base.COMING), ("n1", 2, base.COMING), ("n2", 2, base.COMING)
    ]  # fmt: skip


def test_packages_bring_their_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    entry = EntryPoint("foreign", f"{__name__}:Foreign", registry.GROUP)
    monkeypatch.setattr(registry, "entry_points", lambda group: EntryPoints([entry] if group == registry.GROUP else []))
    backend = registry.open_backend(Layout(tmp_path), {"backend": "foreign", "zone": "b"})
    assert isinstance(backend, Foreign)
    assert backend.options == {"backend": "foreign", "zone": "b"}


def test_every_backend_may_have_cpu_slots_of_this_machine_next_to_its_nodes(tmp_path: Path) -> None:
    backend = registry.open_backend(Layout(tmp_path), {"backend": "slurm", "fake": True, "cpu-slots": 3})
    assert (backend.name, backend.expected(), backend.expected_gpus(), backend.most_gpus()) == ("slurm", 1, 0, 16)
    assert isinstance(backend, registry.WithSlots)
    assert [(place.name, place.gpus) for place in backend.slots.list_nodes()] == [("cpu", 3)]
    said = []

    class Own:
        name = "own"

        def __getattr__(self, what: str) -> Any:
            return lambda *given: said.append((what, *given)) or []  # type: ignore[func-returns-value]

    both: Any = registry.WithSlots(Own(), Own())  # type: ignore[arg-type]
    assert (both.start(), both.maintain(None), both.list_nodes(), both.stop(True)) == ([], [], [], None)
    assert said == [(what, *given) for what, *given in (
        ("start",), ("maintain", None), ("list_nodes",), ("stop", True)) for _ in range(2)]  # fmt: skip


def test_an_unknown_one_names_those_there_are(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"no backend 'mesos'; there are: .*local"):
        registry.open_backend(Layout(tmp_path), {"backend": "mesos"})


def test_options_for_a_backend_have_a_name_and_a_value() -> None:
    assert pairs(["partition=gpu", "sbatch=--account=a --qos=b"]) == {
        "partition": "gpu",
        "sbatch": "--account=a --qos=b",
    }
    for wrong in ("partition", "=gpu", "port=80"):
        with pytest.raises(InputError, match="write for example: -o partition=gpu"):
            pairs([wrong])


def test_what_another_backend_was_given_is_forgotten_and_an_empty_value_takes_an_option_back(tmp_path: Path) -> None:
    layout = Layout(tmp_path)
    make_private(layout.options_file().parent)
    remember(layout, {"port": 80, "nodes": 2, "max-nodes": "4", "delay": "30"})
    assert and_remembered(layout, {"max-nodes": "", "backend": "local"}) == {
        "port": 80, "nodes": 2, "delay": "30", "backend": "local"
    }  # fmt: skip
    assert and_remembered(layout, {"backend": "slurm"}) == {"port": 80, "backend": "slurm"}


def test_numbers_may_come_as_text(tmp_path: Path) -> None:
    assert registry.open_backend(Layout(tmp_path), {"nodes": "3", "fake": True}).expected() == 3
    with pytest.raises(InputError, match="nodes is 'three', needs a whole number"):
        registry.open_backend(Layout(tmp_path), {"nodes": "three"})
    options = {"nodes": 1, "gpus-per-node": "2", "fake": True, "cpu-slots": 4, "max-nodes": "3"}
    assert registry.open_backend(Layout(tmp_path), options).most_gpus() == 6
    folder = make_private(Layout(tmp_path).node("n2"))
    with (folder / "agent.lock").open("w") as lock:  # its size could not be written: the disk was full
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert registry.open_backend(Layout(tmp_path), options).expected_gpus() == 2 + 2 + 4
    with pytest.raises(InputError, match=r"max-nodes=0 with --nodes 1; needs 1 <= nodes <= max-nodes"):
        registry.open_backend(Layout(tmp_path), {"fake": True, "max-nodes": "0"})
