"""Pages of docs/ with a part that a module makes: what stands between its marks. The rest is written by hand."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

DOCS = Path(__file__).parents[2] / "docs"
END = "<!-- end -->"


class MadePage(NamedTuple):
    path: Path
    module: str
    """Run as a program, it writes the part."""

    def _split(self) -> tuple[str, str, str]:
        text = self.path.read_text(encoding="utf-8")
        head, mark, rest = text.partition(f"<!-- made by {self.module.replace('.', '/')}.py -->")
        made, end, tail = rest.partition(END)
        if not end:
            raise SystemExit(
                f"{self.path} has no marks of {self.module}; it writes the page itself, without >"
            )
        return head + mark, made.strip(), end + tail

    def made(self) -> str:
        return self._split()[1]

    def write(self, made: str) -> None:
        head, _, tail = self._split()
        self.path.write_text(f"{head}\n\n{made.strip()}\n\n{tail}", encoding="utf-8")

    def check(self, made: str) -> None:
        assert self.made() == made.strip(), f"run: python -m {self.module}"
