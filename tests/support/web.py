"""HTTP without TLS: otherwise httpx would load the certificates of all authorities for each request."""

from __future__ import annotations

import ssl

import httpx

_NO_AUTHORITIES = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)


def get(url: str) -> httpx.Response:
    return httpx.get(url, timeout=60, trust_env=False, verify=_NO_AUTHORITIES)
