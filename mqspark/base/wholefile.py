"""Files that are written whole or not at all, and outlive a power cut once they are. A store has a layer of its own.

Must not know what is in them.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path


def replace_file(path: Path, data: bytes, *, mode: int = 0o666, backup: Path | None = None) -> None:
    """``backup``: where the file goes that is there. When several replace a file at once, it is that of one of them.
    Raises OSError."""
    temporary = path.with_name(f"{path.name}.{os.urandom(4).hex()}.tmp")
    try:
        with open(temporary, "xb", opener=lambda name, flags: os.open(name, flags, mode)) as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        if backup is not None:
            with contextlib.suppress(FileNotFoundError):
                os.replace(path, backup)
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    sync(path.parent)


def sync(*paths: Path) -> None:
    """Files, and directories, in which names are kept. Raises OSError."""
    for path in paths:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)
