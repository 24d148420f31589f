"""Replica sets as a controller knows them: which replica is master, and which are in the SyncStateSet."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from mqspark.base.config import parse_addresses
from mqspark.errors import ClientError, MQError
from mqspark.protocol.bodies.body import decode_body, encode_body
from mqspark.protocol.bodies.replica_bodies import BrokerReplicasInfo, ReplicasInfo
from mqspark.protocol.codes import RequestCode
from mqspark.protocol.headers.cluster_headers import GetMetaDataResponseHeader
from mqspark_server.survey.surveying import Row

if TYPE_CHECKING:
    from mqspark.client.admin import AdminClient


async def named_controllers(admin: AdminClient, brokers: Iterable[str]) -> tuple[list[str], MQError | None]:
    """The controllers that brokers at these addresses name in ``controllerAddr``, and the last error of a broker that
    does not answer. Raises ConfigError for an address that is none."""
    found: dict[str, None] = {}
    failed: MQError | None = None
    for address in brokers:
        try:
            settings = await admin.broker_config(address)
        except MQError as error:
            failed = error
            continue
        if settings.get("enableControllerMode") == "true":
            found |= dict.fromkeys(parse_addresses(settings.get("controllerAddr", ""), key="controllerAddr"))
    return list(found), failed


async def controller_metadata(admin: AdminClient, address: str) -> GetMetaDataResponseHeader:
    """Raises MQError."""
    answer = await admin.ask(address, RequestCode.CONTROLLER_GET_METADATA_INFO)
    return answer.header(GetMetaDataResponseHeader)


async def leading_controller(admin: AdminClient, controllers: Sequence[str]) -> str:
    """The address of the controller that decides. Raises ClientError when none leads."""
    failed = "they name no leader"
    for address in controllers:
        try:
            if leader := (await controller_metadata(admin, address)).controller_leader_address:
                return leader
        except MQError as error:
            failed = str(error)
    raise ClientError(f"no controller leads ({', '.join(controllers)}): {failed}")


async def replica_sets(admin: AdminClient, leader: str, names: Sequence[str]) -> dict[str, ReplicasInfo]:
    """By broker name; those that the controller does not know are left out. Raises MQError."""
    if not names:
        return {}
    body = encode_body(list(names))
    answer = await admin.ask(leader, RequestCode.CONTROLLER_GET_SYNC_STATE_DATA, None, body)
    table = decode_body(BrokerReplicasInfo, answer.body).replicas_info_table
    return {name: table[name] for name in names if name in table}


def replica_rows(sets: Mapping[str, ReplicasInfo]) -> list[Row]:
    return [
        {
            "broker": name,
            "id": each.broker_id,
            "address": each.broker_address,
            "role": "master" if each.broker_id == found.master_broker_id else "slave",
            "in_sync": each in found.in_sync_replicas,
            "alive": each.alive,
            "epoch": found.master_epoch,
            "set_epoch": found.sync_state_set_epoch,
        }
        for name, found in sorted(sets.items())
        for each in sorted(
            found.in_sync_replicas + found.not_in_sync_replicas, key=lambda replica: replica.broker_id
        )
    ]


async def set_rows(admin: AdminClient, broker: str, addresses: Iterable[str]) -> list[Row] | None:
    """The replicas of a broker that has these addresses; None: no controller decides about it. Raises MQError."""
    controllers, _ = await named_controllers(admin, addresses)
    if not controllers:
        return None
    leader = await leading_controller(admin, controllers)
    return replica_rows(await replica_sets(admin, leader, [broker]))
