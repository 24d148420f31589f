"""``plain_acl.yml`` of RocketMQ 4: accounts with permissions, which become users and policies (AuthMigrator).

Only the part of YAML that such files use is read: block mappings and sequences of plain or quoted scalars. Anything
else (anchors, aliases, tags, flow collections, text over several lines) is an error. So a file cannot expand when it
is read, and cannot choose the types of its values.

An unknown permission is an error; RocketMQ's migration turns it into full permission. Addresses that needed no
signature (``whiteRemoteAddress``) get no rights, as in RocketMQ's migration.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from mqspark.auth.policies import AclPolicy, Action, Entry, Kind, PolicyType, Resource, Ruling
from mqspark.auth.users import Users, UserType
from mqspark.base.textfile import text_of
from mqspark.errors import ConfigError, IllegalName, InvalidMessage, TableFull

MAX_PLAIN_ACL_BYTES = 1 << 20
MAX_LINES = 20_000
MAX_PLAIN_ACL_DEPTH = 8

_KEY = re.compile(r"([A-Za-z][A-Za-z0-9_]*):(?:\s+(.*))?")
_COMMENT = re.compile(r"(?:^|\s)#.*$")
_RIGHTS = {
    "DENY": (Ruling.DENY, frozenset({Action.ALL})),
    "": (Ruling.DENY, frozenset({Action.ALL})),
    "PUB": (Ruling.ALLOW, frozenset({Action.PUB})),
    "SUB": (Ruling.ALLOW, frozenset({Action.SUB})),
    "PUB|SUB": (Ruling.ALLOW, frozenset({Action.PUB, Action.SUB})),
    "SUB|PUB": (Ruling.ALLOW, frozenset({Action.PUB, Action.SUB})),
}


@dataclass(frozen=True, slots=True)
class PlainAccount:
    name: str
    secret: str = field(repr=False)
    is_admin: bool
    policies: tuple[AclPolicy, ...]


def read_accounts(data: bytes, source: str) -> list[PlainAccount]:
    """The accounts of a file. Raises ConfigError, which names the line but shows no value."""
    text = text_of(data, source, MAX_PLAIN_ACL_BYTES, "plainAclPath")
    document = _PlainYaml(text, source).document()
    accounts = document.get("accounts") or [] if isinstance(document, Mapping) else None
    if not isinstance(accounts, list):
        raise ConfigError(f"{source} has no list of accounts", key="plainAclPath")
    return [_account(each, f"{source}, account {number}") for number, each in enumerate(accounts, 1)]


def migrate(users: Users, accounts: Sequence[PlainAccount]) -> None:
    """Add the accounts that are not users yet. Raises ConfigError."""
    for account in accounts:
        if users.find(account.name) is not None:
            continue
        try:
            users.add(account.name, account.secret, UserType.SUPER if account.is_admin else UserType.NORMAL)
            if account.policies:
                users.update_acl(account.name, account.policies)
        except (InvalidMessage, IllegalName, TableFull) as error:
            raise ConfigError(f"an account of plain_acl.yml cannot be imported: {error}") from None


def _account(values: Any, source: str) -> PlainAccount:
    if not isinstance(values, Mapping):
        raise ConfigError(f"{source} is not a mapping", key="plainAclPath")
    name, secret, admin = (values.get(key) for key in ("accessKey", "secretKey", "admin"))
    if not isinstance(name, str) or not name or not isinstance(secret, str) or not secret:
        raise ConfigError(f"{source} has no accessKey or no secretKey", key="plainAclPath")
    if admin not in (None, "true", "false"):
        raise ConfigError(f"{source}: admin is neither true nor false", key="plainAclPath")
    custom = [
        entry
        for kind, key in ((Kind.TOPIC, "topicPerms"), (Kind.GROUP, "groupPerms"))
        for entry in _entries(kind, values.get(key), f"{source}, {key}")
    ]
    default = []
    for kind, key in ((Kind.TOPIC, "defaultTopicPerm"), (Kind.GROUP, "defaultGroupPerm")):
        if values.get(key):
            ruling, actions = _rights(values[key], f"{source}, {key}")
            default.append(Entry(Resource(kind, "", is_prefix=True), actions, ruling))
    found = ((PolicyType.CUSTOM, custom), (PolicyType.DEFAULT, default))
    policies = tuple(AclPolicy(kind, tuple(entries)) for kind, entries in found if entries)
    return PlainAccount(name, secret, admin == "true", policies)


def _entries(kind: Kind, values: Any, source: str) -> list[Entry]:
    if values is None:
        return []
    if not isinstance(values, list):
        raise ConfigError(f"{source} is not a list", key="plainAclPath")
    entries = []
    for value in values:
        name, equals, perm = str(value).partition("=")
        if not equals:
            raise ConfigError(f"{source}: an entry is not of the form name=permission", key="plainAclPath")
        ruling, actions = _rights(perm, source)
        try:
            resource = Resource.parse(f"{kind}:{name.strip()}")
        except (InvalidMessage, IllegalName) as error:
            raise ConfigError(f"{source}: {error}", key="plainAclPath") from None
        entries.append(Entry(resource, actions, ruling))
    return entries


def _rights(text: Any, source: str) -> tuple[Ruling, frozenset[Action]]:
    found = _RIGHTS.get(str(text).strip().upper())
    if found is None:
        raise ConfigError(
            f"{source}: a permission is not one of {', '.join(filter(None, _RIGHTS))}", key="plainAclPath"
        )
    return found


class _PlainYaml:
    def __init__(self, text: str, source: str) -> None:
        self._source = source
        self._lines: list[tuple[int, int, str]] = []
        """(line number, indentation, content)."""
        lines = text.splitlines()
        if len(lines) > MAX_LINES:
            raise ConfigError(f"{source} has more than {MAX_LINES} lines", key="plainAclPath")
        for number, line in enumerate(lines, 1):
            content = _COMMENT.sub("", line).rstrip()
            if content.strip() and content.strip() != "---":
                indent = len(content) - len(content.lstrip(" "))
                self._lines.append((number, indent, content[indent:]))
        self._next = 0

    def document(self) -> Any:
        value = self._block(0, 0) if self._lines else {}
        if self._next < len(self._lines):
            raise self._wrong("its indentation matches no line above it")
        return value

    def _wrong(self, why: str) -> ConfigError:
        number = self._lines[min(self._next, len(self._lines) - 1)][0]
        return ConfigError(f"{self._source}, line {number}: {why}", key="plainAclPath")

    def _block(self, indent: int, depth: int) -> Any:
        if depth > MAX_PLAIN_ACL_DEPTH:
            raise self._wrong("it is nested too deeply")
        _, _, content = self._lines[self._next]
        return self._sequence(indent, depth) if _is_item(content) else self._mapping(indent, depth)

    def _sequence(self, indent: int, depth: int) -> list[Any]:
        values: list[Any] = []
        while self._next < len(self._lines):
            number, found, content = self._lines[self._next]
            if found != indent or not _is_item(content):
                break
            rest = content[1:].lstrip(" ")
            if not rest:
                raise self._wrong("an item is empty")
            if _KEY.fullmatch(rest):
                inner = indent + len(content) - len(rest)
                self._lines[self._next] = number, inner, rest
                values.append(self._mapping(inner, depth + 1))
            else:
                values.append(self._scalar(rest))
                self._next += 1
        return values

    def _mapping(self, indent: int, depth: int) -> dict[str, Any]:
        values: dict[str, Any] = {}
        while self._next < len(self._lines):
            _, found, content = self._lines[self._next]
            if found != indent or _is_item(content):
                break
            match = _KEY.fullmatch(content)
            if match is None:
                raise self._wrong("it is not of the form key: value")
            key, text = match[1], match[2]
            if key in values:
                raise self._wrong("its key is a duplicate")
            if text:
                values[key] = self._scalar(text)
                self._next += 1
                continue
            self._next += 1
            values[key] = None
            if self._next < len(self._lines):
                _, below, following = self._lines[self._next]
                if below > indent or (below == indent and _is_item(following)):
                    values[key] = self._block(below, depth + 1)
        return values

    def _scalar(self, text: str) -> str:
        if text[0] in "'\"":
            if len(text) < 2 or text[-1] != text[0] or text[0] in text[1:-1] or "\\" in text:
                raise self._wrong("quotes and escapes within a quoted text are not supported")
            return text[1:-1]
        if text[0] in "&*!|>{}[]%@`?,\t" or "\t" in text or ": " in text:
            raise self._wrong("only plain and quoted texts are supported")
        return text


def _is_item(content: str) -> bool:
    return content == "-" or content.startswith("- ")
