"""The modules of the packages and their syntax trees, for rules: a process parses and walks each once."""

from __future__ import annotations

import ast
import functools
import gc
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGES = ("mqspark", "server/mqspark_server", "datasource/pyspark_pymq", "jobs/mqspark_jobs")
STORE = "mqspark/store"


@dataclass(frozen=True, slots=True)
class Module:
    path: Path
    name: str
    """Its path below the root."""
    tree: ast.Module
    nodes: tuple[ast.AST, ...]
    """All of the tree, as ``ast.walk`` finds them, which takes as long as parsing."""

    @property
    def docstring(self) -> str:
        """In one line."""
        return " ".join((ast.get_docstring(self.tree) or "").split())


@functools.cache
def module(path: Path) -> Module:
    tree = ast.parse(path.read_text())
    return Module(path, str(path.relative_to(ROOT)), tree, tuple(ast.walk(tree)))


@functools.cache
def modules(*folders: str) -> tuple[Module, ...]:
    """Those of the folders, or of all packages."""
    gc.disable()  # what is made here lives on, a million objects; a collection would look at all of them
    try:
        return tuple(
            module(path) for folder in folders or PACKAGES for path in sorted((ROOT / folder).rglob("*.py"))
        )
    finally:
        gc.freeze()
        gc.enable()
