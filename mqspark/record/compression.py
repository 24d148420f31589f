"""Message bodies under the compression bits of the system flag (MessageSysFlag).

Type 0 with the compressed bit set is ZLIB, as old clients send it. LZ4 is the frame format. Output is
bounded: a body that inflates past a limit raises InvalidMessage, so a small message cannot exhaust memory.
Readers bound the total of many small messages: consumers inflate a body on access and keep what the
``Budget`` of their pull allows (``mqspark.record.record``); Spark's source cuts its batches by inflated bytes.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from typing import Any, NamedTuple

from mqspark.errors import ConfigError, InvalidMessage

LZ4, ZSTD, ZLIB = 1, 2, 3
"""Values of bits 8 to 10 of the system flag (CompressionType)."""

_ZLIB_OR_GZIP = 32 + zlib.MAX_WBITS
"""The header of a body decides. Clients of gRPC call both GZIP, and brokers store both as ZLIB."""

OLD_ARROW = b"ARROW:experimental_compression"
"""In the metadata of a batch, Arrow 0.17's mark that its buffers are compressed. Readers heed it to this day, beside
the one in the batch's header. Whoever looks at what a batch becomes refuses it: nothing has written it since."""

MAX_INFLATED_BYTES = 64 * 1024 * 1024
"""16 times RocketMQ's default maxMessageSize. A larger message could not have been sent uncompressed."""


class InflateLimits(NamedTuple):
    """Limits of one inflated body."""

    max_bytes: int = MAX_INFLATED_BYTES
    max_ratio: int = 200
    """Largest ratio of inflated to stored size, for bodies that inflate past ``free_bytes``; 0: any."""
    free_bytes: int = 4 * 1024 * 1024
    """Up to this inflated size any ratio is allowed. RocketMQ's clients send nothing larger by default
    (maxMessageSize)."""

    def of(self, stored_bytes: int) -> int:
        """The limit for a body of this stored size."""
        if not self.max_ratio:
            return self.max_bytes
        return min(self.max_bytes, max(self.free_bytes, stored_bytes * self.max_ratio))


LIMITS = InflateLimits()


class Budget:
    """A shared allowance of bytes that may be kept."""

    __slots__ = ("left_bytes",)

    def __init__(self, size_bytes: int) -> None:
        self.left_bytes = size_bytes

    def take(self, size_bytes: int) -> bool:
        """Take ``size_bytes`` from the budget. False when it has too few left."""
        if size_bytes > self.left_bytes:
            return False
        self.left_bytes -= size_bytes
        return True


def compress(body: bytes, kind: int = ZLIB, level: int = 5) -> bytes:
    """Compress a body. Raises ConfigError when the codec's package is not installed."""
    return compressor(kind, level)(body)


def compressor(kind: int = ZLIB, level: int = 5) -> Callable[[bytes | memoryview], bytes]:
    """A function that compresses many bodies. Raises ConfigError when the codec's package is not installed."""
    if kind == ZLIB:
        return lambda body: zlib.compress(body, level)
    if kind == LZ4:
        return _lz4().compress  # type: ignore[no-any-return]
    if kind == ZSTD:
        return _zstd().ZstdCompressor(level=level).compress  # type: ignore[no-any-return]
    raise InvalidMessage(f"unknown compression type {kind}", field="sysFlag")


def decompress(body: bytes | memoryview, kind: int, limit_bytes: int = MAX_INFLATED_BYTES) -> bytes:
    """Inflate a body. Raises InvalidMessage for damaged or oversize data, ConfigError when the codec's
    package is not installed."""
    try:
        if kind in (0, ZLIB):
            inflater = zlib.decompressobj(_ZLIB_OR_GZIP)
            plain = inflater.decompress(body, limit_bytes)
            complete = inflater.eof
        elif kind == LZ4:
            context = _lz4().LZ4FrameDecompressor()
            plain = context.decompress(body, max_length=limit_bytes)
            complete = context.eof
        elif kind == ZSTD:
            plain, complete = _unpack_zstd(memoryview(body), limit_bytes)
        else:
            raise InvalidMessage(f"unknown compression type {kind}", field="sysFlag")
    except (zlib.error, RuntimeError, ValueError, EOFError) as error:
        if isinstance(error, InvalidMessage):
            raise
        raise InvalidMessage(f"body does not decompress: {error}", field="body") from error
    if not complete and len(plain) >= limit_bytes:
        raise InvalidMessage(
            f"body of {len(body)} bytes inflates past {limit_bytes} (maxInflatedBytes, maxInflateRatio)",
            field="body",
        )
    if not complete:
        raise InvalidMessage("body is truncated", field="body")
    return bytes(plain)


_ZSTD_STEP_BYTES = 256
"""Input per step. zstd has no limit of its output; this many bytes inflate to 8 MiB at most."""


def _unpack_zstd(body: memoryview, limit_bytes: int) -> tuple[bytes, bool]:
    zstandard = _zstd()
    inflater = zstandard.ZstdDecompressor(max_window_size=MAX_INFLATED_BYTES).decompressobj()
    parts, size = [], 0
    try:
        for start in range(0, len(body), _ZSTD_STEP_BYTES):
            parts.append(inflater.decompress(body[start : start + _ZSTD_STEP_BYTES]))
            size += len(parts[-1])
            if inflater.eof or size > limit_bytes:
                break
    except zstandard.ZstdError as error:
        raise ValueError(error) from error
    return b"".join(parts), inflater.eof and size <= limit_bytes


def _lz4() -> Any:
    try:
        import lz4.frame
    except ImportError:
        raise ConfigError("LZ4 bodies need the extra: pip install 'mqspark[lz4]'", key="lz4") from None
    return lz4.frame


def _zstd() -> Any:
    try:
        import zstandard
    except ImportError:
        raise ConfigError("ZSTD bodies need the extra: pip install 'mqspark[zstd]'", key="zstd") from None
    return zstandard
