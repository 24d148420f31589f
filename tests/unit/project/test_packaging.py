"""What pyproject.toml declares, and what the code imports."""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from pathlib import Path

from tests.support.sources import PACKAGES, ROOT, modules

FOUND_BY_FSSPEC = {"s3fs", "gcsfs", "adlfs"}
ASKED_FOR_BY_PYSPARK = {"pandas"}
"""Not imported here: tests/integration/project/test_installs.py asks PySpark."""
PART_OF = {
    "delta": "delta_spark",
    "google": "protobuf",
    "openlineage": "openlineage_python",
    "opentelemetry": "opentelemetry_api",
    "py4j": "pyspark",
}


def imported() -> set[str]:
    found = set()
    for each in modules():
        for node in each.nodes:
            if isinstance(node, ast.Import):
                found.update(alias.name.partition(".")[0] for alias in node.names)
            elif isinstance(node, ast.ImportFrom) and not node.level and node.module:
                found.add(node.module.partition(".")[0])
    # "_typeshed" is the standard library's, for type checkers alone.
    return found - sys.stdlib_module_names - {"_typeshed"} - {Path(package).name for package in PACKAGES}


def test_what_is_declared_is_what_is_imported() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = {name: lines for name, lines in project["optional-dependencies"].items() if name != "dev"}
    lines = [*project["dependencies"], *(line for extra in extras.values() for line in extra)]
    names = {re.split(r"[^\w.-]", line)[0].replace("-", "_") for line in lines}
    assert names - {"mqspark"} - FOUND_BY_FSSPEC - ASKED_FOR_BY_PYSPARK == {
        PART_OF.get(name, name) for name in imported()
    }
