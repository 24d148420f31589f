"""The blocking classes of ``mqspark``, made of the asyncio classes: one call forwards each public method.

python -m tests.unit.client.blocking_classes

What is more than a call that is forwarded is written by hand, in the facade that a class here derives from.
"""

from __future__ import annotations

import ast
import functools
import inspect
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from mqspark import aio
from mqspark.client.consumer.consumer import QueueOwner
from mqspark.client.consumer.subscriber import Listening, Subscriber
from mqspark.client.life.lifecycle import Lifecycle

SYNC = Path(__file__).parents[3] / "mqspark" / "client" / "sync"
MADE = SYNC / "generated.py"

FOR_ALL = {*vars(Lifecycle), *vars(QueueOwner)}
INNER = {
    "Producer": {"begin", "begin_batch", "can_begin", "packed"},
    "TransactionProducer": {"local_transaction", "prepare", "end"},
    "PushConsumer": {
        *(
            "is_ordered",
            "auto_commit",
            "running_info",
            "consumed_offsets",
            "consumes",
            "consume_now",
            "reset",
        ),
    },
    "LitePullConsumer": {"at_once", "offer", "offered", "given", "hand", "check_iterable"},
}
"""What the asyncio classes have for the facades and for brokers, not for programs."""

LISTENER = (
    "A listener that is a function runs in threads of its own, a coroutine function on the background loop."
)


class Blocking(NamedTuple):
    """A blocking class: its name, what it forwards to, and its bases."""

    name: str
    aio: type
    bases: str
    about: str = ""
    own: str = "own=NAMES"
    """Arguments that have errors of their own, as ``checked`` takes them."""


CLASSES = (
    Blocking("AdminClient", aio.AdminClient, "Facade", own=""),
    Blocking("Producer", aio.Producer, "SendingFacade", "Safe to use from many threads."),
    Blocking(
        "TransactionProducer",
        aio.TransactionProducer,
        "TransactionFacade, Producer",
        """Safe to use from many threads.

        An ``execute`` that is a function runs in the thread that calls ``send_in_transaction``, where its connections
        to databases are; a ``check`` that is a function in threads of its own; coroutine functions on the background
        loop.
        """,
    ),
    Blocking("_Consumer", Subscriber, "Facade"),
    Blocking("_Listening", Listening, "_Consumer"),
    Blocking(
        "PushConsumer", aio.PushConsumer, "_Listening", f"Safe to use from many threads.\n\n{LISTENER}\n"
    ),
    Blocking("PopConsumer", aio.PopConsumer, "_Listening", f"Safe to use from many threads.\n\n{LISTENER}\n"),
    Blocking(
        "LitePullConsumer",
        aio.LitePullConsumer,
        "PollingFacade, _Consumer",
        "For one thread at a time.\n\nA listener of ``on_queues_changed`` is called on the background loop.\n",
    ),
)

HEAD = '''"""The blocking classes, which forward to the asyncio classes. Made by tests/unit/client/blocking_classes.py.

What is more than a call that is forwarded is in ``producers``, ``consumers`` and ``facade``.
"""

from __future__ import annotations

'''


def made() -> str:
    """The module."""
    classes = "\n\n".join(class_of(each) for each in CLASSES)
    return formatted(HEAD + "\n".join(imports(classes)) + "\n\n" + classes)


def formatted(source: str) -> str:
    for arguments in (["check", "--quiet", "--fix", "--select", "I"], ["format", "--quiet"]):
        command = [sys.executable, "-m", "ruff", *arguments, "--stdin-filename", str(MADE), "-"]
        source = subprocess.run(command, input=source, capture_output=True, text=True, check=True).stdout
    return source


def imports(classes: str) -> Iterator[str]:
    """The imports of what the classes name, as the asyncio modules have them."""
    names = {node.id for node in ast.walk(ast.parse(classes)) if isinstance(node, ast.Name)}
    names |= {name for each in CLASSES for name in each.bases.split(", ")}
    known: dict[str, str] = {
        "checked": "from mqspark.base.valuetypes import checked",
        "NAMES": "from mqspark.client.remoting.keywords import NAMES",
    }
    known |= {
        name: f"from mqspark.client.sync.{module} import {name}" for name, (module, _) in facades().items()
    }
    for each in CLASSES:
        module = inspect.getmodule(each.aio)
        assert module is not None
        package, _, stem = module.__name__.rpartition(".")
        known[stem] = f"from {package} import {stem}"
        for node in ast.walk(ast.parse(inspect.getsource(module))):
            match node:
                case ast.ImportFrom(module=str(source)):
                    known |= {one.name: f"from {source} import {one.name}" for one in node.names}
                case ast.ClassDef(name=name) if hasattr(module, name):
                    known[name] = f"from {module.__name__} import {name}"
                case ast.Assign(targets=[ast.Name(id=name)]) if hasattr(module, name):
                    known[name] = f"from {module.__name__} import {name}"
    return (known[name] for name in sorted(names & known.keys() - {each.name for each in CLASSES}))


@functools.cache
def facades() -> dict[str, tuple[str, set[str]]]:
    """Class -> the module it is written in, by hand, and what it defines. Read, because an import would need what is
    made here."""
    return {
        node.name: (path.stem, {each.name for each in node.body if isinstance(each, ast.FunctionDef)})
        for path in (SYNC / "facade.py", SYNC / "producers.py", SYNC / "consumers.py")
        for node in ast.parse(path.read_text(encoding="utf-8")).body
        if isinstance(node, ast.ClassDef) and node.name.endswith("Facade")
    }


def by_hand(bases: str) -> set[str]:
    """What a class has of facades."""
    return {name for base in bases.split(", ") if base in facades() for name in facades()[base][1]}


def class_of(blocking: Blocking) -> str:
    aio_class = blocking.aio
    module = aio_class.__module__.rpartition(".")[2]
    (tree,) = ast.parse(textwrap.dedent(inspect.getsource(aio_class))).body
    assert isinstance(tree, ast.ClassDef)
    inner = FOR_ALL | INNER.get(blocking.name, set()) | by_hand(blocking.bases) | facades()["Facade"][1]
    if blocking.name.startswith("_"):
        about = f"What all blocking consumers have of ``{aio_class.__name__}``."
    else:
        about = f"The blocking ``mqspark.aio.{blocking.name}``; takes the same arguments. {blocking.about}".rstrip(
            " "
        )
    parts = [f"@checked({blocking.own})\nclass {blocking.name}({blocking.bases}):\n    {docstring(about)}\n"]
    parts.append(f"    _aio: {module}.{aio_class.__name__}")
    for node, after in zip(tree.body, [*tree.body[1:], None], strict=True):
        match node:
            case ast.FunctionDef(name="__init__") if not blocking.name.startswith("_"):
                call = f"{module}.{aio_class.__name__}({', '.join(arguments(node))})"
                parts.append(method(node, f"self._adopt({call})"))
            case ast.FunctionDef(name="stop") | ast.AsyncFunctionDef(name="stop"):
                if len(node.args.args) > 1:
                    parts.append(
                        method(node, f"self._end({', '.join(['self._aio.stop', *arguments(node)])})")
                    )
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                if not name.startswith("_") and name not in inner:
                    parts.append(method(node, body(node)))
            case ast.AnnAssign(target=ast.Name(id=name)) if not name.startswith("_"):
                assert isinstance(after, ast.Expr)
                annotation, text = ast.unparse(node.annotation), ast.literal_eval(after.value)
                parts.append(
                    f"    @property\n    def {name}(self) -> {annotation}:\n        {docstring(text)}\n"
                    f"        return self._aio.{name}\n"
                )
    return "\n\n".join(parts)


def body(node: ast.FunctionDef | ast.AsyncFunctionDef) -> str:
    if any(ast.unparse(each) == "property" for each in node.decorator_list):
        return f"return self._aio.{node.name}"
    way = "self._call" if isinstance(node, ast.AsyncFunctionDef) else "self._do"
    call = f"{way}({', '.join([f'self._aio.{node.name}', *arguments(node)])})"
    return call if node.returns is not None and ast.unparse(node.returns) == "None" else f"return {call}"


def arguments(node: ast.FunctionDef | ast.AsyncFunctionDef) -> Iterator[str]:
    """The parameters, handed on."""
    yield from (each.arg for each in node.args.args[1:])
    if node.args.vararg is not None:
        yield f"*{node.args.vararg.arg}"
    yield from (f"{each.arg}={each.arg}" for each in node.args.kwonlyargs)
    if node.args.kwarg is not None:
        yield f"**{node.args.kwarg.arg}"


def method(node: ast.FunctionDef | ast.AsyncFunctionDef, statement: str) -> str:
    decorators = "".join(f"@{ast.unparse(each)}\n" for each in node.decorator_list)
    assert node.returns is not None
    head = f"def {node.name}({ast.unparse(node.args)}) -> {ast.unparse(node.returns)}:"
    text = ast.get_docstring(node)
    assert text, f"{node.name} is for programs and says nothing of itself"
    return textwrap.indent(
        f"{decorators}{head}\n    {docstring(text)}\n    {statement}\n",
        "    ",
        lambda line: bool(line.strip()),
    )


def docstring(text: str) -> str:
    """As the literal, for programs without an event loop."""
    lines = inspect.cleandoc(text.replace("await ", "").replace("async with", "with")).split("\n")
    end = "\n    " if len(lines) > 1 else ""
    return '"""' + "\n".join([lines[0], *(f"    {line}" if line else "" for line in lines[1:])]) + end + '"""'


if __name__ == "__main__":
    MADE.write_text(made(), encoding="utf-8")
