"""The log as a target: a peer, or a damaged disk, that causes a line an event fills a disk, and one that chooses the
text writes lines of its own."""

from __future__ import annotations

import asyncio
import io
import logging
import struct
from pathlib import Path

import pytest

from mqspark.base.logs import LOG_PERIOD_S, OneLine, Sparing, escaping, printable, sparing, without_secrets
from mqspark.errors import BrokerError
from mqspark.protocol.command import encode_request
from mqspark_server import dev_cluster
from mqspark_server.net.addresses import bind_socket
from mqspark_server.net.guards import ConnectionLimits
from mqspark_server.net.remotingserver import RemotingServer
from mqspark_server.tiered.archivetier import told_to_clients
from tests.support.toycore import ToyCore


async def test_refused_and_garbling_peers_cost_one_line_of_a_kind(caplog: pytest.LogCaptureFixture) -> None:
    server = RemotingServer(ToyCore(), [], name="toy", limits=ConnectionLimits(max_connections=2))
    listener = await server.listen(bind_socket("127.0.0.1", 0))
    with caplog.at_level(logging.INFO):
        for _ in range(30):
            reader, writer = await asyncio.open_connection("127.0.0.1", listener.port)
            writer.write(struct.pack(">II", 1 << 30, 16) + b"\0" * 16)
            await reader.read()
            writer.close()
        idle = [await asyncio.open_connection("127.0.0.1", listener.port) for _ in range(2)]
        for _, writer in idle:
            writer.write(encode_request(34, 1, None))  # who has said nothing would go for others
        await asyncio.sleep(0.3)
        for _ in range(30):
            reader, writer = await asyncio.open_connection("127.0.0.1", listener.port)
            await asyncio.gather(reader.read(), return_exceptions=True)
            writer.close()
    for _, writer in idle:
        writer.close()
    await server.close()
    lines = [record.getMessage() for record in caplog.records if record.name == "mqspark.tcp"]
    assert len(lines) == 2, lines
    assert server.counts.refused == 30
    assert server.counts.malformed == 30


def test_a_fault_that_a_peer_can_repeat_is_told_once(caplog: pytest.LogCaptureFixture) -> None:
    log = sparing("mqspark.protocol.dispatch")
    for number in range(50):
        try:
            raise RuntimeError("x\n2026-01-01 CRITICAL broker: all is lost" + "y" * 100_000)
        except RuntimeError:
            log.exception("request %d from %s failed", number, "127.0.0.1:5")
    (record,) = caplog.records
    text = OneLine("%(message)s").format(record)
    assert "all is lost" in text
    assert "\n2026-01-01" not in text
    assert len(text) < 5_000


def test_what_was_left_out_is_counted() -> None:
    quiet = Sparing(2)
    shown = []
    for number in range(10):
        record = logging.LogRecord(
            "x", logging.WARNING, "", 0, "peer %s sent %d bytes", ("a\nb", number), None
        )
        record.created = 1000.0
        if quiet.filter(record):
            shown.append(record.getMessage())
    assert shown == ["peer a\\nb sent 0 bytes", "peer a\\nb sent 1 bytes"]
    record = logging.LogRecord("x", logging.WARNING, "", 0, "peer %s sent %d bytes", ("c", 10), None)
    record.created = 1000.0 + LOG_PERIOD_S
    assert quiet.filter(record)
    assert record.getMessage() == "peer c sent 10 bytes (and 8 more like the last)"


def test_kinds_do_not_grow_without_bound() -> None:
    quiet = Sparing()

    def is_logged(number: int) -> bool:
        record = logging.LogRecord("x", logging.WARNING, "", 0, f"template {number}", (), None)
        record.created = 1000.0
        return quiet.filter(record)

    assert [is_logged(number) for number in (0, 0)] == [True, False]
    assert all(is_logged(number) for number in range(1, 1_001))
    assert is_logged(0), "the first of a thousand other kinds is forgotten"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("a\r\nb", "a\\r\\nb"),
        ("\x1b[2J", "\\x1b[2J"),
        ("\u2028\u202e", "\\u2028\\u202e"),
        ("\udc80", "\\udc80"),
        ("Zürich 上海", "Zürich 上海"),
        ("z" * 1000, "z" * 300 + "... (1000 characters)"),
    ],
)
def test_text_of_strangers_stays_in_its_line(text: str, shown: str) -> None:
    assert printable(text) == shown


def test_lines_of_modules_that_know_nothing_of_it_stay_lines() -> None:
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(OneLine("%(message)s"))
    logger = logging.Logger("plain")
    logger.addHandler(handler)
    logger.warning("topic %s", "a\nERROR b")
    assert stream.getvalue() == "topic a\\nERROR b\n"


@pytest.mark.parametrize(
    "name",
    [
        "mqspark.tcp",
        "mqspark.http",
        "mqspark.replication",
        "mqspark.flush",
        "mqspark.registrar",
        "mqspark.routes",
        "mqspark.protocol.dispatch",
        "mqspark.broker.timer.delays",
        "mqspark.broker.pop.revive",
        "mqspark.broker.send.replies",
        "mqspark.broker.timer.timerservice",
        "mqspark.broker.transaction.transactions",
    ],
)
def test_whatever_peers_and_disks_can_reach_is_sparing(name: str) -> None:
    assert dev_cluster  # with which all of them are loaded
    assert any(isinstance(each, Sparing) for each in logging.getLogger(name).filters)
    assert sparing(name) is logging.getLogger(name)
    assert len([each for each in logging.getLogger(name).filters if isinstance(each, Sparing)]) == 1


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("cannot read s3://AKIA:p%40ss@bucket/t: 403", "cannot read s3://***@bucket/t: 403"),
        ("https://x.blob/t?sv=1&sig=abc%2F&se=2", "https://x.blob/t?sv=1&sig=***&se=2"),
        ("aws_secret_access_key=abc, region=eu", "aws_secret_access_key=***, region=eu"),
        ("user a@b.example has 3 errors", "user a@b.example has 3 errors"),
    ],
)
def test_errors_of_libraries_lose_their_secrets(text: str, shown: str) -> None:
    assert without_secrets(text) == shown


def test_a_consumer_is_not_told_where_the_archive_is() -> None:
    url = "s3://key:secret@bucket/orders"
    told = told_to_clients(f"GET {url}/_delta_log/0.json failed: 403", url)
    assert "bucket" not in told
    assert "secret" not in told
    assert told_to_clients("connection refused", url) == "the archive cannot be read: connection refused"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("password='x y' failed", "password=*** failed"),
        ('secret="a;b", region=eu', "secret=***, region=eu"),
        ("token='unterminated", "token=***"),
        ("key='kept'", "key='kept'"),
    ],
)
def test_secrets_in_quotes_are_secrets(text: str, shown: str) -> None:
    assert without_secrets(text) == shown


def test_a_traceback_has_no_line_of_a_strangers_choice() -> None:
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(OneLine("%(message)s"))
    logger = logging.Logger("plain")
    logger.addHandler(handler)
    try:
        raise ValueError("x\n2026-01-01 INFO root logged in\x1b[2J")
    except ValueError:
        logger.exception("a request failed")
    lines = stream.getvalue().splitlines()
    assert lines[-1] == "ValueError: x\\n2026-01-01 INFO root logged in\\x1b[2J"


CLIENTS = sorted(
    path for folder in ("mqspark/client", "datasource/pyspark_pymq") for path in Path(folder).rglob("*.py")
)


def test_loggers_of_clients_escape() -> None:
    """They write into the log of an application, whatever formats it."""
    assert len(CLIENTS) > 80
    assert not [path for path in CLIENTS if "logging.getLogger" in path.read_text()]


def test_a_brokers_remark_is_no_line_of_the_applications_log(caplog: pytest.LogCaptureFixture) -> None:
    logger = escaping("mqspark.client.escaped")
    assert escaping("mqspark.client.escaped") is logger
    assert len(logger.filters) == 1
    error = BrokerError(1, "x\nERROR all is lost\x1b[2J" + "y" * 100_000, address="b:1")
    for _ in range(3):
        logger.warning("cannot pull %s: %s", ["q1", "q2"], error)
    assert len(caplog.messages) == 3, "it is not sparing: an application decides about that"
    assert {len(message.splitlines()) for message in caplog.messages} == {1}
    assert "\\nERROR all is lost\\x1b[2J" in caplog.messages[0]
    assert len(caplog.messages[0]) < 1_000
