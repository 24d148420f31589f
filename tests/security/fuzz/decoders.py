"""Decoders of what strangers, slaves, masters and old files say, each with what has to hold of its result."""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from mqspark.auth.plainacl import migrate, read_accounts
from mqspark.auth.users import Users
from mqspark.base.propertystring import find_property
from mqspark.errors import ConfigError, FilterFailed, InvalidFilter, InvalidMessage, MQError
from mqspark.filter.sql import compile_sql
from mqspark.message import decode_properties, encode_properties
from mqspark.protocol.servers.epochframes import EpochFrames, SlaveWords
from mqspark.protocol.servers.haframes import DataFrames, Reports, data_head, encode_report
from mqspark.protocol.servers.replicaproof import MAGIC, MasterProof, SlaveProof
from mqspark.protocol.signature import Signer
from mqspark.record.batchitems import encode_items, split_batch
from mqspark.store.messages.membertable import batch_members
from mqspark_server.authfiles import AesGcm
from tests.security.fuzz import cases
from tests.security.fuzz.cases import Chance
from tests.security.fuzz.kinds import Decoding

NAMES = ["a", "b", "TAGS", "KEYS", "größe", "__NAME"]
VALUES = ["1", "x", "true", "-7", "3.14", "9223372036854775807", "", "it''s", "%", "Grüße"]

SECRETS = ["12345678", '"quoted secret"', "&anchor x", "!!python/object", ""]


class Batches(Decoding):
    """Bodies of batch sends, item by item and as columns: both find the same."""

    name = "batch"

    def make(self, chance: Chance) -> bytes:
        count = chance.choice([0, 1, 2, 63, 64, 65, 300])
        same = chance.random() < 0.5
        items = []
        for number in range(count):
            body = b"b" * (4 if same else chance.choice([0, 1, 7, 200]))
            properties = b"TAGS\x01%d\x02" % (number % 10 if same else chance.randrange(10**6))
            items.append((chance.choice([0, 1, -1]), body, properties))
        data = encode_items(items)
        return cases.mutated(chance, data) if chance.random() < 0.6 else data

    def decode(self, case: bytes) -> None:
        try:
            items: list[tuple[int, bytes, bytes]] | None = split_batch(case)
        except InvalidMessage:
            items = None
        try:
            columns = batch_members(case)
        except InvalidMessage:
            if items is not None:
                raise AssertionError("columns refuse what items do not") from None
            return
        if columns is not None and items is None:
            raise AssertionError("columns take what items do not")
        if items is not None and split_batch(encode_items(items)) != items:
            raise AssertionError("items change on their way back")


class Properties(Decoding):
    """Property strings of messages: a name that is searched for is found where the whole says it is."""

    name = "properties"

    def make(self, chance: Chance) -> bytes:
        pairs = {chance.choice(NAMES): chance.choice(VALUES) for _ in range(chance.randrange(8))}
        data = encode_properties(pairs) if chance.random() < 0.7 else chance.choice(cases.PROPERTIES).encode()
        return cases.mutated(chance, data) if chance.random() < 0.6 else data

    def decode(self, case: bytes) -> None:
        whole = decode_properties(case)
        for name in NAMES[:4]:
            found = find_property(case, name.encode())
            if found is not None and name not in whole:
                raise AssertionError(f"{name} is found and is not there")
        if decode_properties(encode_properties(whole)) != whole:
            raise AssertionError("properties change on their way back")


class Filters(Decoding):
    """SQL92 expressions, and what they say of properties; bytes after a line break are properties."""

    name = "sql92"

    def make(self, chance: Chance) -> bytes:
        text = self._expression(chance, chance.choice([0, 1, 2, 4]))
        if chance.random() < 0.2:
            text = chance.choice(["(" * 2_000 + text, "NOT " * 2_000 + text, " AND ".join([text] * 200)])
        data = text.encode("utf-8", "replace")
        if chance.random() < 0.4:
            data = cases.mutated(chance, data)
        pairs = {chance.choice(NAMES): chance.choice(VALUES) for _ in range(3)}
        return data + b"\n" + encode_properties(pairs)

    def _expression(self, chance: Chance, depth: int) -> str:
        if depth:
            left, right = self._expression(chance, depth - 1), self._expression(chance, depth - 1)
            return chance.choice([f"({left} AND {right})", f"{left} OR {right}", f"NOT ({left})"])
        name, value = chance.choice(NAMES[:2]), chance.choice(VALUES)
        return chance.choice(
            [
                f"{name} = '{value}'",
                f"{name} > {value}",
                f"{name} BETWEEN {value} AND 9",
                f"{name} IS NULL",
                f"{name} IN ('{value}', 'x')",
                f"{name} NOT IN ('x')",
                f"{name} CONTAINS '{value}'",
                f"{name} STARTSWITH '{value}'",
                f"{name} <> {value}",
                f"-{name} <= 1e9",
                "TRUE",
            ]
        )

    def decode(self, case: bytes) -> None:
        text, _, encoded = case.partition(b"\n")
        try:
            found = compile_sql(text.decode("utf-8", "replace"))
        except InvalidFilter:
            return
        properties = decode_properties(encoded)
        try:
            outcome = found.evaluate(properties) is True
        except FilterFailed:
            outcome = False
        if found.matches(properties) is not outcome:
            raise AssertionError("matches and evaluate differ")


class Replication(Decoding):
    """What masters and slaves say, with and without epochs, and the proofs before: the first byte says which. A stream
    says the same in one piece and byte by byte."""

    name = "replication"

    def make(self, chance: Chance) -> bytes:
        kind = chance.randrange(len(self._readers()))
        parts = []
        for _ in range(chance.randrange(1, 6)):
            position, size = cases.number(chance), chance.choice([0, 1, 100, 5_000, 4 << 20, -1])
            head = data_head(position % (1 << 63), size) + bytes(max(0, min(size, 200)))
            report = encode_report(position % (1 << 63))
            hello = MAGIC + bytes([5]) + b"inner" + bytes(32)
            words = struct.pack(">iiqqq", chance.choice([0, 1, 2, 3, 4]), size, position % (1 << 63), 1, 0)
            parts.append(chance.choice([head, report, hello, words, MAGIC + bytes(32)]))
        data = b"".join(parts)
        return bytes([kind]) + (cases.mutated(chance, data) if chance.random() < 0.6 else data)

    @staticmethod
    def _readers() -> Sequence[Callable[[], Callable[[bytes], Any]]]:
        signer = Signer("inner", "secret")
        return (
            lambda: Reports().receive_data,
            lambda: DataFrames().receive_data,
            lambda: SlaveWords().receive_data,
            lambda: EpochFrames().receive_data,
            lambda: MasterProof("b", lambda key: signer if key == "inner" else None).receive,
            lambda: SlaveProof("b", "inner", signer).receive,
        )

    def decode(self, case: bytes) -> None:
        if not case:
            return
        readers = self._readers()
        new = readers[case[0] % len(readers)]
        data = case[1 : 1 + (1 << 16)]
        whole, pieces = new(), new()
        expected = self._outcome(lambda: whole(data))
        found = self._outcome(lambda: [pieces(data[at : at + 1]) for at in range(len(data))][-1:])
        if expected is not found:
            raise AssertionError(f"in one piece it is {expected}, byte by byte {found}")

    def _outcome(self, read: Callable[[], object]) -> type[Exception] | None:
        """The declared error that it ended with."""
        try:
            read()
        except MQError as error:
            return type(error)
        return None


class Accounts(Decoding):
    """`plain_acl.yml`, and the users that its accounts become."""

    name = "accounts"

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._cipher = AesGcm(bytes(32))

    def make(self, chance: Chance) -> bytes:
        lines = ["globalWhiteRemoteAddresses:", "  - 10.10.*.*", "accounts:"]
        for number in range(chance.choice([0, 1, 3])):
            lines += [
                f"  - accessKey: {chance.choice(['RocketMQ', f'user{number}', '', '*', 'a b'])}",
                f"    secretKey: {chance.choice(SECRETS)}",
                f"    admin: {chance.choice(['true', 'false', 'yes'])}",
                f"    defaultTopicPerm: {chance.choice(['DENY', 'PUB|SUB', 'ALL', ''])}",
                "    topicPerms:",
                f"      - {chance.choice(['topicA=DENY', 'T*=PUB|SUB', '=PUB', 'x', '../x=SUB'])}",
            ]
        data = "\n".join(lines).encode()
        return cases.mutated(chance, data) if chance.random() < 0.6 else data

    def decode(self, case: bytes) -> None:
        accounts = read_accounts(case, "plain_acl.yml")
        users = Users(self._cipher, lambda: 16 << 20)
        try:
            migrate(users, accounts)
        except ConfigError:
            return
        text = b"".join(users.snapshot()())
        copy = Users(self._cipher, lambda: 16 << 20)
        copy.load(text)
        if [user.name for user in copy] != [user.name for user in users]:
            raise AssertionError("users change on their way to the disk and back")
        if any(account.secret.encode() in text for account in accounts if len(account.secret) > 7):
            raise AssertionError("a secret is in the file in clear")


DECODERS: tuple[type[Decoding], ...] = (Batches, Properties, Filters, Replication, Accounts)
