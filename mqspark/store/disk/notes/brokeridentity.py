"""The number that a controller gave to this broker: RocketMQ's ``brokerIdentity``, and ``brokerIdentity-temp`` while it
is being asked for (BrokerMetadata, TempBrokerMetadata).

    brokerIdentity         cluster#name#id
    brokerIdentity-temp    cluster#name#id#code, where only who knows the code may take the id again
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from mqspark.errors import StoreCorrupt
from mqspark.store.disk.configfile import ConfigFile
from mqspark.store.disk.files import FileLayer


class OwnIdentity(NamedTuple):
    cluster: str
    name: str
    broker_id: int
    code: str = ""


def decode_identity(data: bytes) -> OwnIdentity | None:
    parts = data.decode("utf-8", "replace").split("#")
    if len(parts) not in (3, 4) or not parts[2].isdecimal() or len(parts[2]) > 18:
        return None
    return OwnIdentity(parts[0], parts[1], int(parts[2]), *parts[3:])


class IdentityFiles:
    """Raises StoreCorrupt for a file that cannot be read or belongs to another broker, OSError."""

    def __init__(self, root: Path, files: FileLayer, cluster: str, name: str) -> None:
        self._files = files
        self._path, self._wanted_path = root / "brokerIdentity", root / "brokerIdentity-temp"
        self._cluster, self._broker_name = cluster, name

    def load(self) -> OwnIdentity | None:
        """The identity, or None if there is none yet."""
        return self._load(self._path)

    def load_wanted(self) -> OwnIdentity | None:
        """What was being asked for when the process ended."""
        return self._load(self._wanted_path)

    def _load(self, path: Path) -> OwnIdentity | None:
        file = ConfigFile(path, self._files)
        data = file.load(lambda each: decode_identity(each) is not None)
        identity = None if data is None else decode_identity(data)
        if identity is None:
            if file.exists:
                raise StoreCorrupt(f"{path} is damaged: it should be CLUSTER#NAME#ID", path=str(path))
            return None
        if (identity.cluster, identity.name) != (self._cluster, self._broker_name):
            raise StoreCorrupt(
                f"{path} belongs to broker {identity.name} of cluster {identity.cluster}: correct brokerName and"
                " brokerClusterName, or the store directory",
                path=str(path),
            )
        return identity

    def want(self, broker_id: int, code: str) -> OwnIdentity:
        identity = OwnIdentity(self._cluster, self._broker_name, broker_id, code)
        text = f"{identity.cluster}#{identity.name}#{broker_id}#{code}"
        ConfigFile(self._wanted_path, self._files).save(text.encode())
        return identity

    def save(self, broker_id: int) -> None:
        text = f"{self._cluster}#{self._broker_name}#{broker_id}"
        ConfigFile(self._path, self._files).save(text.encode())
        self.forget_wanted()

    def forget_wanted(self) -> None:
        for suffix in ("", ".bak"):
            path = self._wanted_path.with_name(self._wanted_path.name + suffix)
            if self._files.read(path) is not None:
                self._files.remove(path)
        self._files.sync_directory(self._wanted_path.parent)
