"""``mqspark cluster``: an overview of all brokers of the name servers."""

from __future__ import annotations

import asyncio
from typing import Any

from mqspark.errors import MQError
from mqspark.message import MASTER_ID
from mqspark_server.commands.loading import noun
from mqspark_server.commands.output import columns
from mqspark_server.commands.shell import ClusterShell, clustered

cluster = noun("cluster", "Clusters: their brokers, versions and rates.")

BROKER_COLUMNS = columns(
    "cluster",
    "broker",
    "id",
    "address",
    "version",
    "in_tps",
    "out_tps",
    "disk_ratio",
    "active",
    "stored_today*",
    "read_today*",
    "put_p99_ms*",
    "error",
)


@cluster.command("list")
@clustered
async def cluster_list(shell: ClusterShell) -> None:
    """List all brokers: cluster, address, version, messages per second, disk."""
    shell.output.rows(BROKER_COLUMNS, await broker_rows(shell), empty="the name server knows no broker")


@cluster.command("describe")
@clustered
async def cluster_describe(shell: ClusterShell) -> None:
    """Show clusters with the numbers of their brokers, topics and groups."""
    info = await shell.admin.cluster_info()
    topics, groups = await asyncio.gather(shell.known_topics(), shell.admin.groups())
    shell.output.record(
        {
            "nameservers": shell.admin.namesrv,
            "clusters": {
                name: ", ".join(sorted(members)) for name, members in info.cluster_addr_table.items()
            },
            "brokers": sum(len(data.broker_addrs) for data in info.broker_addr_table.values()),
            "masters": sum(MASTER_ID in data.broker_addrs for data in info.broker_addr_table.values()),
            "topics": len(topics),
            "groups": len(groups),
        }
    )


async def broker_rows(shell: ClusterShell) -> list[dict[str, Any]]:
    """One row per broker. If it does not answer, ``error`` has the reason."""
    info = await shell.admin.cluster_info()
    wanted = await shell.brokers()
    cluster_of = {data.broker_name or name: data.cluster for name, data in info.broker_addr_table.items()}

    async def row(name: str, broker_id: int, address: str) -> dict[str, Any]:
        found: dict[str, Any] = {
            "cluster": cluster_of.get(name),
            "broker": name,
            "id": broker_id,
            "address": address,
        }
        try:
            runtime = await shell.admin.broker_runtime_info(address)
        except MQError as error:
            return {**found, "error": str(error)}
        return found | _figures(runtime)

    work = [row(name, number, address) for name, each in wanted.items() for number, address in each.items()]
    return list(await asyncio.gather(*work))


def _figures(runtime: dict[str, str]) -> dict[str, Any]:
    return {
        "version": runtime.get("brokerVersionDesc"),
        "in_tps": _first(runtime.get("putTps")),
        "out_tps": _first(runtime.get("getTransferredTps") or runtime.get("getTransferedTps")),
        "disk_ratio": _number(runtime.get("commitLogDiskRatio")),
        "active": runtime.get("brokerActive", "true") == "true",
        "stored_today": _difference(runtime, "msgPutTotalTodayNow", "msgPutTotalTodayMorning"),
        "read_today": _difference(runtime, "msgGetTotalTodayNow", "msgGetTotalTodayMorning"),
        "put_p99_ms": _number(runtime.get("putLatency99")),
        "boot_ms": int(_number(runtime.get("bootTimestamp")) or 0) or None,
    }


def _first(text: str | None) -> float | None:
    """The first of the rates over ``10s 60s 600s``."""
    return _number((text or "").split(" ")[0])


def _number(text: str | None) -> float | None:
    try:
        return float(text) if text else None
    except ValueError:
        return None  # a broker that is not ready answers with words


def _difference(runtime: dict[str, str], now: str, morning: str) -> int | None:
    high, low = _number(runtime.get(now)), _number(runtime.get(morning))
    return None if high is None or low is None else int(high - low)
