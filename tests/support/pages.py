"""Code blocks of the repository's pages, for the tests that run them exactly as written."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
ADDRESS = "127.0.0.1:9876"
"""The name server in the examples. Tests replace only this text and the next one, because they use free ports."""
HTTP_ADDRESS = "http://127.0.0.1:10914"
GRPC_ADDRESS = "127.0.0.1:8081"
PAGES = [
    path
    for path in sorted([*ROOT.glob("*.md"), *ROOT.glob("*/*.md"), *ROOT.glob("tests/*/README.md")])
    # The classes of the second are parts of modules: tests/support/extension_examples.py runs them.
    if path.name not in ("CHANGELOG.md", "extensions.md")
]

SHOWN = {
    "make setup": "make test does it first",
    ".venv/bin/python -m pytest": "make test runs the same tests",
    "make demo": "tests/spark/test_notebooks.py runs the demo",
    "pip install .": "tests/integration/project/test_installs.py installs each extra",
    "mqspark dev\n": "server/README.md has a block with it that ends",
    "mqspark namesrv run": "tests/integration/commands/test_cli.py starts both, on free ports",
    "make bench": "tests/unit/project/test_benchmarks.py",
}
"""First words of a shell block that is not run by a test → what tests it instead."""


class Block(NamedTuple):
    page: Path
    number: int
    language: str
    text: str

    @property
    def name(self) -> str:
        return f"{self.page.relative_to(ROOT)}-{self.number}"

    @property
    def needs_spark(self) -> bool:
        words = ("SparkSession", "WorkQueue(", "mqspark job run")
        return self.language == "sql" or any(word in self.text for word in words)

    @property
    def is_shown_only(self) -> bool:
        return self.language == "text" or any(self.text.startswith(first) for first in SHOWN)


def blocks(*languages: str) -> list[Block]:
    """All blocks, or those of some languages; a block without a language has the language ""."""
    found = [
        Block(page, number, language, text)
        for page in PAGES
        for number, (language, text) in enumerate(
            re.findall(r"^```(\w*)\n(.*?)^```$", page.read_text(), re.DOTALL | re.MULTILINE)
        )
    ]
    return [each for each in found if not languages or each.language in languages]
