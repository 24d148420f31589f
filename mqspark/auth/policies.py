"""Policies: which user may do what to which topics, groups and clusters, from where (PolicyEntry,
AclAuthorizationHandler).

The entries of a custom policy are consulted first; those of a default policy only if none of them matches. Of the
matching entries, the most specific one decides: a literal name, then the longest prefix, then any name, then any
resource. Deny wins over an equally specific allow. Without a match, access is denied.

Facts: docs/rocketmq/protocol.md#policies.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from typing import NamedTuple, TypeVar

from mqspark.base.logs import printable
from mqspark.base.names import check
from mqspark.errors import InvalidMessage
from mqspark.protocol.bodies.body import Body

MAX_SOURCES = 256
"""Limit of source addresses in one entry."""
ANY_NAME = "*"

E = TypeVar("E", bound=StrEnum)


class Kind(StrEnum):
    """The kind of a resource (ResourceType)."""

    ANY = "Any"
    CLUSTER = "Cluster"
    NAMESPACE = "Namespace"
    TOPIC = "Topic"
    GROUP = "Group"


class Action(StrEnum):
    ALL = "All"
    PUB = "Pub"
    SUB = "Sub"
    CREATE = "Create"
    UPDATE = "Update"
    DELETE = "Delete"
    GET = "Get"
    LIST = "List"


class Ruling(StrEnum):
    ALLOW = "Allow"
    DENY = "Deny"


class PolicyType(StrEnum):
    CUSTOM = "Custom"
    DEFAULT = "Default"


def named(enumeration: type[E], name: str, what: str) -> E:
    """The member with this name, ignoring case. Raises InvalidMessage."""
    for member in enumeration:
        if member.value.lower() == name.strip().lower():
            return member
    raise InvalidMessage(f"{what} {printable(name, 40)!r} is not one of {', '.join(enumeration)}")


class Access(NamedTuple):
    """A right that a request needs: one of ``actions`` on a resource. The cluster ``*`` means every cluster."""

    kind: Kind
    name: str
    actions: frozenset[Action]
    instead: Access | None = None
    """A right that does as well."""

    @property
    def key(self) -> str:
        return f"{self.kind}:{self.name}"


@dataclass(frozen=True)
class Resource:
    """``Topic:name``, ``Topic:prefix*``, ``Topic:*`` or ``*``."""

    kind: Kind
    name: str
    is_prefix: bool = False

    @classmethod
    def parse(cls, key: str) -> Resource:
        """Raises InvalidMessage or IllegalName."""
        if key == ANY_NAME:
            return cls(Kind.ANY, "", is_prefix=True)
        word, colon, name = key.partition(":")
        kind = named(Kind, word, "resource type")
        if not colon or not name or kind is Kind.ANY:
            raise InvalidMessage(f"resource {printable(key, 80)!r} is not of the form Topic:name")
        check("resource", name)
        if name.endswith(ANY_NAME):
            return cls(kind, name.partition(ANY_NAME)[0], is_prefix=True)
        return cls(kind, name)

    @property
    def key(self) -> str:
        if self.kind is Kind.ANY:
            return ANY_NAME
        return f"{self.kind}:{self.name}{ANY_NAME if self.is_prefix else ''}"

    @property
    def rank(self) -> tuple[bool, bool, int]:
        """Sort key: the greatest of several matching resources is the most specific."""
        return self.kind is not Kind.ANY, not self.is_prefix, len(self.name)

    def matches(self, access: Access) -> bool:
        if self.kind is Kind.ANY:
            return True
        if self.kind is not access.kind:
            return False
        return access.name.startswith(self.name) if self.is_prefix else access.name == self.name


@dataclass(frozen=True)
class Entry:
    """One rule. ``sources``: addresses or networks in CIDR notation; empty: any address."""

    resource: Resource
    actions: frozenset[Action]
    decision: Ruling
    sources: tuple[str, ...] = ()

    @classmethod
    def parse(
        cls,
        resource: str | None,
        actions: Iterable[str] | None,
        decision: str | None,
        sources: Iterable[str] | None,
    ) -> Entry:
        """Parse the texts of an entry. Raises InvalidMessage or IllegalName."""
        if not resource:
            raise InvalidMessage("The resource is null.")
        found = frozenset(named(Action, action, "action") for action in actions or ())
        if not found:
            raise InvalidMessage("The actions is empty.")
        if not decision:
            raise InvalidMessage("The decision is null or illegal.")
        addresses = tuple(source.strip() for source in sources or ())
        if len(addresses) > MAX_SOURCES:
            raise InvalidMessage(
                f"an entry has {len(addresses)} source ips; at most {MAX_SOURCES} are allowed"
            )
        entry = cls(Resource.parse(resource), found, named(Ruling, decision, "decision"), addresses)
        try:
            _ = entry.networks
        except ValueError:
            raise InvalidMessage("The source ip is invalid.") from None
        return entry

    @cached_property
    def networks(self) -> tuple[ipaddress.IPv4Network | ipaddress.IPv6Network, ...]:
        return tuple(ipaddress.ip_network(source, strict=False) for source in self.sources)

    def matches(self, access: Access, source: ipaddress.IPv4Address | ipaddress.IPv6Address) -> bool:
        return (
            self.resource.matches(access)
            and (Action.ALL in self.actions or not self.actions.isdisjoint(access.actions))
            and (not self.sources or any(source in network for network in self.networks))
        )


@dataclass(frozen=True)
class AclPolicy:
    type: PolicyType
    entries: tuple[Entry, ...]

    def updated(self, entries: Iterable[Entry]) -> AclPolicy:
        """The policy with these entries, which replace entries for the same resources."""
        table = {entry.resource: entry for entry in self.entries}
        table.update((entry.resource, entry) for entry in entries)
        return AclPolicy(self.type, tuple(table.values()))

    def without(self, resource: Resource) -> AclPolicy:
        return AclPolicy(self.type, tuple(entry for entry in self.entries if entry.resource != resource))


class PolicyEntryInfo(Body):
    """An entry as requests and the file of users have it."""

    resource: str | None = None
    actions: list[str] | None = None
    source_ips: list[str] | None = None
    decision: str | None = None


class PolicyInfo(Body):
    policy_type: str | None = None
    entries: list[PolicyEntryInfo] | None = None

    def policy(self) -> AclPolicy:
        """Raises InvalidMessage or IllegalName."""
        name = (self.policy_type or "").strip()
        kind = named(PolicyType, name, "policy type") if name else PolicyType.CUSTOM
        entries = (
            Entry.parse(each.resource, each.actions, each.decision, each.source_ips)
            for each in self.entries or ()
        )
        return AclPolicy(kind, tuple(entries))


@dataclass(frozen=True)
class Acl:
    """The policies of one user: at most one of each type."""

    policies: tuple[AclPolicy, ...] = ()

    @property
    def names_sources(self) -> bool:
        """Whether it matters from where the user asks."""
        return any(entry.sources for policy in self.policies for entry in policy.entries)

    def allows_from(self, source: str) -> bool:
        """Whether an entry allows the user anything at this address."""
        address = ipaddress.ip_address(source)
        return any(
            entry.decision is Ruling.ALLOW
            and (not entry.sources or any(address in network for network in entry.networks))
            for policy in self.policies
            for entry in policy.entries
        )

    def policy(self, kind: PolicyType) -> AclPolicy:
        return next((policy for policy in self.policies if policy.type is kind), AclPolicy(kind, ()))

    def updated(self, policies: Sequence[AclPolicy]) -> Acl:
        table = {policy.type: policy for policy in self.policies}
        for policy in policies:
            table[policy.type] = self.policy(policy.type).updated(policy.entries)
        return Acl(tuple(policy for policy in table.values() if policy.entries))

    def without(self, kind: PolicyType, resource: Resource) -> Acl:
        policies = (policy.without(resource) if policy.type is kind else policy for policy in self.policies)
        return Acl(tuple(policy for policy in policies if policy.entries))

    def decide(self, access: Access, source: ipaddress.IPv4Address | ipaddress.IPv6Address) -> Ruling | None:
        """The ruling of the deciding entry; None: no entry matches."""
        for kind in PolicyType:
            found = [entry for entry in self.policy(kind).entries if entry.matches(access, source)]
            if found:
                best = max(entry.resource.rank for entry in found)
                decisions = {entry.decision for entry in found if entry.resource.rank == best}
                return Ruling.DENY if Ruling.DENY in decisions else Ruling.ALLOW
        return None
