"""What jobs ask of in-network aggregation: as an object, a short text, fields, in job files, traces and old logs."""

from __future__ import annotations

import dataclasses
import json
import typing

import pytest
from hypothesis import given

from plait.control.messages import spec_from_json, spec_to_json
from plait.core.errors import InputError
from plait.core.ina_request import AUTO, InaRequest, fields_of
from plait.core.jobs import JobBatch, JobSpec
from plait.live.protocol.job import Ina
from plait.network.protocol.options import CHOICES
from strategies import ina_requests


@given(ina_requests())
def test_a_request_is_the_same_after_its_text_its_fields_and_its_json(asked: InaRequest) -> None:
    assert InaRequest.parse(str(asked)) == asked
    assert InaRequest.of(dataclasses.asdict(asked)) == asked
    spec = JobSpec(id="a", ina=asked)
    stored = json.loads(json.dumps(spec_to_json(spec)))
    assert spec_from_json(stored) == spec
    assert ("ina" in stored) == (asked != AUTO)
    assert JobBatch.of([spec])[0] == spec


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("requires", "ina.mode is 'requires'; did you mean 'require'"),
        ("", "ina.mode is ''; known: auto, require, off"),
        ("auto:protocol=apt", "ina.protocol is 'apt'; did you mean 'atp'"),
        ("auto:index=hash", "ina.index is 'hash'; "),
        ("auto:memory=-1", "ina.memory is -1, needs a whole number from 0 to"),
        ("auto:memory=2.5", "ina.memory is 2.5, needs a whole number"),
        ("auto:window=70000", "ina.window is 70000, needs a whole number from 0 to 65536"),
        ("auto:priority=256", "ina.priority is 256, needs a whole number from 0 to 255"),
        ("auto:priority=high", "ina.priority is 'high'"),
        ("auto:ttl_s=0", "ina.ttl_s is 0, needs a number of seconds > 0"),
        ("auto:ttl_s=nan", "ina.ttl_s is nan"),
        ("auto:memory", "write a mode, then each field once, as in require:memory=2048"),
        ("auto:memory=1,memory=2", "then each field once"),
        ("auto:mode=off", "then each field once"),
        ("auto:memry=1", "ina has no field 'memry'; did you mean 'memory'"),
        ("auto:protocol=atp,index=dedicated", "switchml alone uses dedicated"),
        ("auto:protocol=switchml,index=shared_hash", "switchml alone uses dedicated"),
    ],
)
def test_requests_that_cannot_be_name_field_and_value(text: str, words: str) -> None:
    with pytest.raises(InputError, match=words):
        InaRequest.parse(text)


@pytest.mark.parametrize("given", [2048, ["require"], True])
def test_neither_a_text_nor_fields(given: object) -> None:
    with pytest.raises(InputError, match="needs a mode or fields, such as require:memory=2048"):
        InaRequest.of(given)  # type: ignore[arg-type]


def test_the_words_are_those_of_the_protocol_and_of_job_files() -> None:
    hints, asked = typing.get_type_hints(Ina), typing.get_type_hints(InaRequest)
    assert hints == asked
    assert [f.name for f in dataclasses.fields(Ina)] == [f.name for f in dataclasses.fields(InaRequest)]
    assert Ina(**fields_of("off")) == Ina(mode="off")
    words = {name: set(typing.get_args(typing.get_args(asked[name])[0])) for name in ("protocol", "index")}
    assert words == {"protocol": set(CHOICES["protocol"]), "index": set(CHOICES["index"]) - {"auto"}}


def test_a_log_without_a_mode_means_auto() -> None:
    assert spec_from_json({"id": "a"}).ina is AUTO


def test_a_batch_says_whether_any_job_requires_aggregation() -> None:
    asking = [JobSpec(id="a"), JobSpec(id="b", ina=InaRequest("off"))]
    assert not JobBatch.of(asking).any_requires
    batch = JobBatch.of([*asking, JobSpec(id="c", ina=InaRequest("require"))])
    assert batch.any_requires
    assert batch[:1].any_requires
