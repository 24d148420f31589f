"""What no code of ours does, whoever wrote the bytes that it reads: one look at the syntax tree of every module."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator

import pytest

from mqspark.auth.authadmin import UserInfo
from tests.support.sources import modules

IMPORTS = {
    "pickle", "cPickle", "_pickle", "cloudpickle", "dill", "marshal", "shelve", "yaml", "xmlrpc", "pty",
    "commands", "popen2", "imp", "code", "codeop",
}  # fmt: skip
"""Modules that make objects, or run what they read."""

CALLS = {"eval", "exec", "compile", "__import__", "execfile"}
METHODS = {
    ("os", "system"), ("os", "popen"), ("yaml", "load"), ("pickle", "loads"), ("pickle", "load"),
    ("pd", "read_pickle"), ("np", "frompickle"), ("builtins", "eval"), ("builtins", "exec"),
    ("asyncio", "create_subprocess_shell"), ("subprocess", "getoutput"), ("subprocess", "getstatusoutput"),
}  # fmt: skip

ALLOWED = {
    (
        "datasource/pyspark_pymq/work/isolated.py",
        "pickle",
    ): "parent and child of one program, over their own pipes",
    (
        "datasource/pyspark_pymq/work/isolated.py",
        "pickle.loads",
    ): "the same: no byte of a message is one of theirs",
    (
        "datasource/pyspark_pymq/writing/sink.py",
        "pickle",
    ): "the class of an exception, which Spark passes on as it is",
}
"""Exceptions by place and word, with their reasons."""


def found(nodes: Iterable[ast.AST]) -> Iterator[tuple[int, str]]:
    """Line and word of everything that the rule is about."""
    for node in nodes:
        if isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name.partition(".")[0] in IMPORTS:
                    yield node.lineno, alias.name
        elif isinstance(node, ast.ImportFrom) and not node.level:
            if (node.module or "").partition(".")[0] in IMPORTS:
                yield node.lineno, str(node.module)
        elif isinstance(node, ast.Assert):
            yield node.lineno, "assert"
        elif isinstance(node, ast.Call):
            yield from _calls(node)


def _calls(node: ast.Call) -> Iterator[tuple[int, str]]:
    function = node.func
    if isinstance(function, ast.Name) and function.id in CALLS:
        yield node.lineno, function.id
    match function:
        case ast.Attribute(value=ast.Name(id=owner), attr=name) if (owner, name) in METHODS:
            yield node.lineno, f"{owner}.{name}"
    for keyword in node.keywords:
        is_false = isinstance(keyword.value, ast.Constant) and not keyword.value.value
        if keyword.arg == "shell" and not is_false:
            yield node.lineno, "shell"
        if keyword.arg == "allow_pickle" and not is_false:
            yield node.lineno, "allow_pickle"


def is_allowed(name: str, word: str) -> bool:
    return any(name.startswith(place) and word == allowed for place, allowed in ALLOWED)


def test_no_module_runs_or_unpickles_what_it_reads_or_relies_on_an_assertion() -> None:
    words = [
        f"{each.name}:{line}: {word}"
        for each in modules()
        for line, word in found(each.nodes)
        if not is_allowed(each.name, word)
    ]
    assert words == []


def test_every_exception_is_one() -> None:
    for place, word in ALLOWED:
        some = [each for each in modules() if each.name.startswith(place)]
        assert any(word == found_word for each in some for _, found_word in found(each.nodes)), (place, word)


@pytest.mark.parametrize(
    "code",
    [
        "import pickle",
        "from yaml import load",
        "def f(x):\n    assert x",
        "eval('1')",
        "import os\nos.system('ls')",
        "import subprocess\nsubprocess.run('ls', shell=True)",
        "subprocess.run('ls', shell=flag)",
        "np.load(f, allow_pickle=True)",
    ],
)
def test_what_the_rule_is_about_is_seen(code: str) -> None:
    assert list(found(ast.walk(ast.parse(code))))


@pytest.mark.parametrize(
    "code", ["import json", "subprocess.run(['ls'], shell=False)", "re.compile('x')", "x.eval()"]
)
def test_what_it_is_not_about_is_not(code: str) -> None:
    assert not list(found(ast.walk(ast.parse(code))))


SECRET = re.compile(r"secret|passw|token(?!s|ize)", re.I)
NOT_SECRET = {
    ("mqspark/auth/users.py", "secret"): "sealed, and its owner shows only its fields in the file of users",
    ("mqspark/auth/authadmin.py", "password"): "its class has a repr of its own",
    ("server/mqspark_server/actions/useractions.py", "password"): "its class has a repr of its own",
    ("server/mqspark_server/node.py", "loopback_token"): "a protocol, of what is no data class",
}


def shown_secrets(nodes: Iterable[ast.AST]) -> Iterator[tuple[int, str]]:
    """Fields of classes that are named like secrets, are text, and are in the ``repr`` of their class."""
    for made in (node for node in nodes if isinstance(node, ast.ClassDef)):
        for node in made.body:
            if not isinstance(node, ast.AnnAssign) or not isinstance(node.target, ast.Name):
                continue
            is_text = {"str", "bytes", "Text", "Line"} & {
                each.id for each in ast.walk(node.annotation) if isinstance(each, ast.Name)
            }
            hidden = isinstance(node.value, ast.Call) and any(
                isinstance(keyword.value, ast.Constant)
                and (keyword.arg, keyword.value.value) in (("repr", False), ("secret", True))
                for keyword in node.value.keywords
            )
            if SECRET.search(node.target.id) and is_text and not hidden:
                yield node.lineno, node.target.id


def test_no_secret_is_in_a_repr() -> None:
    """Errors, logs of applications and debuggers show objects."""
    found = {(each.name, word): line for each in modules() for line, word in shown_secrets(each.nodes)}
    assert found.keys() == NOT_SECRET.keys()


def test_secrets_in_a_repr_are_seen() -> None:
    code = (
        "class A:\n    password: str\n    key: str\n    token: str | None = field(default=None, repr=False)"
    )
    assert list(shown_secrets(ast.walk(ast.parse(code)))) == [(2, "password")]
    assert "hidden" not in repr(UserInfo("a", "hidden"))
