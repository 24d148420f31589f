"""``mqspark cluster``: an overview of all brokers of the name servers."""

from __future__ import annotations

import asyncio
from typing import Any

from mqspark.message import MASTER_ID
from mqspark_server.commands.clustercommand import ClusterShell, noun
from mqspark_server.commands.output import columns
from mqspark_server.survey.brokersurvey import add_figures, known_brokers
from mqspark_server.survey.surveying import without_no_error

cluster = noun("cluster", "Clusters: their brokers, versions and rates.")

BROKER_COLUMNS = columns(
    "cluster, broker, id, address, version, in_tps, out_tps, disk_ratio, active",
    "stored_today*, read_today*, put_p99_ms*, error",
)


@cluster.command("list")
async def cluster_list(shell: ClusterShell) -> None:
    """List all brokers: cluster, address, version, messages per second, disk."""
    shell.output.rows(BROKER_COLUMNS, await broker_rows(shell), empty="the name server knows no broker")


@cluster.command("describe")
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
    wanted = await shell.brokers()
    rows = [row for row in await known_brokers(shell.admin) if row["broker"] in wanted]
    await add_figures(shell.admin, rows)
    return [without_no_error(row) for row in rows]
