"""plain_acl.yml of RocketMQ 4, as it is shipped and as an attacker would write it."""

from __future__ import annotations

from pathlib import Path

import pytest

from mqspark.auth.config import AuthConfig
from mqspark.auth.plainacl import read_accounts
from mqspark.auth.policies import Access, Action, Kind, Ruling
from mqspark.auth.users import UserType
from mqspark.errors import ConfigError
from mqspark_server.authfiles import open_authority
from tests.support.clocks import ManualClock
from tests.support.store_tools import complete
from tests.unit.auth.test_policies import HERE

SHIPPED = b"""
# Licensed to nobody in particular
globalWhiteRemoteAddresses:
  - 10.10.103.1
  - 192.168.0.1

accounts:
  - accessKey: RocketMQ
    secretKey: 12345678   # a comment
    whiteRemoteAddress:
    admin: false
    defaultTopicPerm: DENY
    defaultGroupPerm: SUB
    topicPerms:
      - topicA=DENY
      - topicB=PUB|SUB
      - topicC=SUB
    groupPerms:
    # the group should convert to retry topic
    - groupA=DENY
    - groupB=PUB|SUB

  - accessKey: "rocketmq2"
    secretKey: 'canary 123 # no comment'
    whiteRemoteAddress: 192.168.1.1
    admin: true
"""


def test_accounts_become_users_once(tmp_path: Path) -> None:
    path = tmp_path / "plain_acl.yml"
    path.write_bytes(SHIPPED.replace(b" # no comment", b""))
    config = AuthConfig(
        authentication_enabled=True, migrate_auth_from_v1_enabled=True, plain_acl_path=str(path)
    )
    one, close = open_authority(config, tmp_path / "auth", ManualClock())
    assert {user.name: user.type for user in one.users} == {
        "RocketMQ": UserType.NORMAL,
        "rocketmq2": UserType.SUPER,
    }
    acl = one.users.acl("RocketMQ")
    assert acl is not None

    def may(kind: Kind, name: str, action: Action) -> Ruling | None:
        return acl.decide(Access(kind, name, frozenset({action})), HERE)

    assert may(Kind.TOPIC, "topicA", Action.PUB) is Ruling.DENY
    assert may(Kind.TOPIC, "topicB", Action.PUB) is Ruling.ALLOW
    assert may(Kind.TOPIC, "topicC", Action.SUB) is Ruling.ALLOW
    assert may(Kind.TOPIC, "topicC", Action.PUB) is Ruling.DENY
    assert may(Kind.TOPIC, "other", Action.SUB) is Ruling.DENY
    assert may(Kind.GROUP, "groupA", Action.SUB) is Ruling.DENY
    assert may(Kind.GROUP, "other", Action.SUB) is Ruling.ALLOW
    assert may(Kind.CLUSTER, "C", Action.GET) is None
    one.users.remove_acl("RocketMQ", next(iter(acl.policies)).type, None)
    complete(one.jobs())
    close()
    again, close = open_authority(config, tmp_path / "auth", ManualClock())
    assert again.users.acl("RocketMQ") is None, "a user that is there keeps its policies"
    close()


@pytest.mark.parametrize(
    "wrong",
    [
        b"accounts: &a [*a, *a]",
        b"accounts:\n- accessKey: !!python/object/apply:os.system [id]\n  secretKey: x",
        b"accounts:\n- accessKey: a\n  secretKey: *x",
        b"accounts:\n- accessKey: a\n  secretKey: canary\n  topicPerms:\n  - T=EVERYTHING",
        b"accounts:\n- accessKey: a\n  secretKey: canary\n  topicPerms:\n  - T",
        b"accounts:\n- accessKey: a\n  secretKey: canary\n  topicPerms:\n  - ../T=PUB",
        b"accounts:\n- accessKey: a\n  secretKey: canary\n  admin: yes",
        b"accounts:\n- accessKey: a\n  accessKey: b\n  secretKey: canary",
        b"accounts:\n- secretKey: canary",
        b"accounts:\n- accessKey: a\n   secretKey: canary",
        b"accounts:\n- accessKey: a\n  secretKey: |\n    canary",
        b"accounts: canary",
        b"- canary",
        b"accounts:\n-\n",
        b"\xff\xfe",
        b"a:\n" + b"".join(b" " * depth + b"a:\n" for depth in range(1, 30)),
        b"x: y\n" * 2,
        b"#\n" * 20_001,
        b" " * ((1 << 20) + 1),
    ],
)
def test_files_that_are_refused(wrong: bytes) -> None:
    with pytest.raises(ConfigError) as caught:
        read_accounts(wrong, "plain_acl.yml")
    assert "canary" not in str(caught.value)


def test_a_file_without_accounts() -> None:
    for data in (b"", b"---\n", b"accounts:\n", b"globalWhiteRemoteAddresses:\n- 10.0.0.1\n"):
        assert read_accounts(data, "plain_acl.yml") == []
