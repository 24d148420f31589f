"""TLS of the servers: plain and encrypted peers on one port, endless handshakes, garbage, changed certificates."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import os
import ssl
import time
import weakref
from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import trustme
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)
from cryptography.x509 import (
    CertificateRevocationListBuilder,
    RevokedCertificateBuilder,
    load_pem_x509_certificate,
)

from mqspark.errors import ConfigError, ProtocolError
from mqspark.protocol.command import Command, encode_request, encode_response
from mqspark.protocol.connection import Connection
from mqspark.protocol.session import Session
from mqspark_server.net import handshakes, servertls, tlsgate
from mqspark_server.net.addresses import bind_socket
from mqspark_server.net.guards import ConnectionLimits
from mqspark_server.net.remotingserver import RemotingServer
from mqspark_server.net.servertls import MAX_HANDSHAKE_BYTES, STATE_BYTES, Certificates, ServerTls
from mqspark_server.settings.settings import Layer, broker_settings, file_layer, namesrv_settings
from tests.support.toycore import ToyCore
from tests.support.waiting import eventually_async

HOST = "127.0.0.1"


@pytest.fixture(params=[False, True], ids=["asyncio", "uvloop"])
def anyio_backend(request: pytest.FixtureRequest) -> tuple[str, dict[str, bool]]:
    return "asyncio", {"use_uvloop": request.param}


class Echo(ToyCore):
    """Answers with the body of the request."""

    def __init__(self) -> None:
        self.seen: list[int] = []

    def received(self, session: Session, commands: Iterable[Command]) -> None:
        for command in commands:
            self.seen.append(command.opaque)
            if not command.is_oneway:
                session.send(encode_response(command.opaque, 0, body=bytes(command.body)))


@dataclass
class Secured:
    server: RemotingServer
    core: Echo
    port: int
    authority: trustme.CA
    folder: Path
    writers: list[asyncio.StreamWriter] = field(default_factory=list)

    def trust(self) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)  # reads no certificates of the system: 0.1 s each
        self.authority.configure_trust(context)
        return context

    async def connect(
        self, context: ssl.SSLContext | None
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        reader, writer = await asyncio.open_connection(HOST, self.port, ssl=context)
        self.writers.append(writer)
        return reader, writer


@contextlib.asynccontextmanager
async def serving(
    folder: Path,
    *,
    required: bool = False,
    client_auth: str = "none",
    revoking: bool = False,
    limits: ConnectionLimits | None = None,
) -> AsyncIterator[Secured]:
    authority = trustme.CA()
    authority.cert_pem.write_to_path(folder / "ca.pem")
    lists = folder / "revoked.pem" if revoking else None
    if lists is not None:
        lists.write_bytes(revoked(authority))
    authority.issue_cert(HOST).private_key_and_cert_chain_pem.write_to_path(folder / "server.pem")
    trusted = "" if client_auth == "none" else str(folder / "ca.pem")
    settings = ServerTls(
        str(folder / "server.pem"), "", "", trusted, client_auth, required=required, crl_path=str(lists or "")
    )
    core, outbox = Echo(), list[Session]()
    server = RemotingServer(core, outbox, name="echo", tls=Certificates(settings), limits=limits)
    listener = await server.listen(bind_socket(HOST, 0))
    server.start()
    secured = Secured(server, core, listener.port, authority, folder)
    try:
        yield secured
    finally:
        for writer in secured.writers:
            writer.transport.abort()
        await server.close(abruptly=True)


async def answers(reader: asyncio.StreamReader, count: int) -> list[Command]:
    wire, got = Connection(), list[Command]()
    while len(got) < count:
        data = await asyncio.wait_for(reader.read(1 << 16), 30)
        assert data, f"{len(got)} of {count} answers"
        got += wire.receive_data(data)
    return got


async def is_closed(reader: asyncio.StreamReader) -> bool:
    with contextlib.suppress(ConnectionError):
        while await asyncio.wait_for(reader.read(1 << 16), 30):
            pass
    return True


def revoked(authority: trustme.CA, *serial_numbers: int, days: int = 1) -> bytes:
    """A list of revoked certificates that is good for so many days."""
    name = load_pem_x509_certificate(authority.cert_pem.bytes()).subject
    now = datetime.now(UTC)
    made = CertificateRevocationListBuilder(name, now - timedelta(days=30), now + timedelta(days=days))
    for number in serial_numbers:
        entry = RevokedCertificateBuilder(number, now - timedelta(days=1)).build()
        made = made.add_revoked_certificate(entry)
    key: Any = load_pem_private_key(authority.private_key_pem.bytes(), None)
    return made.sign(key, SHA256()).public_bytes(Encoding.PEM)


BODIES = [b"", b"x", bytes(70_000), os.urandom(3 << 20)]


async def test_plain_and_encrypted_peers_on_one_port(tmp_path: Path) -> None:
    async with serving(tmp_path) as secured:
        for context in (None, secured.trust()):
            reader, writer = await secured.connect(context)
            for opaque, body in enumerate(BODIES):
                writer.write(encode_request(1, opaque, None, body))
            got = await answers(reader, len(BODIES))
            assert [(each.opaque, bytes(each.body)) for each in got] == list(enumerate(BODIES))


async def test_plain_peers_are_refused_when_tls_is_required(tmp_path: Path) -> None:
    async with serving(tmp_path, required=True) as secured:
        reader, writer = await secured.connect(None)
        writer.write(encode_request(1, 1))
        assert await is_closed(reader)
        assert secured.core.seen == []
        reader, writer = await secured.connect(secured.trust())
        writer.write(encode_request(1, 2))
        assert (await answers(reader, 1))[0].opaque == 2


@pytest.mark.parametrize("client_auth", ["optional", "require"])
async def test_certificates_of_clients(tmp_path: Path, client_auth: str) -> None:
    async with serving(tmp_path, client_auth=client_auth) as secured:
        mine, foreign, nobody = secured.trust(), secured.trust(), secured.trust()
        secured.authority.issue_cert("client@example.com").configure_cert(mine)
        trustme.CA().issue_cert("client@example.com").configure_cert(foreign)
        accepted = [mine] if client_auth == "require" else [mine, nobody]
        for context in accepted:
            reader, writer = await secured.connect(context)
            writer.write(encode_request(1, 1))
            await answers(reader, 1)
        secured.core.seen.clear()
        for context in [foreign] if client_auth == "optional" else [foreign, nobody]:
            with contextlib.suppress(OSError):  # TLS 1.3: the client learns it with its first read
                reader, writer = await secured.connect(context)
                writer.write(encode_request(1, 9))
                assert await is_closed(reader)
        assert secured.core.seen == []


async def test_a_revoked_certificate_is_refused_as_soon_as_the_list_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(servertls, "RELOAD_CHECK_S", 0.0)
    async with serving(tmp_path, client_auth="require", revoking=True) as secured:
        alice, bob = secured.trust(), secured.trust()
        lost = secured.authority.issue_cert("alice@example.com")
        lost.configure_cert(alice)
        secured.authority.issue_cert("bob@example.com").configure_cert(bob)
        serial_number = load_pem_x509_certificate(lost.cert_chain_pems[0].bytes()).serial_number

        async def is_let_in(context: ssl.SSLContext) -> bool:
            with contextlib.suppress(OSError):  # TLS 1.3: the client learns it with its first read
                reader, writer = await secured.connect(context)
                writer.write(encode_request(1, 1))
                with contextlib.suppress(AssertionError):
                    return bool(await answers(reader, 1))
            return False

        def list_says(content: bytes) -> None:
            (tmp_path / "revoked.pem").write_bytes(content)

        assert [await is_let_in(each) for each in (alice, bob)] == [True, True]
        list_says(revoked(secured.authority, serial_number))
        assert [await is_let_in(each) for each in (alice, bob)] == [False, True]
        for broken in (b"half written", secured.authority.cert_pem.bytes()):
            list_says(broken)
            assert [await is_let_in(each) for each in (alice, bob)] == [False, True]
        assert "not used yet: tls.server.crlPath" in caplog.text
        for of_no_use in (revoked(secured.authority, days=-1), revoked(trustme.CA())):
            list_says(of_no_use)
            assert [await is_let_in(each) for each in (alice, bob)] == [False, False]
        list_says(revoked(secured.authority))
        assert [await is_let_in(each) for each in (alice, bob)] == [True, True]


async def test_bytes_that_come_one_by_one(tmp_path: Path) -> None:
    async with serving(tmp_path) as secured:
        reader, writer = await secured.connect(None)
        incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        client = secured.trust().wrap_bio(incoming, outgoing, server_hostname=HOST)

        async def pass_on() -> None:
            for number in outgoing.read():
                writer.write(bytes([number]))
                await writer.drain()

        while True:
            try:
                client.do_handshake()
                break
            except ssl.SSLWantReadError:
                await pass_on()
                incoming.write(await asyncio.wait_for(reader.read(1 << 16), 30))
        client.write(encode_request(1, 1, None, b"with the end of the handshake"))
        await pass_on()
        client.write(encode_request(1, 2, oneway=True) + encode_request(1, 3, None, b"last"))
        await pass_on()
        wire, got = Connection(), list[Command]()
        while len(got) < 2:
            incoming.write(await asyncio.wait_for(reader.read(1 << 16), 30))
            with contextlib.suppress(ssl.SSLWantReadError):
                got += wire.receive_data(client.read(1 << 16))
        assert [bytes(each.body) for each in got] == [b"with the end of the handshake", b"last"]
        assert secured.core.seen == [1, 2, 3]


async def test_requests_right_before_the_end_are_handled(tmp_path: Path) -> None:
    """A consumer's last offsets are one-way requests right before it closes."""
    async with serving(tmp_path) as secured:
        _, writer = await secured.connect(secured.trust())
        writer.write(b"".join(encode_request(1, opaque, oneway=True) for opaque in range(300)))
        writer.close()
        await eventually_async(lambda: len(secured.core.seen) == 300)
        # The peer waits for our end of the stream for 30 s before it closes the connection itself.
        await eventually_async(lambda: secured.server.connections == 0, "the end", 15)


@pytest.mark.parametrize(
    "sent",
    [
        b"\x16\xff" + os.urandom(399),  # with 3 it could be the beginning of a record
        b"\x16\x03\x01\x00\x05hello",
        b"\x16\x03\x01\x02\x00" + bytes(600),
    ],
    ids=["random", "no hello", "zeros"],
)
async def test_garbage_ends_its_own_connection_alone(tmp_path: Path, sent: bytes) -> None:
    async with serving(tmp_path) as secured:
        reader, writer = await secured.connect(secured.trust())
        bad_reader, bad_writer = await secured.connect(None)
        bad_writer.write(sent)
        assert await is_closed(bad_reader)
        assert secured.server.counts.malformed == 1
        writer.write(encode_request(1, 1))
        await answers(reader, 1)


async def test_an_answer_that_cannot_be_encrypted_ends_its_own_connection_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with serving(tmp_path) as secured:
        reader, writer = await secured.connect(secured.trust())
        other_reader, other_writer = await secured.connect(None)
        writer.write(encode_request(1, 1))
        await answers(reader, 1)

        def fail(stream: servertls.TlsStream, buffers: object) -> bytes:
            raise ProtocolError("TLS: bad write")

        monkeypatch.setattr(servertls.TlsStream, "encrypt", fail)
        writer.write(encode_request(1, 2))
        other_writer.write(encode_request(1, 3))
        assert (await answers(other_reader, 1))[0].opaque == 3
        assert await is_closed(reader)


async def test_a_handshake_has_a_time_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handshakes, "HANDSHAKE_S", 0.1)
    async with serving(tmp_path) as secured:
        reader, writer = await secured.connect(None)
        writer.write(b"\x16\x03\x01\x02\x00")
        assert await is_closed(reader)
        assert secured.server.counts.dropped == 1


async def test_a_handshake_has_a_size_limit(tmp_path: Path) -> None:
    """A ClientHello in fragments, of which OpenSSL would take more."""
    async with serving(tmp_path) as secured:
        reader, writer = await secured.connect(None)
        hello = b"\x01" + (MAX_HANDSHAKE_BYTES - 1).to_bytes(3, "big") + bytes(2 * MAX_HANDSHAKE_BYTES)
        for start in range(0, len(hello), 16_000):
            fragment = hello[start : start + 16_000]
            writer.write(b"\x16\x03\x01" + len(fragment).to_bytes(2, "big") + fragment)
        assert await is_closed(reader)
        assert secured.server.counts.malformed == 1


async def test_unfinished_handshakes_have_a_limit_in_bytes(tmp_path: Path) -> None:
    """OpenSSL keeps 48 KB for each, and more for a long hello: 2 GB for 10,000 connections that nobody knows."""
    limits = ConnectionLimits(max_stranger_bytes=20 * STATE_BYTES)
    async with serving(tmp_path, limits=limits) as secured:
        strangers, most = secured.server.partial.strangers, 0
        hello = b"\x01" + (100_000).to_bytes(3, "big") + bytes(16_000)
        for _ in range(40):
            _, writer = await secured.connect(None)
            writer.write(b"\x16\x03\x01" + len(hello).to_bytes(2, "big") + hello)
            await asyncio.sleep(0)
            most = max(most, strangers.total)
        await eventually_async(lambda: secured.server.counts.dropped >= 20)
        assert max(most, strangers.total) <= limits.max_stranger_bytes + STATE_BYTES
        reader, writer = await secured.connect(secured.trust())
        writer.write(encode_request(1, 1))
        await answers(reader, 1)


async def test_a_first_record_that_is_not_complete_costs_its_bytes_alone(tmp_path: Path) -> None:
    async with serving(tmp_path) as secured:
        for sent in (b"\x16", b"\x16\x03\x01\x40\x00\x01"):
            _, writer = await secured.connect(None)
            writer.write(sent)
        await eventually_async(lambda: secured.server.partial.strangers.total == 7)


async def test_the_end_of_a_handshake_frees_its_bytes(tmp_path: Path) -> None:
    async with serving(tmp_path) as secured:
        reader, writer = await secured.connect(secured.trust())
        writer.write(encode_request(1, 1))
        await answers(reader, 1)
        assert (secured.server.partial.strangers.total, secured.server.partial.budget.total) == (0, 0)


async def test_the_state_of_a_connection_is_freed_when_it_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not by the garbage collector, which visits old objects seldom: what was dropped would take memory until then."""
    made: list[weakref.ref[servertls.TlsStream]] = []

    class Watched(servertls.TlsStream):
        __slots__ = ("__weakref__",)

        def __init__(self, context: ssl.SSLContext) -> None:
            super().__init__(context)
            made.append(weakref.ref(self))

    monkeypatch.setattr(tlsgate, "TlsStream", Watched)
    async with serving(tmp_path) as secured:
        gc.disable()
        try:
            reader, writer = await secured.connect(secured.trust())
            writer.write(encode_request(1, 1))
            await answers(reader, 1)
            writer.transport.abort()
            await eventually_async(lambda: secured.server.connections == 0)
            assert [each() for each in made] == [None]
        finally:
            gc.enable()


def unreadable(authority: trustme.CA) -> bytes:
    """A certificate that is trusted, with its key, and with an address that is not UTF-8."""
    issuer = load_pem_x509_certificate(authority.cert_pem.bytes())
    key, now = ec.generate_private_key(ec.SECP256R1()), datetime.now(UTC)
    signer: Any = load_pem_private_key(authority.private_key_pem.bytes(), None)
    made = (
        x509.CertificateBuilder(issuer.subject, x509.Name([]), key.public_key(), x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName("ADDRESS")]), critical=False)
    ).sign(signer, SHA256())
    asked_for = made.tbs_certificate_bytes.replace(b"ADDRESS", b"\xff" * 7)
    signature = b"\0" + signer.sign(asked_for, ec.ECDSA(SHA256()))
    ecdsa_with_sha256 = bytes.fromhex("300a06082a8648ce3d040302")
    content = asked_for + ecdsa_with_sha256 + b"\x03" + bytes([len(signature)]) + signature
    der = b"\x30\x82" + len(content).to_bytes(2, "big") + content
    pem = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    return pem + ssl.DER_cert_to_PEM_cert(der).encode()


async def test_a_certificate_that_cannot_be_read_names_nobody(tmp_path: Path) -> None:
    async with serving(tmp_path, client_auth="require") as secured:
        (tmp_path / "odd.pem").write_bytes(unreadable(secured.authority))
        context = secured.trust()
        context.load_cert_chain(tmp_path / "odd.pem")
        reader, writer = await secured.connect(context)
        writer.write(encode_request(1, 1))
        await answers(reader, 1)


async def test_a_handshake_that_fails_unforeseen_leaves_others_their_turns() -> None:
    class Connection:
        def __init__(self, name: str) -> None:
            self.name = name

        def shake_hands(self) -> None:
            served.append(self.name)
            if self.name == "bad":
                raise MemoryError

    served: list[str] = []
    loop, failed = asyncio.get_running_loop(), list[object]()
    loop.set_exception_handler(lambda _, context: failed.append(context["exception"]))
    queue = handshakes.Handshakes[Connection](loop, lambda *_: None, turn_s=1.0)
    for name in ("good", "bad", "other"):
        queue.schedule(Connection(name))
    await eventually_async(lambda: served == ["good", "bad", "other"])
    queue.schedule(Connection("later"))
    await eventually_async(lambda: served[-1] == "later")
    assert [type(error) for error in failed] == [MemoryError]


async def test_a_session_of_a_certificate_is_not_resumed(tmp_path: Path) -> None:
    """Who resumes a session is not verified again, however long ago the certificate or the list ended."""
    async with serving(tmp_path, client_auth="require") as secured:
        context = secured.trust()
        secured.authority.issue_cert("client@example.com").configure_cert(context)
        reader, writer = await secured.connect(context)
        writer.write(encode_request(1, 1))
        await answers(reader, 1)
        session = writer.get_extra_info("ssl_object").session
        assert not session.has_ticket


async def test_many_handshakes_leave_others_their_turns(tmp_path: Path) -> None:
    """What is counted is the handshakes between two answers to somebody else."""
    async with serving(tmp_path) as secured:
        reader, writer = await secured.connect(secured.trust())
        at_once, steps = 60, 0
        most, since = 0, 0
        shake_hands = servertls.TlsStream.shake_hands

        def counted(stream: servertls.TlsStream) -> bool:
            nonlocal steps
            steps += 1
            end = time.monotonic() + 0.002  # uvloop's time stands still within a callback
            while time.monotonic() < end:
                pass
            return shake_hands(stream)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(servertls.TlsStream, "shake_hands", counted)
            patch.setattr("mqspark_server.net.handshakes.HANDSHAKE_S", 60.0)
            others = [asyncio.ensure_future(secured.connect(secured.trust())) for _ in range(at_once)]
            while not all(each.done() for each in others):
                writer.write(encode_request(1, 1))
                await answers(reader, 1)
                most, since = max(most, steps - since), steps
            await asyncio.gather(*others)
        assert steps >= at_once
        assert most <= at_once // 2


async def test_a_changed_certificate_is_used_for_new_connections(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(servertls, "RELOAD_CHECK_S", 0.0)
    caplog.set_level(logging.INFO)
    async with serving(tmp_path) as secured:
        old_reader, old_writer = await secured.connect(secured.trust())
        first = old_writer.get_extra_info("peercert")["serialNumber"]
        (tmp_path / "server.pem").write_text("half written")
        _, writer = await secured.connect(secured.trust())
        assert writer.get_extra_info("peercert")["serialNumber"] == first
        assert "not used yet" in caplog.text
        secured.authority.issue_cert(HOST).private_key_and_cert_chain_pem.write_to_path(
            tmp_path / "server.pem"
        )
        reader, writer = await secured.connect(secured.trust())
        assert writer.get_extra_info("peercert")["serialNumber"] != first
        for each_reader, each_writer in ((old_reader, old_writer), (reader, writer)):
            each_writer.write(encode_request(1, 1))
            await answers(each_reader, 1)


async def test_old_versions_are_refused(tmp_path: Path) -> None:
    async with serving(tmp_path) as secured:
        context = secured.trust()
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.maximum_version = ssl.TLSVersion.TLSv1_2
        reader, writer = await secured.connect(context)
        writer.write(encode_request(1, 1))
        await answers(reader, 1)
    settings = ServerTls(str(tmp_path / "server.pem"), "", "", "", "none", required=False)
    assert settings.context().minimum_version == ssl.TLSVersion.TLSv1_2


@pytest.mark.parametrize(
    ("values", "key"),
    [
        ({"tls.server.mode": "on"}, "tls.server.mode"),
        ({"tls.server.mode": "enforcing"}, "tls.server.mode"),
        ({"tls.server.need.client.auth": "yes"}, "tls.server.need.client.auth"),
        (
            {"tls.server.need.client.auth": "require", "tls.server.certPath": "x"},
            "tls.server.need.client.auth",
        ),
        ({"tls.server.crlPath": "x", "tls.server.certPath": "x"}, "tls.server.crlPath"),
    ],
)
def test_settings_that_contradict_each_other(values: dict[str, str], key: str) -> None:
    with pytest.raises(ConfigError) as caught:
        namesrv_settings({}, Layer("namesrv.conf", values))
    assert caught.value.key == key


def test_files_that_cannot_be_used_are_named(tmp_path: Path) -> None:
    for name in ("missing.pem", "empty.pem"):
        path = tmp_path / name
        if name == "empty.pem":
            path.touch()
        settings = namesrv_settings({}, Layer("namesrv.conf", {"tls.server.certPath": str(path)}))
        assert settings.server.server_tls is not None
        with pytest.raises(ConfigError, match=f"tls.server.certPath={path}"):
            Certificates(settings.server.server_tls)


def test_toml_may_group_the_keys(tmp_path: Path) -> None:
    path = tmp_path / "broker.toml"
    path.write_text(
        '[tls.server]\ncertPath = "a.pem"\nneed.client.auth = "optional"\ntrustCertPath = "ca.pem"\n'
    )
    server = broker_settings({}, file_layer(path), use_environment=False).server
    assert (server.tls_server_cert_path, server.tls_server_need_client_auth) == ("a.pem", "optional")
    assert server.server_tls is not None
    assert not server.server_tls.required


def test_a_password_is_not_shown() -> None:
    values = {"tls.server.keyPassword": "canary", "tls.client.keyPassword": "canary"}
    assert "canary" not in repr(broker_settings({}, Layer("broker.conf", values), use_environment=False))
