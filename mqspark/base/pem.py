"""What a PEM file must have, so that an error names the file and says what it lacks: OpenSSL says only that it failed.

Must not know what the file is for.
"""

from __future__ import annotations

import codecs
from pathlib import Path

MAX_PEM_BYTES = 16 << 20
CERTIFICATE, PRIVATE_KEY = "certificate", "private key"


def check_pem(path: str | Path, *contents: str) -> None:
    """Raises ValueError for a file without one of ``contents``, OSError for one that cannot be read."""
    with open(path, "rb") as file:
        text = file.read(MAX_PEM_BYTES)
    if text.startswith(codecs.BOM_UTF8):
        raise ValueError("it begins with a byte order mark, which OpenSSL does not pass over")
    for each in contents:
        if each.upper().encode() + b"-----" not in text:
            raise ValueError(f"there is no {each} (PEM) in it")
