"""Decides which files of this host a reader may open as those of a broker that it reaches over a socket.

A broker reports the paths of its store and log, and anybody can pretend to be a broker. Two conditions must
hold before a file is opened:

* The broker knows the directory. At start it writes a secret there (``mqspark.nonce``). A reader sends a
  challenge, and the broker answers with an HMAC of the challenge and of the paths it reports. The reader
  computes the same with the secret that it finds in the directory. The secret itself is never sent.
* The operator of the reader allows the directory. By default it has to belong to the reading user or to root,
  and nobody else may write there. Otherwise it has to lie in one of the listed directories, whoever owns it.
  Symbolic links cannot lead out of it.

Must not know what is in the files.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import stat
from pathlib import Path

from mqspark.errors import StoreError
from mqspark.store.disk.files import open_regular

MAX_CHALLENGE = 128


class Untrusted(StoreError):
    """A directory or file that the reader's operator does not allow."""


def prove(nonce: str, challenge: str, store_path: str, commit_log_path: str) -> str:
    """The answer to a challenge, computed with the nonce; "" where there is no nonce."""
    if not nonce:
        return ""
    said = "\0".join(("mqspark store", challenge, store_path, commit_log_path))
    return hmac.new(nonce.encode(), said.encode(), hashlib.sha256).hexdigest()


class Trust:
    """What one reader may open. ``directories``: allowed directories with their content; None: check by
    owner."""

    def __init__(self, directories: tuple[str, ...] | None = None) -> None:
        self._allowed = None if directories is None else [os.path.realpath(each) for each in directories]
        self._owners = {0, os.geteuid()}
        self._roots: set[str] = set()
        self._known: dict[str, str] = {}
        """Checked directories and their real paths."""

    def add(self, directory: Path | str) -> None:
        """Allow a directory of a store or of its log. Raises Untrusted, OSError."""
        if not os.path.isabs(directory):
            raise Untrusted(f"{directory} is not an absolute path")
        real = os.path.realpath(directory)
        if self._allowed is None:
            self._check_owner(real, os.stat(real))
        elif not any(_is_inside(real, each) for each in self._allowed):
            raise Untrusted(f"{real} is in none of the allowed directories")
        self._roots.add(real)
        self._known[os.fspath(directory)] = real

    def open(self, path: Path) -> int:
        """A descriptor for reading. Raises Untrusted, OSError."""
        directory = os.fspath(path.parent)
        real = self._known.get(directory)
        if real is None:
            real = os.path.realpath(directory)
            if not any(_is_inside(real, root) for root in self._roots):
                raise Untrusted(f"{directory} leads out of the store, to {real}")
            self._check_owner(real, os.stat(real))
            self._known[directory] = real
        # Open by the checked real path: a link in the given path may lead elsewhere by now.
        fd = open_regular(os.path.join(real, path.name), os.O_RDONLY)
        try:
            self._check_owner(os.fspath(path), os.fstat(fd))
        except BaseException:
            os.close(fd)
            raise
        return fd

    def _check_owner(self, path: str, found: os.stat_result) -> None:
        if self._allowed is not None:
            return
        if found.st_uid not in self._owners:
            raise Untrusted(f"{path} belongs to user {found.st_uid}, not to the reading user")
        if found.st_mode & stat.S_IWOTH:
            raise Untrusted(f"{path} is writable by everybody")


def _is_inside(path: str, directory: str) -> bool:
    return path == directory or path.startswith(directory.rstrip("/") + "/")
