"""The signature of a request: HMAC-SHA1 over the values of its fields and its body (AclUtils, AclSigner).

A signature proves that the sender knows the secret key. It covers neither the request's code nor the names and borders
of the fields, and it can be replayed; our clients say these in a field of their own (``binding``). Facts:
docs/rocketmq/protocol.md#signature.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping
from copy import copy
from operator import itemgetter

from mqspark.base.bounded import Memo, text_bytes

ACCESS_KEY, SECURITY_TOKEN, SIGNATURE = "AccessKey", "SecurityToken", "Signature"
"""The fields that carry a signature in a request."""
ON_BEHALF_OF = "OnBehalfOf"
"""Field of requests that a super user makes for another user, to whom limits for one user apply then."""

Buffer = bytes | bytearray | memoryview


class Signer:
    """Signs requests with one secret key. Its text form shows no key."""

    __slots__ = ("_mac", "fields")

    def __init__(self, access_key: str, secret_key: str, security_token: str | None = None) -> None:
        self.fields = {ACCESS_KEY: access_key}
        """The fields that a signed request has besides its header and the signature."""
        if security_token is not None:
            self.fields[SECURITY_TOKEN] = security_token
        import hmac  # who signs nothing does without OpenSSL's hashes

        self._mac = hmac.new(secret_key.encode(), digestmod="sha1")

    def on_behalf_of(self, user: str) -> Signer:
        """Signs with the same key what is asked for this user."""
        other = copy(self)
        other.fields = {**self.fields, ON_BEHALF_OF: user}
        return other

    def signed(self, ext: Mapping[str, str], body: Buffer = b"") -> dict[str, str]:
        """The fields of a request with those of the signer and the signature."""
        complete = {**ext, **self.fields}
        complete[SIGNATURE] = self.signature(content_of(complete), body)
        return complete

    def signature(self, *content: Buffer) -> str:
        """The signature of a content in parts: the values of the fields in the order of their names, then the body."""
        mac = self._mac.copy()
        for part in content:
            mac.update(part)
        return base64.b64encode(mac.digest()).decode()


class SignedNames:
    """The names of a request's fields, ready to take the values that a signature covers."""

    __slots__ = ("order", "values")

    def __init__(self, given: tuple[str, ...]) -> None:
        names = [name for name in given if name != SIGNATURE]
        # For ASCII names, comparing by code points gives the same order and is much faster.
        names.sort(key=None if "".join(names).isascii() else _utf16)
        self.order = tuple(names)
        """The names of all fields but the signature, in the order of a signature (Java's: by UTF-16 code unit)."""
        self.values: Callable[[Mapping[str, str]], tuple[str, ...]]
        """Their values in a request."""
        # itemgetter does not return a tuple for a single place.
        self.values = (
            itemgetter(*names) if len(names) > 1 else lambda ext: tuple([ext[name] for name in names])
        )


def _weigh(given: tuple[str, ...], names: SignedNames) -> int:
    return 512 + 2 * sum(map(text_bytes, given))


signed_names: Memo[tuple[str, ...], SignedNames] = Memo(
    "signature.names", SignedNames, max_bytes=1 << 20, weigh=_weigh
)
"""By the names as they came: a peer sends the same ones again and again."""


def content_of(ext: Mapping[str, str]) -> bytes:
    """The values of all fields but the signature, in the order of their names."""
    return "".join(signed_names[tuple(ext)].values(ext)).encode()


def _utf16(name: str) -> bytes:
    return name.encode("utf-16-be")
