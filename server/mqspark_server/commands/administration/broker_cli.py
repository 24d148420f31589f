"""``mqspark broker``: single brokers."""

from __future__ import annotations

from operator import attrgetter
from typing import Annotated, Any, Literal

from mqspark.errors import BrokerError
from mqspark_server.commands.clustercommand import ClusterShell, confirm, noun
from mqspark_server.commands.output import columns, row_of
from mqspark_server.commands.parameters import Argument, Name, OnlyBrokers, Yes
from mqspark_server.commands.refusals import Missing

broker = noun(
    "broker",
    "Brokers: run one here, or query and change those of a cluster.",
    {
        "list": (
            "administration.cluster_cli:cluster_list",
            "List all brokers, the same as mqspark cluster list.",
        ),
        "run": ("local.servers_cli:broker_run", "Run a broker until SIGTERM or SIGINT."),
    },
)
_PRODUCERS = columns("group, client_id, address, language, version*")
_OF_PRODUCER = attrgetter("client_id", "remote_ip", "language", "version")
_SLAVES = columns("address SLAVE, acknowledged HAS UP TO, behind, in_sync, bytes_per_second BYTES/S")
_OF_SLAVE = attrgetter("addr", "slave_ack_offset", "diff", "in_sync", "transferred_byte_in_second")
_MASTER = columns("master, has_up_to, master_flushed, last_read_ms")
_OF_MASTER = attrgetter("master_addr", "max_offset", "master_flush_offset", "last_read_timestamp")
"""The figures that RocketMQ's HAClientRuntimeInfo has of a master."""


@broker.command("describe")
async def broker_describe(shell: ClusterShell, broker: Name) -> None:
    """Show all figures of BROKER (a name or host:port)."""
    address = await shell.broker_address(broker)
    shell.output.record(dict(sorted((await shell.admin.broker_runtime_info(address)).items())))


@broker.command("replicas")
async def broker_replicas(shell: ClusterShell, broker: Name) -> None:
    """List the slaves of BROKER and how far each is behind."""
    status = await shell.admin.ha_status(await shell.broker_address(broker))
    if status.master:
        rows = [row_of(_SLAVES, *_OF_SLAVE(each)) for each in status.ha_connection_info]
        shell.output.rows(_SLAVES, rows, empty="no slave is connected")
    else:
        shell.output.record({"role": "slave", **row_of(_MASTER, *_OF_MASTER(status.ha_client_runtime_info))})


@broker.command("producers")
async def broker_producers(shell: ClusterShell, broker: Name) -> None:
    """List the producers that are connected to BROKER."""
    found = await shell.admin.producers(await shell.broker_address(broker))
    clients = [(group, each) for group, members in sorted(found.items()) for each in members]
    rows = [row_of(_PRODUCERS, group, *_OF_PRODUCER(each)) for group, each in clients]
    shell.output.rows(_PRODUCERS, rows, empty="no producer is connected")


def _writing(verb: str, text: str, question: str, state: str, *, writable: bool) -> None:
    @broker.command(verb, help=text)
    async def set_writable(shell: ClusterShell, broker: Name, yes: Yes) -> None:
        await shell.brokers([broker])
        confirm(f"{question} to broker {broker}?", yes)
        count = await shell.admin.set_writable(broker, writable=writable)
        row = {"broker": broker, "writable": writable, "topics": count}
        shell.output.done(f"{broker} {state}: {count} topics", row)


_STOP = "Stop sends to BROKER while consumers read the rest. broker undrain reverts it."
_writing("drain", _STOP, "Stop sends", "accepts no sends", writable=False)
_writing("undrain", "Allow sends to BROKER again.", "Allow sends", "accepts sends again", writable=True)


@broker.command("clean")
async def broker_clean(
    shell: ClusterShell,
    what: Annotated[Literal["queues", "topics", "log"], Argument()],
    brokers: OnlyBrokers,
    yes: Yes,
) -> None:
    """Remove expired queue files, unused topics or log files now."""
    names = await shell.brokers(brokers)
    confirm(f"Remove expired {what} from {', '.join(names)}?", yes)
    with shell.output.listing() as listing:
        for name, addresses in names.items():
            await shell.admin.clean_up(addresses[min(addresses)], what)
            listing.add({"broker": name, "cleaned": what}, f"{name}: cleaned")


@broker.command("stat")
async def broker_stat(shell: ClusterShell, broker: Name, name: Name, key: Name) -> None:
    """Show one of RocketMQ's counters of BROKER: TOPIC_PUT_NUMS TOPIC, GROUP_GET_NUMS TOPIC@GROUP and so on."""
    try:
        data = await shell.admin.broker_stats(await shell.broker_address(broker), name, key)
    except BrokerError as error:
        raise Missing("counter", f"{name} {key}", advice=str(error.remark)) from None
    row: dict[str, Any] = {"name": name, "key": key}
    for span, item in (("minute", data.stats_minute), ("hour", data.stats_hour), ("day", data.stats_day)):
        if item is not None:
            row |= {f"{span}_sum": item.sum, f"{span}_tps": round(item.tps, 3)}
    shell.output.record(row)
