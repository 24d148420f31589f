"""The extensions shown in docs/extensions.md, which the tests load: the page's code is run here as it stands."""

from __future__ import annotations

import hmac
import re
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mqspark import extensions
from tests.support.madepages import DOCS

PAGE = (DOCS / "extensions.md").read_text(encoding="utf-8")

globals().update({name: getattr(extensions, name) for name in dir(extensions) if name[0].isupper()})
globals().update({"hmac": hmac, "Counter": Counter})
for _block in re.findall(r"^```python\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE):
    exec(compile(_block, "docs/extensions.md", "exec"))  # noqa: S102 - our own page

if TYPE_CHECKING:

    def __getattr__(name: str) -> Any: ...


def install_examples(directory: Path, more: str = "") -> None:
    """Install the examples as a package into a directory, which must be on the path. ``more``: further entry points."""
    info = directory / "shop-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: shop\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(
        f"[mqspark.extensions]\nkeys-required = {__name__}:KeysRequired\ndeliveries = {__name__}:Deliveries\n"
        f"last-body = {__name__}:LastBody\nno-deletions = {__name__}:NoDeletions\ntokens = {__name__}:Tokens\n{more}"
    )
