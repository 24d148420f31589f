"""What the pages about brokers show: rates, disk, replicas, settings, producers, what is delayed, users."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from mqspark.base.config import is_live
from mqspark.client.admin import AdminClient
from mqspark.errors import BrokerError, MQError, NoRoute
from mqspark.message import (
    SCHEDULE_TOPIC,
    TIMER_TOPIC,
    TRANS_GROUP,
    TRANS_HALF_TOPIC,
    TRANS_OP_HALF_TOPIC,
    parse_number,
)
from mqspark.protocol.codes import RequestCode
from mqspark_server.accounts import Accounts
from mqspark_server.console.data import MAX_ROWS, Row, each_of, number_of
from mqspark_server.settings.declarations import settings_of

MAX_CLIENTS = 1_000
_BYTES = "commitLogMinOffset", "commitLogMaxOffset"


async def masters_of(admin: AdminClient) -> dict[str, str]:
    """Broker name to the address of its master."""
    info = await admin.cluster_info()
    return {
        name: each.broker_addrs[0]
        for name, each in sorted(info.broker_addr_table.items())
        if 0 in each.broker_addrs
    }


async def brokers_of(admin: AdminClient, most: int = MAX_ROWS) -> Row:
    info = await admin.cluster_info()
    known: list[Row] = [
        {"cluster": each.cluster, "broker": name, "id": number, "address": address}
        for name, each in sorted(info.broker_addr_table.items())
        for number, address in sorted(each.broker_addrs.items())
    ]
    brokers = known[:most]

    async def fill(row: Row) -> None:
        await _add_figures(admin, row)

    await each_of(brokers, fill)
    return {"brokers": brokers, "left_out": len(known) - len(brokers)}


async def overview_of(admin: AdminClient) -> Row:
    values = await brokers_of(admin)
    brokers = values["brokers"]
    replicas: list[bool] = []

    async def add_replicas(row: Row) -> None:
        with contextlib.suppress(MQError):  # the table says which broker does not answer
            replicas.extend(
                each.in_sync for each in (await admin.ha_status(row["address"])).ha_connection_info
            )

    await each_of([row for row in brokers if row["id"] == 0 and not row["error"]], add_replicas)
    return {
        **values,
        **totals_of(brokers),
        "replicas": len(replicas),
        "in_sync": sum(replicas),
        "stored_today": _total(each["stored_today"] for each in brokers if each["id"] == 0),
    }


def totals_of(brokers: Sequence[Row]) -> Row:
    """How many of ``brokers_of`` answer, their rates together, and the fullest disk."""
    return {
        "answering": sum(not each["error"] for each in brokers),
        "in_tps": _total(each["in_tps"] for each in brokers if each["id"] == 0),
        "out_tps": _total(each["out_tps"] for each in brokers),
        "disk": max((each["disk"] for each in brokers if each["disk"] is not None), default=None),
    }


async def _add_figures(admin: AdminClient, row: Row) -> None:
    figures: dict[str, str] = {}
    row["error"] = ""
    try:
        figures = await admin.broker_runtime_info(row["address"])
    except MQError as error:
        row["error"] = str(error)
    row |= {
        "version": figures.get("brokerVersionDesc"),
        "boot_ms": parse_number(figures.get("bootTimestamp")),
        "in_tps": _rate(figures.get("putTps")),
        "out_tps": _rate(figures.get("getTransferredTps") or figures.get("getTransferedTps")),
        "disk": number_of(figures.get("commitLogDiskRatio")),
        "active": figures.get("brokerActive", "true") == "true",
        "stored_today": _difference(figures, "msgPutTotalTodayNow", "msgPutTotalTodayMorning"),
        "read_today": _difference(figures, "msgGetTotalTodayNow", "msgGetTotalTodayMorning"),
        "figures": figures,
    }


async def one_broker(admin: AdminClient, name: str) -> Row:
    """A broker, its replicas and its store. Raises NoRoute."""
    info = await admin.cluster_info()
    found = info.broker_addr_table.get(name)
    if found is None:
        raise NoRoute(name, "no broker has this name")
    rows: list[Row] = [
        {"cluster": found.cluster, "broker": name, "id": number, "address": address}
        for number, address in sorted(found.broker_addrs.items())
    ]

    async def fill(row: Row) -> None:
        await _add_figures(admin, row)
        if not row["error"]:
            row["store"] = _store(row["figures"])

    await each_of(rows, fill)
    replicas: list[Row] = []
    problem = ""
    master = found.broker_addrs.get(0)
    if master is not None:
        try:
            status = await admin.ha_status(master)
            replicas = [
                {
                    "address": each.addr,
                    "acked": each.slave_ack_offset,
                    "behind": each.diff,
                    "in_sync": each.in_sync,
                    "rate": each.transferred_byte_in_second,
                }
                for each in status.ha_connection_info[:MAX_ROWS]
            ]
        except MQError as error:
            problem = str(error)
    return {
        "broker": name,
        "cluster": found.cluster,
        "rows": rows,
        "replicas": replicas,
        "replicas_problem": problem,
        "has_master": master is not None,
    }


def _store(figures: dict[str, str]) -> Row:
    low, high = (number_of(figures.get(key)) for key in _BYTES)
    earliest = number_of(figures.get("earliestMessageTimeStamp"))
    return {
        "first": low,
        "end": high,
        "size": None if low is None or high is None else high - low,
        "earliest_ms": None if earliest is None else int(earliest),
        "dispatch_behind": number_of(figures.get("dispatchBehindBytes")),
        "to_flush": figures.get("remainHowManyDataToFlush"),
        "p99": number_of(figures.get("putLatency99")),
        "p999": number_of(figures.get("putLatency999")),
        "slowest": number_of(figures.get("putMessageEntireTimeMax")),
    }


async def config_of(admin: AdminClient, broker: str) -> tuple[str, dict[str, str]]:
    """The master's address and its settings. Raises NoRoute."""
    masters = await masters_of(admin)
    if broker not in masters:
        raise NoRoute(broker, "no broker with a master has this name")
    return masters[broker], await admin.broker_config(masters[broker])


def described(settings: Mapping[str, str], wanted: str) -> list[Row]:
    """The settings whose key or value contains ``wanted``, with what mqspark's declarations say of them."""
    declared = {each.key: each for each in settings_of("broker")}
    return [
        {
            "key": key,
            "value": value,
            "meaning": declared[key].meaning if key in declared else "",
            "live": key in declared and is_live(declared[key].field),
        }
        for key, value in sorted(settings.items())
        if wanted.lower() in key.lower() or wanted.lower() in value.lower()
    ]


async def producers_of(admin: AdminClient) -> Row:
    rows: list[Row] = []
    problems: list[str] = []

    async def ask(master: tuple[str, str]) -> None:
        name, address = master
        try:
            found = await admin.producers(address)
        except MQError as error:
            problems.append(f"{name}: {error}")
            return
        rows.extend(
            {
                "group": group,
                "broker": name,
                "client_id": each.client_id,
                "address": each.remote_ip,
                "language": each.language,
                "version": each.version,
                "last_ms": each.last_update_timestamp,
            }
            for group, clients in found.items()
            for each in clients
        )

    await each_of(list((await masters_of(admin)).items())[:MAX_ROWS], ask)
    rows.sort(key=lambda row: (row["group"], row["client_id"], row["broker"]))
    return {"producers": rows[:MAX_CLIENTS], "count": len(rows), "problems": problems}


# --- delayed and transactions ---


async def delayed_of(admin: AdminClient) -> Row:
    levels: list[Row] = []
    waiting: list[Row] = []
    problems: list[str] = []

    async def ask(master: tuple[str, str]) -> None:
        name, address = master
        try:
            levels.extend(await _levels(admin, name, address))
            waiting.append(await _timers(admin, name, address))
        except MQError as error:
            problems.append(f"{name}: {error}")

    await each_of(list((await masters_of(admin)).items())[:MAX_ROWS], ask)
    return {
        "levels": sorted(levels, key=lambda row: (row["broker"], row["level"])),
        "timers": sorted(waiting, key=lambda row: row["broker"]),
        "transactions": await _transactions(admin),
        "problems": problems,
        "half_topic": TRANS_HALF_TOPIC,
        "timer_topic": TIMER_TOPIC,
    }


async def _levels(admin: AdminClient, broker: str, address: str) -> list[Row]:
    """By level: how many messages wait, as far as the broker's table says."""
    answer = await admin.ask(address, RequestCode.GET_ALL_DELAY_OFFSET)
    table = _document(answer.body).get("offsetTable")
    names = (await admin.broker_config(address)).get("messageDelayLevel", "").split()
    try:
        stats = await admin.topic_stats(SCHEDULE_TOPIC)
    except NoRoute:
        return []
    rows = []
    for queue, bounds in stats.items():
        level = queue.queue_id + 1
        if queue.broker_name != broker or bounds.max_offset == bounds.min_offset == 0:
            continue
        done = table.get(str(level)) if isinstance(table, dict) else None
        done = max(done if isinstance(done, int) else 0, bounds.min_offset)
        rows.append(
            {
                "broker": broker,
                "level": level,
                "delay": names[level - 1] if level <= len(names) else "",
                "waiting": max(0, bounds.max_offset - done),
                "ever": bounds.max_offset,
                "last_ms": bounds.last_update_timestamp,
            }
        )
    return rows


async def _timers(admin: AdminClient, broker: str, address: str) -> Row:
    """Messages for any time, by topic."""
    row: Row = {"broker": broker, "topics": [], "error": ""}
    try:
        answer = await admin.ask(address, RequestCode.GET_TIMER_METRICS)
    except BrokerError as error:
        row["error"] = str(error)
        return row
    counts = _document(answer.body).get("timingCount")
    for topic, each in sorted(counts.items() if isinstance(counts, dict) else ()):
        count = each.get("count") if isinstance(each, dict) else None
        if isinstance(count, int) and count > 0:
            row["topics"].append((topic, count))
    return row


async def _transactions(admin: AdminClient) -> list[Row]:
    """By broker: half messages that are not settled, at most."""
    try:
        halves = await admin.topic_stats(TRANS_HALF_TOPIC)
    except NoRoute:
        return []
    try:
        settled = await admin.topic_stats(TRANS_OP_HALF_TOPIC)
    except NoRoute:
        settled = {}
    try:
        offsets = await admin.group_offsets(TRANS_GROUP)
    except MQError:
        offsets = {}
    rows = []
    for queue, bounds in halves.items():
        found = offsets.get(queue)
        done = max(found.committed if found is not None else 0, bounds.min_offset)
        rows.append(
            {
                "broker": queue.broker_name,
                "queue": queue.queue_id,
                "open": max(0, bounds.max_offset - done),
                "ever": bounds.max_offset,
                "decisions": sum(
                    each.max_offset for at, each in settled.items() if at.broker_name == queue.broker_name
                ),
                "last_ms": bounds.last_update_timestamp,
            }
        )
    return rows


def _document(body: bytes | memoryview) -> dict[str, Any]:
    try:
        document = msgspec.json.decode(bytes(body)) if len(body) else {}
    except (msgspec.DecodeError, UnicodeDecodeError):
        return {}
    return document if isinstance(document, dict) else {}


# --- users ---


async def accounts_of(admin: AdminClient) -> Accounts:
    """The accounts of every name server and master that has users. Raises the MQError of one of them when
    none shows its users to these keys."""
    info = await admin.cluster_info()
    accounts = await Accounts.of(
        admin, {name: each.broker_addrs for name, each in sorted(info.broker_addr_table.items())}
    )
    if not accounts.servers:
        accounts.check_open()
    return accounts


async def users_of(admin: AdminClient) -> Row:
    accounts = await accounts_of(admin)
    users = await accounts.rows()
    for user in users:
        user["missing"] = [each for each in accounts.servers if each not in user["servers"]]
    return {
        "users": users[:MAX_CLIENTS],
        "supported": True,
        "servers": accounts.servers,
        "closed": {name: str(error) for name, error in accounts.closed.items()},
    }


# --- figures ---


def _rate(text: str | None) -> float | None:
    """The rate over the last ten seconds, of ``10s 60s 600s``."""
    return number_of((text or "").split(" ")[0])


def _difference(figures: dict[str, str], now: str, morning: str) -> int | None:
    high, low = number_of(figures.get(now)), number_of(figures.get(morning))
    return None if high is None or low is None else int(high - low)


def _total(figures: Any) -> float | None:
    known = [each for each in figures if each is not None]
    return sum(known) if known else None
