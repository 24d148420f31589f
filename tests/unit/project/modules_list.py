"""Every module with the first sentence about it, its classes and the other folders that import it, as the tree has them
now:

python -m tests.unit.project.modules_list
"""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

from tests.support.sources import PACKAGES, ROOT, Module, modules


def first_sentence(docstring: str) -> str:
    return re.split(r"(?<=[.])\s(?=[A-Z`])", docstring, maxsplit=1)[0]


def classes(module: Module) -> list[str]:
    return [each.name for each in module.tree.body if isinstance(each, ast.ClassDef)]


def dotted(path: Path) -> str:
    """The name under which a file is imported."""
    top = next((ROOT / each).parent for each in PACKAGES if path.is_relative_to(ROOT / each))
    return ".".join(path.relative_to(top).with_suffix("").parts).removesuffix(".__init__")


def imports(each: Module) -> Iterator[str]:
    """Modules by name, those of functions and of lazy tables included."""
    for node in each.nodes:
        match node:
            case ast.Import(names=names):
                yield from (name.name for name in names)
            case ast.ImportFrom(module=str(room), names=names):
                yield room
                yield from (f"{room}.{name.name}" for name in names)
            case ast.Constant(value=str() as text):
                yield text


def lines() -> Iterator[str]:
    folders: dict[str, set[str]] = defaultdict(set)
    for each in modules():
        for name in imports(each):
            folders[name].add(str(each.path.parent.relative_to(ROOT)))
    for each in modules():
        line = f"{each.name}: {first_sentence(each.docstring)}"
        if found := classes(each):
            line += f" [{', '.join(found)}]"
        if others := folders[dotted(each.path)] - {str(each.path.parent.relative_to(ROOT))}:
            line += f" <- {', '.join(sorted(others))}"
        yield line


if __name__ == "__main__":
    print(*lines(), sep="\n")
