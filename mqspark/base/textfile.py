"""Text files that people edit: UTF-8, with or without the byte order mark that editors write, of a bounded size.

Must not know what is in them.
"""

from __future__ import annotations

import codecs
from os import PathLike

from mqspark.errors import ConfigError


def read_text(path: str | PathLike[str], most: int, key: str | None = None) -> str:
    """The text of a file of ``most`` bytes at most. Raises ConfigError for the setting ``key``."""
    try:
        with open(path, "rb") as file:
            raw = file.read(most + 1)
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}", key=key) from None
    return text_of(raw, str(path), most, key)


def text_of(raw: bytes, source: str, most: int, key: str | None = None) -> str:
    """The text of a file that was read up to a byte beyond ``most``. Raises ConfigError."""
    if len(raw) > most:
        raise ConfigError(f"{source} is larger than {most} bytes", key=key)
    try:
        return raw.decode(encoding_of(raw, source, key))
    except UnicodeDecodeError as error:
        raise ConfigError(f"{source} is not UTF-8 text (byte {error.start})", key=key) from None


def encoding_of(raw: bytes, source: str, key: str | None = None) -> str:
    """In which the file is written if it is UTF-8. Raises ConfigError for UTF-16."""
    if raw.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        raise ConfigError(f"{source} is UTF-16 text: save it as UTF-8", key=key)
    return "utf-8-sig" if raw.startswith(codecs.BOM_UTF8) else "utf-8"
