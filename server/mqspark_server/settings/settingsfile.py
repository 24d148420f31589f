"""The settings file of a process, which also stores changes that operators make while the process runs.

Comments, order and spelling are preserved. The file is replaced atomically: it is always either the old or the new one.
"""

from __future__ import annotations

import fcntl
import logging
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec

from mqspark.errors import ConfigError
from mqspark.store.disk.configfile import ConfigFile
from mqspark.store.disk.files import OsFiles
from mqspark_server.settings.properties import edit_properties
from mqspark_server.settings.settings import decoded, values_in

log = logging.getLogger("mqspark.app")


class SettingsFile(ConfigFile):
    """``save`` takes the changed values, by RocketMQ's keys, as a JSON object."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, OsFiles(file_mode=path.stat().st_mode & 0o777), with_backup=False)

    def save(self, data: bytes) -> None:
        """Raises OSError, and ConfigError when the file has become unreadable."""
        values = msgspec.json.decode(data, type=dict[str, Any])
        directory = os.open(self.path.parent, os.O_RDONLY | os.O_DIRECTORY)
        try:
            fcntl.flock(directory, fcntl.LOCK_EX)  # brokers on one host may share a file
            text, encoding = decoded(self.path.read_bytes(), str(self.path))
            super().save(edited(text, values, str(self.path)).encode(encoding))
        finally:
            os.close(directory)


def settings_file(path: Path | None) -> SettingsFile | None:
    """None, with a line in the log, if there is no file that can be replaced."""
    if path is None:
        return None
    if not os.access(path, os.W_OK) or not os.access(path.parent, os.W_OK):
        log.info("%s cannot be written: changed settings last until the process ends", path)
        return None
    return SettingsFile(path)


def edited(text: str, values: Mapping[str, Any], source: str) -> str:
    """The text of a settings file with these values. Raises ConfigError."""
    before = values_in(text, source)
    if source.endswith(".toml"):
        result = _edited_toml(text, values)
    else:
        texts = {key: _text(value) for key, value in values.items()}
        result = edit_properties(text, texts, _is_same, source=source)
    _check(before, values_in(result, source), values, source)
    return result


def _edited_toml(text: str, values: Mapping[str, Any]) -> str:
    import tomlkit  # here, because few processes ever change a file, and it takes 1 MB

    document = tomlkit.parse(text)
    for key, value in values.items():
        for table in _tables(document):
            spelt = next((name for name in table if _is_same(name, key)), None)
            if spelt is not None:
                table[spelt] = value
                break
        else:
            document[key] = value
    return tomlkit.dumps(document)


def _tables(table: Any) -> Iterator[Any]:
    yield table
    for each in table.values():
        if isinstance(each, dict):
            yield from _tables(each)


def _check(
    before: Mapping[str, Any], after: Mapping[str, Any], values: Mapping[str, Any], source: str
) -> None:
    """Read the new text as a start reads it, and check that nothing else has changed."""
    wanted = {_normalized_key(key): value for key, value in before.items()} | {
        _normalized_key(key): value for key, value in values.items()
    }
    found = {_normalized_key(key): value for key, value in after.items()}
    texts = [{key: _text(value) for key, value in each.items()} for each in (wanted, found)]
    if texts[0] != texts[1]:
        differing = sorted(key for key in {*wanted, *found} if texts[0].get(key) != texts[1].get(key))
        raise ConfigError(f"{source} cannot be changed safely; it would differ in {', '.join(differing)}")


def _is_same(spelt: str, key: str) -> bool:
    return _normalized_key(spelt) == _normalized_key(key)


def _normalized_key(key: str) -> str:
    return key.replace("_", "").lower()


def _text(value: Any) -> str:
    return ("true" if value else "false") if isinstance(value, bool) else str(value)
