"""A connection to another server whose other end is a list of writes."""

from __future__ import annotations

from typing import Any

from mqspark_server.net.outbound import Outbound
from tests.support.wires import Wire


def connected(**options: Any) -> tuple[Outbound, Wire]:
    outbound, wire = Outbound("host:1", lambda: None, **options), Wire()
    outbound.connection_made(wire)
    return outbound, wire
