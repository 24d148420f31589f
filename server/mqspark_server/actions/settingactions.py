"""Settings of running servers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from mqspark.base.config import did_you_mean
from mqspark.errors import InvalidMessage
from mqspark_server.actions.operating import Act, Operated, Preview
from mqspark_server.shown.nouns import MAX_VALUE
from mqspark_server.survey.surveying import Row


def check_keys(server: str, known: Mapping[str, str], keys: Iterable[str]) -> None:
    """Raises InvalidMessage for a key that a server does not have: RocketMQ's accept any silently."""
    for key in keys:
        if key not in known:
            advice = did_you_mean(key[:MAX_VALUE], known)
            raise InvalidMessage(f"{server} has no setting {key[:80]!r}{advice}", field="setting")


class ChangeSettings(Act, frozen=True):
    """Changes settings of the broker at an address. ``server``: its name. ``changes``: by RocketMQ's keys."""

    done = "server {0.server} has {0.words}"
    server: str
    address: str
    changes: Mapping[str, str]

    @property
    def words(self) -> str:
        return ", ".join(f"{key}={value}" for key, value in self.changes.items())

    async def _known(self, at: Operated) -> dict[str, str]:
        return await at.admin.broker_config(self.address)

    async def preview(self, at: Operated) -> Preview:
        for key, value in self.changes.items():
            if not key or any(mark in key + value for mark in "\r\n"):
                raise InvalidMessage("give a key, and a value of one line", field="setting")
        known = await self._known(at)
        check_keys(self.server, known, self.changes)
        rows = [{"key": key, "now": known[key], "then": value} for key, value in self.changes.items()]
        columns = {"key": "Setting", "now": "Now", "then": "Then"}
        title = f"Set {self.words} at {self.server}?"
        return Preview(title, "Change", columns=columns, rows=rows, is_dangerous=True)

    async def act(self, at: Operated) -> Row:
        await self.preview(at)
        await at.admin.update_broker_config(self.address, self.changes)
        return {"server": self.server, "set": self.changes}


class ChangeNameServer(ChangeSettings, frozen=True):
    """``server``: its address."""

    async def _known(self, at: Operated) -> dict[str, str]:
        return await at.admin.namesrv_config(self.address)

    async def act(self, at: Operated) -> Row:
        await self.preview(at)
        await at.admin.update_namesrv_config(self.address, self.changes)
        return {"address": self.server, "set": self.changes}
