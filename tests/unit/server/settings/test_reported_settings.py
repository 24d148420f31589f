"""GET_BROKER_CONFIG and GET_NAMESRV_CONFIG show every key that RocketMQ's do, with values that hold here."""

from __future__ import annotations

import json
from pathlib import Path

from mqspark.base.config import known_keys
from mqspark.broker.config import BrokerConfig
from mqspark.namesrv.config import NamesrvConfig
from mqspark.protocol.codes import RequestCode
from mqspark.store.config import StoreConfig
from mqspark_server.settings.reported import more_of_broker, more_of_namesrv
from mqspark_server.settings.rocketmq_keys import REFUSED, WITHOUT_EFFECT
from mqspark_server.settings.serverconfig import ServerConfig
from tests.unit.broker_kit import Bench, namesrv_peer

KEYS: dict[str, list[str]] = json.loads(Path("tests/golden/vectors/config_keys.json").read_text())
"""What a broker of RocketMQ 5.5.1 and a name server of 5.5.0 show."""

SHELL_KEYS = {"bindAddress", "serverChannelMaxIdleTimeSeconds", "serverSocketBacklog", "useTLS"}
SHELL_KEYS |= {"writeBufferHighWaterMark"}


def shown(body: bytes | memoryview) -> dict[str, str]:
    pairs = (line.partition("=") for line in bytes(body).decode().splitlines())
    return {key: value for key, _, value in pairs}


def test_a_broker_shows_every_key(tmp_path: Path) -> None:
    bench = Bench(tmp_path, start=False)
    bench.shell_settings = more_of_broker(ServerConfig(bind_address="127.0.0.1"), ("127.0.0.1", 10914))
    bench.open()
    answer = shown(bench.peer().ask(RequestCode.GET_BROKER_CONFIG).body)
    assert set(KEYS["broker"]) <= answer.keys()
    assert (answer["bindAddress"], answer["brokerName"], answer["brokerIP2"]) == (
        "127.0.0.1",
        "b-a",
        "127.0.0.1",
    )
    exporter = [answer[f"metrics{key}"] for key in ("ExporterType", "PromExporterHost", "PromExporterPort")]
    assert exporter == ["PROM", "127.0.0.1", "10914"]


def test_a_name_server_shows_every_key(tmp_path: Path) -> None:
    file = tmp_path / "namesrv.conf"
    _, _, peer = namesrv_peer(shell_settings=more_of_namesrv(ServerConfig(), 9876, file))
    answer = shown(peer.ask(RequestCode.GET_NAMESRV_CONFIG).body)
    assert set(KEYS["namesrv"]) <= answer.keys()
    assert (answer["listenPort"], answer["configStorePath"]) == ("9876", str(file))


def test_no_shown_value_claims_what_is_refused_and_no_secret_is_shown() -> None:
    server = ServerConfig(tls_server_key_password="hidden", http_tls_key_password="hidden")  # noqa: S106 - a probe
    of_broker, of_namesrv = more_of_broker(server, None), more_of_namesrv(server, 9876, None)
    for key, value in (of_broker | of_namesrv).items():
        assert key not in REFUSED or not REFUSED[key].refuses(value), key
        assert "hidden" not in value
    own = known_keys(BrokerConfig).keys() | known_keys(StoreConfig).keys()
    assert of_broker.keys() - SHELL_KEYS - {"listenPort"} <= (WITHOUT_EFFECT.keys() | REFUSED.keys()) - own
    assert of_broker["metricsExporterType"] == "DISABLE"
    assert not of_namesrv.keys() & known_keys(NamesrvConfig).keys()
