"""Policies, users and their file."""

from __future__ import annotations

import ipaddress
import json
import re
from pathlib import Path

import pytest

from mqspark.auth.access import TABLE
from mqspark.auth.config import AuthConfig
from mqspark.auth.policies import Access, Acl, AclPolicy, Action, Entry, Kind, PolicyType, Resource, Ruling
from mqspark.auth.users import UserStatus, UserType
from mqspark.errors import ConfigError, IllegalName, InvalidMessage, StoreCorrupt, TableFull
from mqspark.protocol.codes import RequestCode
from mqspark_server.authfiles import open_authority
from tests.support.clocks import ManualClock
from tests.support.store_tools import complete
from tests.unit.auth.security_shown import SHOWN, Shown
from tests.unit.auth.security_table import PAGE, tables
from tests.unit.auth_kit import ROOT, allow, authority, entry

CANARY = "canary-of-a-password"
HERE = ipaddress.ip_address("10.1.2.3")


def access(key: str, *actions: Action) -> Access:
    kind, _, name = key.partition(":")
    return Access(Kind(kind), name, frozenset(actions))


def decide(wanted: Access, *rules: str, default: tuple[str, ...] = ()) -> Ruling | None:
    policies = (
        AclPolicy(PolicyType.CUSTOM, tuple(map(entry, rules))),
        AclPolicy(PolicyType.DEFAULT, tuple(map(entry, default))),
    )
    return Acl(policies).decide(wanted, HERE)


@pytest.mark.parametrize(
    ("rules", "expected"),
    [
        ((), None),
        (("Topic:Orders Pub",), Ruling.ALLOW),
        (("Topic:Orders Sub",), None),
        (("Topic:Orders All",), Ruling.ALLOW),
        (("Group:Orders Pub",), None),
        (("Topic:Ord* Pub",), Ruling.ALLOW),
        (("Topic:* Pub",), Ruling.ALLOW),
        (("* Pub",), Ruling.ALLOW),
        (("Topic:Order Pub",), None),
        (("Topic:Orders Pub Deny", "* All"), Ruling.DENY),
        (("Topic:Ord* Pub Deny", "Topic:Orders Pub"), Ruling.ALLOW),
        (("Topic:Ord* Pub", "Topic:O* Pub Deny"), Ruling.ALLOW),
        (("Topic:Ord* Pub Deny", "Topic:O* Pub"), Ruling.DENY),
        (("Topic:* Pub Deny", "* Pub"), Ruling.DENY),
        (("Topic:Orders Pub", "Topic:Orders Pub Deny"), Ruling.DENY),
        (("Topic:Orders Pub Deny", "Topic:Orders Pub"), Ruling.DENY),
        (("Topic:Orders Pub 10.0.0.0/8",), Ruling.ALLOW),
        (("Topic:Orders Pub 10.1.2.3",), Ruling.ALLOW),
        (("Topic:Orders Pub 192.168.0.0/16",), None),
        (("Topic:Orders Pub ::1",), None),
        (("Topic:Orders All Deny 192.168.0.0/16", "Topic:* Pub"), Ruling.ALLOW),
    ],
)
def test_the_most_specific_entry_decides_and_deny_wins(
    rules: tuple[str, ...], expected: Ruling | None
) -> None:
    assert decide(access("Topic:Orders", Action.PUB), *rules) == expected


def test_default_policies_count_only_if_no_custom_entry_matches() -> None:
    wanted = access("Topic:Orders", Action.PUB)
    assert decide(wanted, default=("Topic:* Pub",)) is Ruling.ALLOW
    assert decide(wanted, "* Pub Deny", default=("Topic:Orders Pub",)) is Ruling.DENY
    assert decide(wanted, "* Sub Deny", default=("Topic:Orders Pub",)) is Ruling.ALLOW


def test_every_cluster_is_matched_by_any_cluster_alone() -> None:
    wanted = access("Cluster:*", Action.GET)
    assert decide(wanted, "Cluster:C Get") is None
    assert decide(wanted, "Cluster:* Get") is Ruling.ALLOW


@pytest.mark.parametrize(
    "key", ["", "Topic", "Topic:", "Nothing:x", "Any:x", "Topic:a/b", "Topic:../x", "Topic:a\nb"]
)
def test_resources_that_are_none(key: str) -> None:
    with pytest.raises((InvalidMessage, IllegalName)):
        Resource.parse(key)


@pytest.mark.parametrize("key", ["Topic:a", "Topic:a*", "Group:*", "*", "Cluster:DefaultCluster"])
def test_resources_that_are_ones(key: str) -> None:
    assert Resource.parse(key).key == key


@pytest.mark.parametrize(
    "wrong",
    [
        (None, ["Pub"], "Allow", None),
        ("Topic:a", [], "Allow", None),
        ("Topic:a", ["Any"], "Allow", None),
        ("Topic:a", ["Publish"], "Allow", None),
        ("Topic:a", ["Pub"], "Maybe", None),
        ("Topic:a", ["Pub"], None, None),
        ("Topic:a", ["Pub"], "Allow", ["10.0.0.0/99"]),
        ("Topic:a", ["Pub"], "Allow", [""]),
        ("Topic:a", ["Pub"], "Allow", ["10.0.0.1"] * 257),
    ],
)
def test_entries_that_are_refused(wrong: tuple[str | None, list[str], str | None, list[str] | None]) -> None:
    with pytest.raises(InvalidMessage):
        Entry.parse(*wrong)


def test_an_entry_replaces_the_one_of_its_resource(tmp_path: Path) -> None:
    one = authority(tmp_path)
    allow(one, "alice", "Topic:T Pub")
    one.users.update_acl("alice", [AclPolicy(PolicyType.CUSTOM, (entry("Topic:T Sub"),))])
    acl = one.users.acl("alice")
    assert acl is not None
    assert acl.policy(PolicyType.CUSTOM).entries == (entry("Topic:T Sub"),)
    one.users.remove_acl("alice", PolicyType.CUSTOM, Resource.parse("Topic:T"))
    assert one.users.acl("alice") is None


def test_every_request_code_has_a_row() -> None:
    assert set(TABLE) == set(RequestCode)
    for code, row in TABLE.items():
        assert row.super_only or row.to_client or row.needs, code
        assert all(need.actions for need in row.needs)


@pytest.mark.parametrize(
    "row", [row for rows in SHOWN.values() for row in rows], ids=lambda row: row.what[:40]
)
def test_what_the_page_says_is_shown_by_tests_that_exist(row: Shown) -> None:
    for test in row.tests:
        place, name = test.split("::")
        text = (Path("tests") / f"{place}.py").read_text()
        assert re.search(rf"def test_{name}\(", text), test


def test_the_page_prints_the_table() -> None:
    PAGE.check(tables())


# --- users ----------------------------------------------------------------------------------------------------


def save(directory: Path, one: object) -> Path:
    for job in one.jobs():  # type: ignore[attr-defined]
        complete([job])
    return directory / "users.auth"


def test_users_survive_in_their_file_without_a_clear_secret(tmp_path: Path) -> None:
    one = authority(tmp_path)
    allow(one, "alice", "Topic:T Pub,Sub 10.0.0.0/8", "Group:G* Sub Deny", secret=CANARY)
    path = save(tmp_path, one)
    assert path.stat().st_mode & 0o777 == 0o600
    assert b"canary" not in path.read_bytes()
    assert b"root-secret" not in path.read_bytes()
    again = authority(tmp_path)
    alice = again.users.find("alice")
    assert alice is not None
    assert alice.type is UserType.NORMAL
    assert again.users.acl("alice") == one.users.acl("alice")
    was = one.users.find("alice")
    assert was is not None
    assert alice.signer.signature(b"x") == was.signer.signature(b"x")
    assert not again.jobs_due
    assert "canary" not in repr(alice)


def test_a_file_that_is_cut_changed_or_of_another_key_refuses_the_start(tmp_path: Path) -> None:
    one = authority(tmp_path)
    path = save(tmp_path, one)
    allow(one, "alice")
    save(tmp_path, one)
    whole = path.read_bytes()
    assert path.with_name("users.auth.bak").exists()
    flipped = bytearray(whole)
    flipped[len(whole) // 2] ^= 1
    for wrong in (b"", whole[:-1], bytes(flipped), b"{}", whole + b" "):
        path.write_bytes(wrong)
        with pytest.raises(StoreCorrupt):
            authority(tmp_path)
    path.write_bytes(whole)
    with pytest.raises(StoreCorrupt, match="another key"):
        authority(tmp_path, key=bytes(32))
    path.unlink()  # as after a crash between the two renames
    assert authority(tmp_path).users.find("root") is not None


def test_the_last_super_user_stays(tmp_path: Path) -> None:
    users = authority(tmp_path).users
    with pytest.raises(InvalidMessage, match="last enabled super user"):
        users.remove("root")
    with pytest.raises(InvalidMessage, match="last enabled super user"):
        users.change("root", None, UserType.NORMAL, None)
    with pytest.raises(InvalidMessage, match="last enabled super user"):
        users.change("root", None, None, UserStatus.DISABLE)
    users.add("second", "x", UserType.SUPER)
    users.remove("root")
    assert [user.name for user in users] == ["second"]


def test_users_that_are_refused(tmp_path: Path) -> None:
    users = authority(tmp_path).users
    for name, password in (("", "x"), (" ", "x"), ("a", ""), ("a", None), ("a" * 200, "x"), ("a", "x" * 600)):
        with pytest.raises(InvalidMessage):
            users.add(name, password)
    for name in ("a/b", "a\nb", "../a"):
        with pytest.raises(IllegalName):
            users.add(name, "x")
    with pytest.raises(InvalidMessage, match="existed"):
        users.add("root", "x")
    with pytest.raises(InvalidMessage, match="another key or another user"):
        users.add("thief", "sealed:" + next(iter(users)).sealed)
    users.add("alice", "x")
    generation = users.generation
    with pytest.raises(InvalidMessage, match="entries"):
        users.update_acl(
            "alice", [AclPolicy(PolicyType.CUSTOM, tuple(entry(f"Topic:t{n} Pub") for n in range(1025)))]
        )
    with pytest.raises(InvalidMessage, match="not exist"):
        users.update_acl("nobody", [AclPolicy(PolicyType.CUSTOM, (entry("* All"),))])
    assert users.generation == generation


def test_the_table_is_bounded(tmp_path: Path) -> None:
    users = authority(tmp_path, max_auth_table_bytes=100_000).users

    def fill() -> None:
        for number in range(100):
            users.add(f"user{number}", "x")

    with pytest.raises(TableFull):
        fill()
    assert users.ledger.refused == 1
    assert users.ledger.entries == len(users)
    assert users.ledger.bytes <= 100_000


# --- settings and the key ---------------------------------------------------------------------------------------


def test_settings_that_are_refused_show_no_secret() -> None:
    with pytest.raises(ConfigError, match="needs authenticationEnabled"):
        AuthConfig(authorization_enabled=True)
    for text in (
        '{"username":"root"}',
        "canary",
        '["canary"]',
        '{"username":"root","password":1}',
        '{"username":"canary',
    ):
        with pytest.raises(ConfigError) as caught:
            AuthConfig(init_authentication_user=text)
        assert "canary" not in str(caught.value)
    with pytest.raises(ConfigError, match="not a request code"):
        AuthConfig(authentication_whitelist="105,xyz")
    config = AuthConfig(init_authentication_user='{"username":"root","password":"canary"}')
    assert "canary" not in repr(config)


def test_the_key_is_private_and_must_not_be_lost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MQSPARK_AUTH_KEY", raising=False)
    first = json.dumps({"username": ROOT[0], "password": ROOT[1]})
    config = AuthConfig(authentication_enabled=True, init_authentication_user=first)
    clock = ManualClock()
    one, close = open_authority(config, tmp_path / "auth", clock)
    with pytest.raises(ConfigError, match="is in use"):
        open_authority(config, tmp_path / "auth", clock)
    close()
    save(tmp_path / "auth", one)
    key = tmp_path / "auth" / "users.auth.key"
    assert key.stat().st_mode & 0o777 == 0o600
    assert (tmp_path / "auth").stat().st_mode & 0o777 == 0o700
    text = key.read_text()
    key.chmod(0o640)
    with pytest.raises(ConfigError, match="other users can read the key"):
        open_authority(config, tmp_path / "auth", clock)
    key.unlink()
    with pytest.raises(ConfigError, match="there are users, but not their key"):
        open_authority(config, tmp_path / "auth", clock)
    monkeypatch.setenv("MQSPARK_AUTH_KEY", text)
    two, close = open_authority(config, tmp_path / "auth", clock)
    close()
    assert two.users.find("root") is not None
    monkeypatch.setenv("MQSPARK_AUTH_KEY", "nonsense")
    with pytest.raises(ConfigError, match="not a key of 32 bytes") as caught:
        open_authority(config, tmp_path / "auth", clock)
    assert "nonsense" not in str(caught.value)


def test_a_server_without_a_user_does_not_start(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="mqspark user add"):
        authority(tmp_path, init_authentication_user="")
