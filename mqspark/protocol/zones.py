"""Zones: the part of a cluster to which a client or a broker belongs, as fields of its requests to name servers
(DynamicalExtFieldRPCHook, MixAll).

A broker registers with its zone. A client in zone mode gets routes only to brokers of its zone.
"""

from __future__ import annotations

from collections.abc import Mapping

ZONE_NAME, ZONE_MODE = "__ZONE_NAME", "__ZONE_MODE"
_VARIABLES = {ZONE_NAME: "ROCKETMQ_ZONE", ZONE_MODE: "ROCKETMQ_ZONE_MODE"}


def zone_fields(environment: Mapping[str, str]) -> dict[str, str]:
    """The zone fields from the environment of a process; usually empty."""
    return {name: value for name, variable in _VARIABLES.items() if (value := environment.get(variable))}
