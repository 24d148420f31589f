"""Named clusters: their addresses and logins, in one TOML file of the user.

The file is ``mqspark/contexts.toml`` under XDG_CONFIG_HOME (by default ``~/.config``), or MQSPARK_CONTEXTS. It holds no
secret: ``credentials_file`` names a file that does.
"""

from __future__ import annotations

import fcntl
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from mqspark.base.config import did_you_mean, parse_addresses
from mqspark.base.textfile import text_of
from mqspark.base.wholefile import replace_file
from mqspark.errors import ConfigError

MAX_CONTEXTS_BYTES = 1 << 20
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")


class ClusterContext(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True, frozen=True):
    """How commands reach one cluster."""

    nameserver: str
    cluster: str | None = None
    """The cluster that commands use when the name servers know several."""
    credentials_file: str | None = None
    tls: bool | None = None
    tls_ca_file: str | None = None
    tls_cert_file: str | None = None
    tls_key_file: str | None = None
    tls_verify_host_name: bool = True


class Contexts(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    current: str | None = None
    contexts: dict[str, ClusterContext] = {}

    def get(self, name: str) -> ClusterContext:
        """Raises ConfigError for an unknown name."""
        found = self.contexts.get(name)
        if found is None:
            advice = did_you_mean(name, self.contexts) or f"; there are {', '.join(self.contexts) or 'none'}"
            raise ConfigError(f"no context {name[:80]!r}{advice}", key="context")
        return found


def contexts_path() -> Path:
    if named := os.environ.get("MQSPARK_CONTEXTS"):
        return Path(named)
    home = os.environ.get("XDG_CONFIG_HOME") or os.path.join(os.path.expanduser("~"), ".config")
    return Path(home) / "mqspark" / "contexts.toml"


def load_contexts() -> Contexts:
    """The contexts of the file; empty if there is no file. Raises ConfigError."""
    path = contexts_path()
    try:
        with open(path, "rb") as file:
            content = file.read(MAX_CONTEXTS_BYTES + 1)
    except FileNotFoundError:
        return Contexts()
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}", key="context") from None
    import tomllib

    text = text_of(content, str(path), MAX_CONTEXTS_BYTES, "context")
    try:
        found = msgspec.convert(tomllib.loads(text), Contexts)
    except (tomllib.TOMLDecodeError, msgspec.ValidationError) as error:
        raise ConfigError(f"{path} cannot be used: {error}", key="context") from None
    for name, context in found.contexts.items():
        check_context(name, context)
    return found


def check_context(name: str, context: ClusterContext) -> None:
    """Raises ConfigError."""
    if _NAME.fullmatch(name) is None:
        raise ConfigError(f"context {name[:80]!r}: a name is letters, digits and . _ -", key="context")
    parse_addresses(context.nameserver, key="nameserver", required=True)


@contextmanager
def changed_contexts() -> Iterator[Contexts]:
    """The contexts of the file, to change: they are saved at the end, unless an error is raised. Another command that
    changes them waits. Raises ConfigError, OSError."""
    path = contexts_path()
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    directory = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(directory, fcntl.LOCK_EX)
        contexts = load_contexts()
        yield contexts
        _save(path, contexts)
    finally:
        os.close(directory)


def _save(path: Path, contexts: Contexts) -> None:
    """Replace the whole file, readable only by the user."""
    import tomlkit

    for name, context in contexts.contexts.items():
        check_context(name, context)
    replace_file(path, tomlkit.dumps(msgspec.to_builtins(contexts), sort_keys=True).encode(), mode=0o600)
