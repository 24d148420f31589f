"""Runs the command line in this process and captures its output."""

from __future__ import annotations

import io
import json
import sys
from typing import Any, NamedTuple
from unittest.mock import patch

from mqspark_server.cli import main


class Outcome(NamedTuple):
    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)

    @property
    def lines(self) -> list[str]:
        return self.out.splitlines()


class _Stream(io.TextIOWrapper):
    """A standard stream that keeps its bytes."""

    def __init__(self, content: bytes = b"") -> None:
        super().__init__(io.BytesIO(content), encoding="utf-8", write_through=True)

    def text(self) -> str:
        self.flush()
        self.seek(0)
        return self.read()


def mqspark(*arguments: str, stdin: bytes = b"") -> Outcome:
    """``mqspark ARGUMENTS`` without a terminal."""
    out, err, code = _Stream(), _Stream(), 0
    with (
        patch.object(sys, "stdin", _Stream(stdin)),
        patch.object(sys, "stdout", out),
        patch.object(sys, "stderr", err),
    ):
        try:
            main(arguments)
        except SystemExit as stop:
            code = stop.code if isinstance(stop.code, int) else 1
    return Outcome(code, out.text(), err.text())
