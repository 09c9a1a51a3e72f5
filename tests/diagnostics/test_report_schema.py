"""The schema of a report's JSON: it describes what is written, no more and no less."""

from __future__ import annotations

import json
from dataclasses import fields
from typing import Any

import pytest
from torch_geometric.nn import GCN

import virgo
from virgo.diagnostics.layer_statistics import Layer
from virgo.diagnostics.verdict import Finding


@pytest.fixture(scope="module")
def written() -> Any:
    data = virgo.data.citation_like(num_nodes=100, num_features=20, words_per_node=5, seed=0)
    deep = GCN(20, 8, num_layers=12, out_channels=7)
    plan = virgo.plan(deep, data, "xavier")
    report = virgo.check(deep, data, plan, advice=False)
    assert report.findings, "a report without findings would leave a part of the schema untried"
    return json.loads(report.to_json())


def test_every_field_is_in_the_schema_and_nothing_else(written: Any) -> None:
    schema = virgo.Report.json_schema()
    parts = schema["$defs"]
    assert set(schema["properties"]) == set(schema["required"]) == set(written)
    for part, example in (
        ("measurement", written["measurement"]),
        ("layer", written["measurement"]["layers"][0]),
        ("finding", written["findings"][0]),
    ):
        assert set(parts[part]["properties"]) == set(parts[part]["required"]) == set(example)
    assert set(parts["layer"]["properties"]) == {field.name for field in fields(Layer)}
    assert set(parts["finding"]["properties"]) == {field.name for field in fields(Finding)}


def test_a_report_is_valid_and_a_changed_one_is_not(written: Any) -> None:
    jsonschema = pytest.importorskip("jsonschema", reason="jsonschema is not installed")
    schema = virgo.Report.json_schema()
    jsonschema.Draft202012Validator.check_schema(schema)
    validator = jsonschema.Draft202012Validator(schema)
    assert list(validator.iter_errors(written)) == []
    for change in ({"level": "fine"}, {"predicted_forward": ["NaN"]}, {"extra": 1}):
        assert list(validator.iter_errors({**written, **change})), change
    assert list(validator.iter_errors({k: v for k, v in written.items() if k != "ok"}))
