"""Figures of a port of gRPC, for metrics."""

from __future__ import annotations

from typing import NamedTuple


class GrpcCounts(NamedTuple):
    """``connections``, ``calls`` and ``clients``: now. The rest: since the start."""

    connections: int
    calls: int
    clients: int
    begun_calls: int
    refused: int
    dropped: int
    malformed: int
