"""``mqspark controller``: controllers, the replica sets that they know, and who leads these."""

from __future__ import annotations

from typing import Annotated

import click

from mqspark.errors import BrokerError
from mqspark.protocol.bodies.replica_bodies import ReplicasInfo
from mqspark.protocol.codes import RequestCode, ResponseCode
from mqspark.protocol.headers.cluster_headers import ElectMasterRequestHeader, ElectMasterResponseHeader
from mqspark_server.commands.clustercommand import ClusterShell, confirm, noun
from mqspark_server.commands.output import columns, row_of
from mqspark_server.commands.parameters import Argument, Name, Option, Yes
from mqspark_server.commands.refusals import CommandFailed, Missing
from mqspark_server.survey import replicasurvey
from mqspark_server.survey.surveying import Row, add_to_each

controller = noun(
    "controller",
    "Controllers: run one here, or show and change which replica of each broker is master.",
    {"run": ("local.servers_cli:controller_run", "Run a controller until SIGTERM or SIGINT.")},
)
_LIST = columns("address, leads, leader, group*, error")
_REPLICAS = columns("broker, id, address, role, in_sync, alive, epoch, set_epoch*")
_ELECTED = columns("broker, id, address, epoch")
_Controllers = Annotated[
    str | None,
    Option(
        "Controllers, separated by semicolons.  [default: those that the brokers name in controllerAddr]",
        "--controller",
        metavar="HOST:PORT",
    ),
]


async def _addresses(shell: ClusterShell, given: str | None) -> list[str]:
    """The addresses of the controllers. Raises ConfigError, CommandFailed."""
    from mqspark.base.config import parse_addresses

    if given is not None:
        return parse_addresses(given, key="controller", required=True)
    brokers = [address for each in (await shell.brokers()).values() for address in each.values()]
    found, failed = await replicasurvey.named_controllers(shell.admin, brokers)
    if not found:
        why = f": {failed}" if failed is not None else ""
        raise CommandFailed(
            f"no broker that answers names a controller (controllerAddr){why}; give --controller"
        )
    return found


async def _sets(
    shell: ClusterShell, given: str | None, names: tuple[str, ...]
) -> tuple[str, dict[str, ReplicasInfo]]:
    """The controller that leads, and what it knows. Raises Missing for a name that it does not, ClientError."""
    leader = await replicasurvey.leading_controller(shell.admin, await _addresses(shell, given))
    found = await replicasurvey.replica_sets(shell.admin, leader, list(names or await shell.brokers()))
    for name in names:
        if name not in found:
            raise Missing(
                "broker known to the controller", name, await shell.brokers(), f"{leader} was asked"
            )
    return leader, found


async def _cluster(shell: ClusterShell, broker: str) -> str:
    """The cluster of a broker, which controllers of RocketMQ want to know. Raises click.UsageError."""
    if shell.cluster is not None:
        return shell.cluster
    known = (await shell.admin.cluster_info()).broker_addr_table.get(broker)
    if known is None:
        raise click.UsageError(f"the name servers do not know broker {broker} now: give its --cluster")
    return known.cluster or ""


@controller.command("list")
async def controller_list(shell: ClusterShell, addresses: _Controllers) -> None:
    """List the controllers, and which of them leads."""

    async def ask(row: Row) -> Row:
        found = await replicasurvey.controller_metadata(shell.admin, row["address"])
        leader = found.controller_leader_address
        return {"leads": found.is_leader, "leader": leader, "group": found.group}

    rows = [{"address": each, "leads": False} for each in await _addresses(shell, addresses)]
    await add_to_each(rows, ask)
    shell.output.rows(_LIST, rows)


@controller.command("replicas")
async def controller_replicas(
    shell: ClusterShell,
    brokers: Annotated[tuple[str, ...], Argument(required=False)],
    addresses: _Controllers,
) -> None:
    """Show the replicas of BROKERS (default: all): which one is master, which are in the SyncStateSet."""
    _, sets = await _sets(shell, addresses, brokers)
    shell.output.rows(
        _REPLICAS, replicasurvey.replica_rows(sets), empty="the controller knows none of the brokers"
    )


@controller.command("elect")
async def controller_elect(
    shell: ClusterShell,
    broker: Name,
    broker_id: Annotated[int | None, click.IntRange(min=1), Argument(metavar="ID")],
    addresses: _Controllers,
    yes: Yes,
) -> None:
    """Elect replica ID of BROKER as master; without ID the best one, if the master is gone.

    The controller refuses one that lacks messages, and says how many bytes would be lost, unless its
    enableElectUncleanMaster is true.
    """
    leader, sets = await _sets(shell, addresses, (broker,))
    found = sets[broker]
    ids = [row["id"] for row in replicasurvey.replica_rows({broker: found})]
    if broker_id is not None and broker_id not in ids:
        raise Missing(f"replica of {broker}", str(broker_id), advice=f"it has {', '.join(map(str, ids))}")
    cluster = await _cluster(shell, broker)
    now = "nobody is master" if found.master_broker_id is None else f"{found.master_broker_id} is master now"
    whom = "a master" if broker_id is None else f"{broker_id} as master"
    confirm(f"Elect {whom} of {broker} ({now})?", yes)
    header = ElectMasterRequestHeader(
        cluster_name=cluster,
        broker_name=broker,
        broker_id=-1 if broker_id is None else broker_id,
        designate_elect=broker_id is not None,
    )
    try:
        answer = await shell.admin.ask(leader, RequestCode.CONTROLLER_ELECT_MASTER, header)
    except BrokerError as error:
        if error.code != ResponseCode.CONTROLLER_MASTER_STILL_EXIST:
            raise
        raise CommandFailed(f"nothing was changed: {error.remark}; give the ID of another replica") from None
    elected = answer.header(ElectMasterResponseHeader)
    number, address, epoch = elected.master_broker_id, elected.master_address, elected.master_epoch
    row = row_of(_ELECTED, broker, number, address, epoch)
    shell.output.done(f"{number} ({address}) is master of {broker} in epoch {epoch}", row)
