"""The signature of a request: HMAC-SHA1 over the values of its fields and its body (AclUtils, AclSigner).

A signature proves that the sender knows the secret key. It covers neither the request's code nor the names of the
fields nor their borders, and nothing makes it valid only once: whoever can read a request can use it again, and only
TLS prevents that. Facts: docs/rocketmq/protocol.md#signature.
"""

from __future__ import annotations

import base64
import hmac
from collections.abc import Mapping

__all__ = ["ACCESS_KEY", "SECURITY_TOKEN", "SIGNATURE", "Signer", "content_of"]

ACCESS_KEY, SECURITY_TOKEN, SIGNATURE = "AccessKey", "SecurityToken", "Signature"
"""Fields of a request."""

Buffer = bytes | bytearray | memoryview


class Signer:
    """Signs requests with one secret key. Shows none of its keys as text."""

    __slots__ = ("_mac", "fields")

    def __init__(self, access_key: str, secret_key: str, security_token: str | None = None) -> None:
        self.fields = {ACCESS_KEY: access_key}
        """What a signed request carries besides its header and the signature."""
        if security_token is not None:
            self.fields[SECURITY_TOKEN] = security_token
        self._mac = hmac.new(secret_key.encode(), digestmod="sha1")

    def signed(self, ext: Mapping[str, str], body: Buffer = b"") -> dict[str, str]:
        """The fields of a request with those of the signer and the signature."""
        complete = {**ext, **self.fields}
        complete[SIGNATURE] = self.signature(content_of(complete), body)
        return complete

    def signature(self, *content: Buffer) -> str:
        """Of the parts of a content: the values of the fields in the order of their names, then the body."""
        mac = self._mac.copy()
        for part in content:
            mac.update(part)
        return base64.b64encode(mac.digest()).decode()


def content_of(ext: Mapping[str, str]) -> bytes:
    """The values of all fields but the signature, in the order of their names (Java's: by UTF-16 code unit)."""
    # Text compares by code points, which for ASCII is the same and much faster.
    names = sorted(ext) if "".join(ext).isascii() else sorted(ext, key=_utf16)
    return "".join([ext[name] for name in names if name != SIGNATURE]).encode()


def _utf16(name: str) -> bytes:
    return name.encode("utf-16-be")
