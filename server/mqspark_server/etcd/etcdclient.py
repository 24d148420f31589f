"""What a controller needs from etcd: leases, ranges and transactions over its JSON gateway (etcd 3.4 and newer).

A request goes to the endpoint that answered last, then to the others; each has ``REQUEST_S``, which counts from the
connection to the last byte of the answer. A request that failed may have taken effect all the same. Facts: https://etcd.io/docs/v3.5/dev-guide/api_grpc_gateway/.
"""

from __future__ import annotations

import base64
import importlib.util
import json
import ssl
import threading
import time
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, NamedTuple

from mqspark.controller.config import ControllerConfig
from mqspark.errors import ConfigError

if TYPE_CHECKING:
    import httpcore

REQUEST_S = 2.0
_SILENT_S = 1.0
"""Without a byte."""
_WRITE_BYTES = 16 << 10
"""Bytes written at once. They bound how long a peer that reads slowly may delay a request beyond its limit."""
MAX_ANSWER_BYTES = 4 << 20
_LEASE_NOT_FOUND = "requested lease not found"


class EtcdUnavailable(OSError):
    """No endpoint answered in time, or not as etcd does. A change may have taken effect."""


class Found(NamedTuple):
    """A key with its value."""

    value: bytes
    create_revision: int
    mod_revision: int
    lease: int


Operation = dict[str, Any]


def compare(key: str, target: str, value: int) -> Operation:
    """``target``: ``create_revision`` or ``mod_revision``; 0 for a key that is not there."""
    return {
        "key": _coded(key),
        "target": target.upper().removesuffix("_REVISION"),
        target: str(value),
        "result": "EQUAL",
    }


def put(key: str, value: bytes, lease: int = 0) -> Operation:
    return {"requestPut": {"key": _coded(key), "value": _coded(value), "lease": str(lease)}}


def get(key: str) -> Operation:
    return {"requestRange": {"key": _coded(key)}}


class Etcd:
    """Blocks; may be used by several threads."""

    def __init__(
        self,
        endpoints: list[str],
        tls: ssl.SSLContext | None,
        network: httpcore.NetworkBackend | None = None,
    ) -> None:
        """``network``: the sockets by default."""
        import httpcore

        self._endpoints = [endpoint.rstrip("/") for endpoint in endpoints]
        self._errors = (
            httpcore.TimeoutException,
            httpcore.NetworkError,
            httpcore.ProtocolError,
            httpcore.UnsupportedProtocol,
        )
        self._lock = threading.Lock()
        self._ends = threading.local()
        """``at``: when the request of this thread ends, by the monotonic clock in seconds."""
        self._timeouts = dict.fromkeys(("connect", "read", "write", "pool"), _SILENT_S)
        self._pools = [
            # It uses no proxy of the environment, which must not see the state.
            httpcore.ConnectionPool(
                ssl_context=tls, network_backend=_bounded(network or httpcore.SyncBackend(), self._ends)
            )
            for _ in endpoints
        ]
        self._last = 0
        """The endpoint that answered last."""

    def grant(self, seconds: int) -> int:
        """A new lease."""
        return _number(self._call("/v3/lease/grant", {"TTL": str(seconds)}), "ID")

    def keep_alive(self, lease: int) -> bool:
        """Renew a lease for its whole duration; returns whether it was still valid."""
        answer = self._call("/v3/lease/keepalive", {"ID": str(lease)})
        result = answer.get("result")
        return isinstance(result, dict) and _number(result, "TTL") > 0

    def revoke(self, lease: int) -> None:
        self._call("/v3/lease/revoke", {"ID": str(lease)})

    def get(self, key: str) -> Found | None:
        """Linearizable: no member answers with a value that the majority has replaced."""
        return _first(self._call("/v3/kv/range", {"key": _coded(key)}))

    def transact(
        self, compares: list[Operation], then: list[Operation], otherwise: list[Operation]
    ) -> tuple[bool, int, list[Found | None]]:
        """Whether the comparisons held, the revision, and what the ranges found."""
        answer = self._call("/v3/kv/txn", {"compare": compares, "success": then, "failure": otherwise})
        header = answer.get("header")
        revision = _number(header, "revision") if isinstance(header, dict) else 0
        parts = answer.get("responses") or []
        if not isinstance(parts, list):
            raise EtcdUnavailable("the answer of etcd to a transaction is malformed")
        ranges = (
            part.get("response_range") or part.get("responseRange") or {}
            for part in parts
            if isinstance(part, dict)
        )
        found = [_first(each) for each in ranges if isinstance(each, dict)]
        return answer.get("succeeded") is True, revision, found

    def close(self) -> None:
        for pool in self._pools:
            pool.close()

    def _call(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        """Raises EtcdUnavailable."""
        with self._lock:
            first = self._last
        failures = []
        for step in range(len(self._pools)):
            number = (first + step) % len(self._pools)
            try:
                answer = self._post(number, path, body)
            except (*self._errors, ValueError, RecursionError, EtcdUnavailable) as error:
                failures.append(f"{self._endpoints[number]}: {error or type(error).__name__}")
                continue
            with self._lock:
                self._last = number
            return answer
        raise EtcdUnavailable(f"etcd does not answer: {'; '.join(failures)}")

    def _post(self, number: int, path: str, body: dict[str, Any]) -> dict[str, Any]:
        self._ends.at = time.monotonic() + REQUEST_S
        with self._pools[number].stream(
            "POST",
            self._endpoints[number] + path,
            headers=[(b"Content-Type", b"application/json")],
            content=json.dumps(body).encode(),
            extensions={"timeout": self._timeouts},
        ) as response:
            data = bytearray()
            for part in response.iter_stream():
                data += part
                if len(data) > MAX_ANSWER_BYTES:
                    raise EtcdUnavailable(f"an answer of more than {MAX_ANSWER_BYTES} bytes")
        found = json.loads(data)
        if response.status != 200 or not isinstance(found, dict):
            message = found.get("error") or found.get("message") if isinstance(found, dict) else ""
            if path.endswith(("keepalive", "revoke")) and _LEASE_NOT_FOUND in str(message):
                return {}
            raise EtcdUnavailable(f"HTTP status {response.status}, {str(message)[:200]}")
        return found


def _bounded(inner: httpcore.NetworkBackend, ends: threading.local) -> httpcore.NetworkBackend:
    """Sockets with a deadline: ``ends.at`` of the thread that uses them. httpcore's own limits count from the last
    byte, so it would never time out a peer that sends one byte a second."""
    import httpcore

    def left(timeout: float | None, error: type[Exception]) -> float:
        seconds: float = ends.at - time.monotonic()
        if seconds <= 0:
            raise error(f"no whole answer within {REQUEST_S:g} s")
        return seconds if timeout is None else min(seconds, timeout)

    class Stream(httpcore.NetworkStream):
        def __init__(self, stream: httpcore.NetworkStream) -> None:
            self._stream = stream

        def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
            return self._stream.read(max_bytes, left(timeout, httpcore.ReadTimeout))

        def write(self, buffer: bytes, timeout: float | None = None) -> None:
            for start in range(0, len(buffer), _WRITE_BYTES):
                part = buffer[start : start + _WRITE_BYTES]
                self._stream.write(part, left(timeout, httpcore.WriteTimeout))

        def close(self) -> None:
            self._stream.close()

        def start_tls(
            self,
            ssl_context: ssl.SSLContext,
            server_hostname: str | None = None,
            timeout: float | None = None,
        ) -> httpcore.NetworkStream:
            seconds = left(timeout, httpcore.ConnectTimeout)
            return Stream(self._stream.start_tls(ssl_context, server_hostname, seconds))

        def get_extra_info(self, info: str) -> Any:
            return self._stream.get_extra_info(info)

    class Backend(httpcore.NetworkBackend):
        def connect_tcp(
            self,
            host: str,
            port: int,
            timeout: float | None = None,
            local_address: str | None = None,
            socket_options: Iterable[httpcore.SOCKET_OPTION] | None = None,
        ) -> httpcore.NetworkStream:
            seconds = left(timeout, httpcore.ConnectTimeout)
            return Stream(inner.connect_tcp(host, port, seconds, local_address, socket_options))

    return Backend()


def _coded(text: str | bytes) -> str:
    return base64.b64encode(text.encode() if isinstance(text, str) else text).decode()


def _number(table: dict[str, Any], key: str) -> int:
    """etcd writes 64-bit numbers as text, and leaves zeros out."""
    value = table.get(key, 0)
    if isinstance(value, int) or (isinstance(value, str) and value.isdecimal() and len(value) < 20):
        return int(value)
    raise EtcdUnavailable(f"etcd answers with {key}={str(value)[:40]!r}")


def _first(answer: dict[str, Any]) -> Found | None:
    found = answer.get("kvs") or []
    if not found:
        return None
    if not isinstance(found, list) or not isinstance(found[0], dict):
        raise EtcdUnavailable("the answer of etcd to a range is malformed")
    one = found[0]
    try:
        value = base64.b64decode(str(one.get("value", "")), validate=True)
    except ValueError:
        raise EtcdUnavailable("etcd answers with a value that is not base64") from None
    return Found(value, _number(one, "create_revision"), _number(one, "mod_revision"), _number(one, "lease"))


def etcd_client(config: ControllerConfig) -> Etcd:
    """Raises ConfigError."""
    if importlib.util.find_spec("httpcore") is None:
        raise ConfigError(
            "controllerStore=etcd needs httpcore: pip install 'mqspark[etcd]'", key="controllerStore"
        )
    tls: ssl.SSLContext | None = None
    if any(endpoint.startswith("https://") for endpoint in config.endpoints):
        try:
            tls = ssl.create_default_context(cafile=config.etcd_tls_ca_path or None)
            if config.etcd_tls_cert_path:
                tls.load_cert_chain(config.etcd_tls_cert_path, config.etcd_tls_key_path)
        except (OSError, ssl.SSLError) as error:
            raise ConfigError(f"the files of etcdTls*: {error}", key="etcdTlsCaPath") from None
    return Etcd(config.endpoints, tls)
