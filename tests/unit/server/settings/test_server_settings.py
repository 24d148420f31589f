"""broker.conf's syntax, the order of precedence, and what happens to keys that nobody knows."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path
from typing import Any

import pytest

from mqspark.broker.config import BrokerConfig
from mqspark.errors import ConfigError
from mqspark.namesrv.config import NamesrvConfig
from mqspark.store.config import FlushDiskType, StoreConfig
from mqspark_server.settings.declarations import SERVERS
from mqspark_server.settings.properties import parse_properties
from mqspark_server.settings.serverconfig import ServerConfig
from mqspark_server.settings.settings import (
    DEVELOPMENT,
    Layer,
    broker_settings,
    consent_to_anonymous,
    controller_settings,
    file_layer,
    foreign_keys,
    local_address,
    namesrv_settings,
    override_layer,
    production,
)

CONF = Path(__file__).parents[4] / "conf"


@pytest.fixture(autouse=True)
def _no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NAMESRV_ADDR", raising=False)


@pytest.mark.parametrize(
    ("text", "entries"),
    [
        ("a=1\nb = 2\nc:3\nd : 4\ne 5\n", {"a": "1", "b": "2", "c": "3", "d": "4", "e": "5"}),
        ("# comment\n  ! comment\n\n\t\na=1", {"a": "1"}),
        ("list=a;\\\n     b;\\\n     c\nnext=1", {"list": "a;b;c", "next": "1"}),
        (
            "win=C:\\\\temp\ntab=a\\tb\nu=\\u4e2d\nkey\\ with\\=signs=v",
            {"win": "C:\\temp", "tab": "a\tb", "u": "中", "key with=signs": "v"},
        ),
        ("empty=\n", {"empty": ""}),
        ("a=1\na=2", {"a": "2"}),
        ("even=x\\\\\nnext=1", {"even": "x\\", "next": "1"}),
        ("trailing=v  ", {"trailing": "v  "}),
        ("\ufeffbom=1\r\ncrlf=2\r\n", {"bom": "1", "crlf": "2"}),
        ("last=a\\", {"last": "a"}),
        ("levels=1s 5s 10s", {"levels": "1s 5s 10s"}),
        ("url=http://x:1/#frag", {"url": "http://x:1/#frag"}),
    ],
)
def test_properties(text: str, entries: dict[str, str]) -> None:
    assert parse_properties(text) == entries


@pytest.mark.parametrize("text", ["a=1\nlonely", "a=1\n=value", "a=1\nb=\\u12"])
def test_malformed_properties_name_the_line(text: str) -> None:
    with pytest.raises(ConfigError, match=r"x\.conf, line 2"):
        parse_properties(text, source="x.conf")


def test_later_layers_win_and_both_spellings_are_one_key() -> None:
    settings = broker_settings(
        production(),
        Layer(
            "broker.conf", {"flushDiskType": "ASYNC_FLUSH", "listenPort": "10950", "brokerIP1": "10.0.0.1"}
        ),
        override_layer(["flush_disk_type=SYNC_FLUSH", "broker_ip1=10.0.0.2"]),
    )
    assert settings.store.flush_disk_type is FlushDiskType.SYNC_FLUSH
    assert (settings.broker.listen_port, settings.server.listen_port) == (10950, 10950)
    assert settings.broker.broker_ip1 == "10.0.0.2"


def test_profiles() -> None:
    careful, handy = broker_settings(production()), broker_settings(DEVELOPMENT)
    assert careful.store.flush_disk_type is FlushDiskType.SYNC_FLUSH
    assert not careful.broker.auto_create_topic_enable
    assert handy.broker.auto_create_topic_enable
    assert (handy.server.bind_address, handy.broker.broker_ip1) == ("127.0.0.1", "127.0.0.1")


@pytest.mark.parametrize(
    ("assignments", "outcome"),
    [
        ([], "consent with allowAnonymous=true"),
        (["bindAddress=10.0.0.1"], "consent with allowAnonymous=true"),
        (["bindAddress=::"], "consent with allowAnonymous=true"),
        (["authorizationWhitelist=105"], "consent with allowAnonymous=true"),
        (["allowAnonymous=true"], "NO AUTHENTICATION: anyone who can reach 0.0.0.0:10911"),
        (["authenticationEnabled=false"], "NO AUTHENTICATION: anyone who can reach 0.0.0.0:10911"),
        (["authentication_enabled=false"], "NO AUTHENTICATION: anyone who can reach 0.0.0.0:10911"),
        (["authenticationEnabled=true"], None),
        (["bindAddress=127.0.0.1"], None),
        (["bindAddress=::1"], None),
        (["bindAddress=localhost"], None),
    ],
)
def test_a_server_that_others_reach_has_users_or_an_operators_consent(
    assignments: list[str], outcome: str | None
) -> None:
    layer = override_layer(assignments)
    settings = broker_settings(production(), layer)
    if outcome is not None and outcome.startswith("consent"):
        with pytest.raises(ConfigError, match=outcome):
            consent_to_anonymous(settings.server, settings.auth, layer)
    else:
        said = consent_to_anonymous(settings.server, settings.auth, layer)
        assert (said is None) if outcome is None else (said or "").startswith(outcome)


def test_the_environment_is_below_the_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NAMESRV_ADDR", "a:1")
    assert broker_settings(production()).broker.namesrv_addr == "a:1"
    assert broker_settings(production(), Layer("f", {"namesrvAddr": "b:2"})).broker.namesrv_addr == "b:2"
    assert namesrv_settings({}).unused == []


def test_keys_without_meaning_are_collected_and_misspelt_ones_refused() -> None:
    settings = broker_settings(
        production(), Layer("f", {"destroyMapedFileIntervalForcibly": "1", "useEpollNativeSelector": "true"})
    )
    assert settings.unused == ["destroyMapedFileIntervalForcibly", "useEpollNativeSelector"]
    with pytest.raises(
        ConfigError, match=r"f: unknown setting 'flushDiskTyp'; did you mean 'flushDiskType'\?"
    ):
        broker_settings(production(), Layer("f", {"flushDiskTyp": "x"}))


@pytest.mark.parametrize(
    ("key", "meant"),
    [
        ("listenPrt", "'listenPort'"),
        ("listen_prt", "'listenPort'"),
        ("autocreatetopicenabel", "'autoCreateTopicEnable'"),
        ("maxTopicTableByte", "'maxTopicTableBytes'"),
        ("httpPorts", "'httpPort'"),
    ],
)
def test_a_misspelt_key_finds_those_that_are_close(key: str, meant: str) -> None:
    for layer in (Layer("f", {key: "1"}), override_layer([f"{key}=1"])):
        with pytest.raises(ConfigError) as caught:
            broker_settings(production(), layer)
        assert f"unknown setting '{key}'; did you mean {meant}" in str(caught.value)
    with pytest.raises(ConfigError, match=r"f: unknown setting 'maxBrokerz'; did you mean 'maxBrokers'\?$"):
        namesrv_settings({}, Layer("f", {"maxBrokerz": "1"}))
    with pytest.raises(ConfigError, match=r"unknown setting 'colour'$"):
        namesrv_settings({}, Layer("f", {"colour": "1"}))


def test_a_name_server_refuses_what_only_brokers_have() -> None:
    for key in ("flushDiskType", "brokerName", "maxTopics", "metrics_max_series", "fastPortEnable"):
        with pytest.raises(ConfigError, match=f"^f: {key} is a setting of brokers, not of name servers$"):
            namesrv_settings({}, Layer("f", {key: "1"}))
    for key in ("httpEnable", "httpTlsCertPath"):
        says = (
            f"^--set: {key} is a setting of brokers, not of name servers; it has HTTP when httpPort is set$"
        )
        with pytest.raises(ConfigError, match=says):
            namesrv_settings({}, override_layer([f"{key}=1"]))
        with pytest.raises(ConfigError, match=says.replace("--set: ", "")):
            foreign_keys(NamesrvConfig)({key: "1"})
    fitting = {"listenPort": "9877", "logLevel": "DEBUG", "maxConnections": "7", "maxBrokers": "3"}
    settings = namesrv_settings({}, Layer("f", fitting | {"useEpollNativeSelector": "true"}))
    assert (settings.server.listen_port, settings.namesrv.max_brokers) == (9877, 3)
    assert settings.unused == ["useEpollNativeSelector"]


def test_a_running_process_knows_the_keys_that_its_file_may_have() -> None:
    judge = foreign_keys(BrokerConfig, StoreConfig)
    assert judge({"useEpollNativeSelector": "true", "brokerRole": "ASYNC_MASTER"}) == []
    assert judge({"maxConnections": "1", "useEpollNativeSelector": "true"}) == ["maxConnections"]
    for changes, says in (
        ({"traceOm": "x"}, r"^unknown setting 'traceOm'; did you mean 'traceOn'\?$"),
        (
            {"enableDLegerCommitLog": "true"},
            r"^enableDLegerCommitLog=true: DLedger replication is not available in this version$",
        ),
    ):
        with pytest.raises(ConfigError, match=says):
            judge(changes)


@pytest.mark.parametrize(
    ("assignment", "says"),
    [
        ("listenPort=abc", "--set: setting listenPort='abc' is not a whole number"),
        ("listenPort=70000", "--set: setting listenPort=70000 is not a port"),
        ("httpPort=-2", "--set: setting httpPort=-2 is not a port"),
        ("flushDiskType=NOW", "one of ASYNC_FLUSH, SYNC_FLUSH"),
        ("autoCreateTopicEnable=yes", "is not true or false"),
        ("maxConnections=0", "must be positive"),
        ("defaultTopicQueueNums=0", "must be positive"),
        ("deleteWhen=25", "--set: setting deleteWhen='25' is not hours of the day"),
        ("diskMaxUsedSpaceRatio=101", "is not a percentage of 1 to 100"),
        ("logLevel=LOUD", "DEBUG, INFO"),
        (
            "brokerRole=SLAVE",
            "setting brokerId=0 is a master's: a slave (brokerRole=SLAVE) needs one above 0",
        ),
        ("haMasterAddress=here", "setting haMasterAddress=here is not of the form host:port"),
        ("aclEnable=true", "access control is not available"),
        ("authorizationEnabled=true", "authorizationEnabled needs authenticationEnabled"),
        ("enableRemoteEscape=true", "setting enableRemoteEscape needs enableSlaveActingMaster"),
        ("migrateAuthFromV1Enabled=true", "needs authenticationEnabled and plainAclPath"),
        ("defaultMessageRequestMode=PUSH", "setting defaultMessageRequestMode='PUSH' is not PULL or POP"),
        ("novalue", "is not key=value"),
        ("mappedFileSizeCommitLog=0", "--set: setting mappedFileSizeCommitLog=0 must be positive"),
        ("mappedFileSizeCommitLog=2147483648", "must be at most 2147483647"),
        ("mappedFileSizeConsumeQueue=-20", "must be positive"),
        ("mappedFileSizeConsumeQueueExt=0", "must be at least 24"),
        ("mapperFileSizeBatchConsumeQueue=0", "must be positive"),
        ("maxHashSlotNum=0", "must be positive"),
        ("maxIndexNum=1", "setting maxIndexNum=1 must be at least 2"),
        ("maxMessageSize=-1", "must be positive"),
        ("flushIntervalCommitLog=0", "must be positive"),
        ("serverSocketBacklog=99999999999", "must be at most 2147483647"),
        ("storePathRootDir=", "setting storePathRootDir must not be empty"),
        ("brokerName=", "setting brokerName must not be empty"),
        ("haListenPort=70000", "setting haListenPort=70000 is not a port"),
        ("namesrvAddr=ns1", "--set: name server 'ns1' is not of the form host:port"),
        ("namesrvAddr=ns1:9876;ns2:99999", "name server 'ns2:99999'"),
    ],
)
def test_unfit_values_are_one_clear_error(assignment: str, says: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(says)):
        broker_settings(production(), override_layer([assignment]))


def test_a_master_has_the_id_0() -> None:
    settings = broker_settings(production(), Layer("f", {"brokerId": "3", "brokerRole": "ASYNC_MASTER"}))
    assert settings.broker.broker_id == 0
    assert settings.unused == ["brokerId"]


def test_a_master_may_wait_for_its_slaves() -> None:
    master = {
        "brokerRole": "SYNC_MASTER",
        "inSyncReplicas": "2",
        "slaveTimeout": "700",
        "brokerIP2": "10.0.0.9",
    }
    broker = broker_settings(production(), Layer("f", master)).broker
    assert (broker.broker_role, broker.in_sync_replicas, broker.slave_timeout) == ("SYNC_MASTER", 2, 700)
    assert broker.ha_address == "10.0.0.9:10912"
    with pytest.raises(ConfigError, match="f: setting inSyncReplicas=-1 must not be negative"):
        broker_settings(production(), Layer("f", {"inSyncReplicas": "-1"}))


def test_an_ipv6_address_is_told_in_brackets() -> None:
    for text in ("::1", "[::1]"):
        assert broker_settings(DEVELOPMENT, Layer("f", {"brokerIP1": text})).broker.address == "[::1]:10911"


def test_toml_tables_only_group(tmp_path: Path) -> None:
    path = tmp_path / "b.toml"
    path.write_text('brokerName = "b1"\n[store]\nflush_disk_type = "ASYNC_FLUSH"\n[net]\nlistenPort = 0\n')
    settings = broker_settings(production(), file_layer(path))
    assert (settings.broker.broker_name, settings.broker.listen_port) == ("b1", 0)
    assert settings.store.flush_disk_type is FlushDiskType.ASYNC_FLUSH


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("x.toml", b"a = = 1", "is not TOML"),
        ("x.toml", b"[a]\nlistenPort=1\n[b]\nlistenPort=2\n", "given twice"),
        ("x.toml", b"# \xff\xfe", "is not UTF-8"),
    ],
)
def test_unreadable_files(tmp_path: Path, name: str, content: bytes, says: str) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ConfigError, match=says):
        file_layer(tmp_path / name)


def test_a_file_in_another_encoding_is_read_as_java_reads_it(tmp_path: Path) -> None:
    path = tmp_path / "b.conf"
    comment = "# 存储路径".encode("gbk") + b"\xb2\x85\xb2\x85"
    assert len(comment.decode("latin-1").splitlines()) == 2, "to Python a line ends in it"
    assert comment.decode("gbk")
    path.write_bytes(comment + b"\nbrokerName=caf\xe9\r\nregionId=\\ud83d\\ude00\n")
    settings = broker_settings(production(), file_layer(path)).broker
    assert (settings.broker_name, settings.region_id) == ("café", "\N{GRINNING FACE}")


@pytest.mark.parametrize(
    ("values", "address"),
    [
        ({"bindAddress": "127.0.0.1"}, "127.0.0.1:10911"),
        ({"bind_address": "::1"}, "[::1]:10911"),
        ({"bindAddress": "127.0.0.1", "brokerIP1": "192.0.2.7"}, "192.0.2.7:10911"),
        ({"bindAddress": "127.0.0.1", "broker_ip1": "broker.example"}, "broker.example:10911"),
        ({"bindAddress": "0.0.0.0"}, f"{local_address()}:10911"),  # noqa: S104
        ({}, f"{local_address()}:10911"),
    ],
)
def test_clients_are_told_the_address_that_the_broker_listens_at(
    values: dict[str, str], address: str
) -> None:
    assert broker_settings(production(), Layer("f", values)).broker.address == address


def test_tls_has_both_of_rocketmqs_names() -> None:
    for name in ("useTLS", "use_tls", "tls.enable"):
        assert broker_settings(production(), Layer("f", {name: "true"})).server.use_tls
    with pytest.raises(ConfigError, match="f: setting useTLS='perhaps'"):
        broker_settings(production(), Layer("f", {"tls.enable": "perhaps"}))


def test_a_missing_file() -> None:
    with pytest.raises(ConfigError, match=r"cannot read /nowhere/b\.conf: No such file"):
        file_layer("/nowhere/b.conf")


def test_the_shipped_broker_conf_is_accepted() -> None:
    settings = broker_settings(production(), file_layer(CONF / "broker.conf"))
    assert settings.unused == []
    assert (settings.store.delete_when, settings.store.file_reserved_time) == ("04", 48)
    assert settings.store.flush_disk_type is FlushDiskType.ASYNC_FLUSH


_RESOLVERS: dict[str, Any] = {
    "broker": broker_settings,
    "namesrv": namesrv_settings,
    "controller": controller_settings,
}


@pytest.mark.parametrize("server", SERVERS)
def test_what_the_shipped_toml_comments_out_is_the_default(server: str, tmp_path: Path) -> None:
    text = (CONF / f"{server}.toml").read_text()
    (tmp_path / "all.toml").write_text(re.sub(r"^# ([\w.]+ = )", r"\1", text, flags=re.MULTILINE))
    shown = file_layer(tmp_path / "all.toml")
    profile = production() if server == "broker" else {}
    told, defaults = _RESOLVERS[server](profile, shown), _RESOLVERS[server](profile)
    for part in ("server", "broker", "store", "namesrv", "controller", "auth"):
        for spec in dataclasses.fields(getattr(told, part, None) or ServerConfig):
            if "sample" not in spec.metadata and getattr(told, part, None) is not None:
                said, real = (getattr(getattr(each, part), spec.name) for each in (told, defaults))
                assert said == real, spec.name


def test_a_controller_listens_where_brokers_are_told_to_find_it() -> None:
    peers = {"controllerDLegerPeers": "n0-10.0.0.1:9878"}
    assert controller_settings({}).server.listen_port == 19876
    assert controller_settings({}, Layer("f", peers)).server.listen_port == 9878
    assert controller_settings({}, Layer("f", peers | {"listenPort": "7"})).server.listen_port == 7


def test_a_name_server_with_a_controller_needs_its_address() -> None:
    on = {"enableControllerInNamesrv": "true"}
    with pytest.raises(ConfigError, match="needs controllerDLegerPeers"):
        namesrv_settings({}, Layer("f", on))
    three = {"controllerDLegerPeers": "n0-a:1;n1-b:2;n2-c:3"}
    with pytest.raises(ConfigError, match="the state of a single controller"):
        namesrv_settings({}, Layer("f", on | three))
    assert namesrv_settings({}, Layer("f", three)).controller is None, "nobody asks for one"
    settings = namesrv_settings({}, Layer("f", on | {"controllerDLegerPeers": "n0-a:4"}))
    assert settings.controller is not None
    assert (settings.server.listen_port, settings.controller.server.listen_port) == (9876, 4)
