"""The Helm chart without Helm: its values, their schema and what templates use of them. With Helm:
tests/integration/project/test_helm_chart.py."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import jsonschema  # type: ignore[import-untyped]
import pytest
import yaml

CHART = Path("conf/helm/mqspark")
TEMPLATES = sorted((CHART / "templates").iterdir())
VALUES: dict[str, Any] = yaml.safe_load((CHART / "values.yaml").read_text())
SCHEMA = json.loads((CHART / "values.schema.json").read_text())


def test_the_chart_is_of_this_version() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    found = re.search(r'^version = "([^"]+)"', Path("pyproject.toml").read_text(), re.MULTILINE)
    assert found is not None
    assert chart["appVersion"] == chart["version"] == found[1]


def test_the_values_are_as_the_schema_says() -> None:
    jsonschema.validate(VALUES, SCHEMA)
    assert VALUES.keys() == SCHEMA["properties"].keys() - {"global"}
    for name, each in VALUES.items():
        if isinstance(each, dict):
            assert each.keys() == SCHEMA["properties"][name]["properties"].keys(), name


@pytest.mark.parametrize(
    "wrong",
    [
        {"brokers": {}},
        {"broker": {"copys": 2}},
        {"broker": {"sets": 0}},
        {"broker": {"preStopSeconds": 6}},
        {"broker": {"settings": {"key": ["list"]}}},
        {"controller": {"etcdEndpoints": ["etcd:2379"]}},
        {"namesrv": {"storage": {"size": "much"}}},
    ],
)
def test_the_schema_refuses(wrong: dict[str, Any]) -> None:
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(wrong, SCHEMA)


def test_what_templates_use_is_a_value() -> None:
    used = {found for path in TEMPLATES for found in re.findall(r"\.Values\.([A-Za-z.]+)", path.read_text())}
    assert used
    for name in used:
        found: Any = VALUES
        for part in name.rstrip(".").split("."):
            assert part in found, name
            found = found[part]


def test_every_part_of_the_templates_is_closed() -> None:
    for path in TEMPLATES:
        text = path.read_text()
        opened = len(re.findall(r"\{\{-?\s*(?:if|range|with|define)\b", text))
        assert opened == len(re.findall(r"\{\{-?\s*end\b", text)), path.name
