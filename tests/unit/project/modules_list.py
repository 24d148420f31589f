"""Every module with the first sentence about it and its classes, as the tree has them now:

python -m tests.unit.project.modules_list
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from tests.support.sources import Module, modules


def first_sentence(docstring: str) -> str:
    return re.split(r"(?<=[.])\s(?=[A-Z`])", docstring, maxsplit=1)[0]


def classes(module: Module) -> list[str]:
    return [each.name for each in module.tree.body if isinstance(each, ast.ClassDef)]


def lines() -> Iterator[str]:
    for each in modules():
        found = classes(each)
        yield f"{each.name}: {first_sentence(each.docstring)}" + (f" [{', '.join(found)}]" if found else "")


if __name__ == "__main__":
    print(*lines(), sep="\n")
