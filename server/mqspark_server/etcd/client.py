"""What a controller needs of etcd: leases, ranges and transactions over its JSON gateway (etcd 3.4 and newer).

A request goes to the endpoint that answered last, then to the others; each has ``REQUEST_S``. A request that failed
may have taken effect all the same. Facts: https://etcd.io/docs/v3.5/dev-guide/api_grpc_gateway/.
"""

from __future__ import annotations

import base64
import importlib.util
import json
import logging
import ssl
import threading
from typing import TYPE_CHECKING, Any, NamedTuple

from mqspark.controller.config import ControllerConfig
from mqspark.errors import ConfigError

if TYPE_CHECKING:
    import httpx

__all__ = ["Etcd", "EtcdUnavailable", "Found", "compare", "etcd_client", "get", "put"]

REQUEST_S = 1.0
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

    def __init__(self, endpoints: list[str], tls: ssl.SSLContext | None) -> None:
        import httpx

        self._endpoints = endpoints
        self._errors = httpx.HTTPError
        self._lock = threading.Lock()
        self._clients = [
            httpx.Client(
                base_url=endpoint,
                verify=True if tls is None else tls,
                timeout=httpx.Timeout(REQUEST_S),
                trust_env=False,  # a proxy must not see the state
            )
            for endpoint in endpoints
        ]
        self._last = 0
        """The endpoint that answered last."""

    def grant(self, seconds: int) -> int:
        """A new lease."""
        return _number(self._call("/v3/lease/grant", {"TTL": str(seconds)}), "ID")

    def keep_alive(self, lease: int) -> bool:
        """Whether the lease still holds; from now on for its whole time."""
        answer = self._call("/v3/lease/keepalive", {"ID": str(lease)})
        result = answer.get("result")
        return isinstance(result, dict) and _number(result, "TTL") > 0

    def revoke(self, lease: int) -> None:
        self._call("/v3/lease/revoke", {"ID": str(lease)})

    def get(self, key: str) -> Found | None:
        """Linearizable: no member answers from a past that the majority has left."""
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
            raise EtcdUnavailable("etcd answers a transaction with something else")
        ranges = (
            part.get("response_range") or part.get("responseRange") or {}
            for part in parts
            if isinstance(part, dict)
        )
        found = [_first(each) for each in ranges if isinstance(each, dict)]
        return answer.get("succeeded") is True, revision, found

    def close(self) -> None:
        for client in self._clients:
            client.close()

    def _call(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        """Raises EtcdUnavailable."""
        with self._lock:
            first = self._last
        failures = []
        for step in range(len(self._clients)):
            number = (first + step) % len(self._clients)
            try:
                answer = self._post(self._clients[number], path, body)
            except (self._errors, ValueError, RecursionError, EtcdUnavailable) as error:
                failures.append(f"{self._endpoints[number]}: {error or type(error).__name__}")
                continue
            with self._lock:
                self._last = number
            return answer
        raise EtcdUnavailable(f"etcd does not answer: {'; '.join(failures)}")

    @staticmethod
    def _post(client: httpx.Client, path: str, body: dict[str, Any]) -> dict[str, Any]:
        with client.stream("POST", path, json=body) as response:
            data = bytearray()
            for part in response.iter_bytes():
                data += part
                if len(data) > MAX_ANSWER_BYTES:
                    raise EtcdUnavailable(f"an answer of more than {MAX_ANSWER_BYTES} bytes")
        found = json.loads(data)
        if response.status_code != 200 or not isinstance(found, dict):
            message = found.get("error") or found.get("message") if isinstance(found, dict) else ""
            if path.endswith(("keepalive", "revoke")) and _LEASE_NOT_FOUND in str(message):
                return {}
            raise EtcdUnavailable(f"HTTP status {response.status_code}, {str(message)[:200]}")
        return found


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
        raise EtcdUnavailable("etcd answers a range with something else")
    one = found[0]
    try:
        value = base64.b64decode(str(one.get("value", "")), validate=True)
    except ValueError:
        raise EtcdUnavailable("etcd answers with a value that is not base64") from None
    return Found(value, _number(one, "create_revision"), _number(one, "mod_revision"), _number(one, "lease"))


def etcd_client(config: ControllerConfig) -> Etcd:
    """Raises ConfigError."""
    if importlib.util.find_spec("httpx") is None:
        raise ConfigError(
            "controllerStore=etcd needs httpx: pip install 'mqspark[etcd]'", key="controllerStore"
        )
    tls: ssl.SSLContext | None = None
    if any(endpoint.startswith("https://") for endpoint in config.endpoints):
        try:
            tls = ssl.create_default_context(cafile=config.etcd_tls_ca_path or None)
            if config.etcd_tls_cert_path:
                tls.load_cert_chain(config.etcd_tls_cert_path, config.etcd_tls_key_path)
        except (OSError, ssl.SSLError) as error:
            raise ConfigError(f"the files of etcdTls*: {error}", key="etcdTlsCaPath") from None
    logging.getLogger("httpx").setLevel(logging.WARNING)  # it reports every request
    return Etcd(config.endpoints, tls)
