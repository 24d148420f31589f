"""Brokers: where they are, and the figures that they give of themselves."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from mqspark.errors import MQError
from mqspark.message import MASTER_ID, parse_number
from mqspark_server.survey.surveying import MAX_ROWS, Row, add_to_each, each_of, number_of

if TYPE_CHECKING:
    from mqspark.client.admin import AdminClient


async def masters_of(admin: AdminClient) -> dict[str, str]:
    """Broker name to the address of its master."""
    info = await admin.cluster_info()
    return {
        name: each.broker_addrs[MASTER_ID]
        for name, each in sorted(info.broker_addr_table.items())
        if MASTER_ID in each.broker_addrs
    }


async def of_each_master(admin: AdminClient, ask: Callable[[str, str], Awaitable[None]]) -> list[str]:
    """Asks about each master by its name and address. What failed."""
    problems: list[str] = []

    async def one(master: tuple[str, str]) -> None:
        try:
            await ask(*master)
        except MQError as error:
            problems.append(f"{master[0]}: {error}")

    await each_of(list((await masters_of(admin)).items())[:MAX_ROWS], one)
    return sorted(problems)


async def known_brokers(admin: AdminClient) -> list[Row]:
    """Masters and slaves, without figures."""
    info = await admin.cluster_info()
    return [
        {"cluster": each.cluster, "broker": name, "id": number, "address": address}
        for name, each in sorted(info.broker_addr_table.items())
        for number, address in sorted(each.broker_addrs.items())
    ]


async def broker_rows(admin: AdminClient, most: int = MAX_ROWS) -> tuple[list[Row], int]:
    """Brokers with their figures, and how many were left out."""
    known = await known_brokers(admin)
    await add_figures(admin, known[:most])
    return known[:most], max(0, len(known) - most)


async def add_figures(admin: AdminClient, rows: Sequence[Row]) -> None:
    """``error`` says why a broker has none."""

    async def ask(row: Row) -> Row:
        row |= {"error": "", **figures_of({})}
        return figures_of(await admin.broker_runtime_info(row["address"]))

    await add_to_each(rows, ask)


def figures_of(runtime: Mapping[str, str]) -> Row:
    """None for what a broker does not say."""
    first, end = (number_of(runtime.get(key)) for key in ("commitLogMinOffset", "commitLogMaxOffset"))
    return {
        "version": runtime.get("brokerVersionDesc"),
        "in_tps": _rate(runtime.get("putTps")),
        "out_tps": _rate(runtime.get("getTransferredTps") or runtime.get("getTransferedTps")),
        "disk_ratio": number_of(runtime.get("commitLogDiskRatio")),
        "active": runtime.get("brokerActive", "true") == "true" if runtime else None,
        "stored_today": _difference(runtime, "msgPutTotalTodayNow", "msgPutTotalTodayMorning"),
        "read_today": _difference(runtime, "msgGetTotalTodayNow", "msgGetTotalTodayMorning"),
        "put_p99_ms": number_of(runtime.get("putLatency99")),
        "put_p999_ms": number_of(runtime.get("putLatency999")),
        "put_max_ms": number_of(runtime.get("putMessageEntireTimeMax")),
        "boot_ms": parse_number(runtime.get("bootTimestamp")) or None,
        "first_position": first,
        "end_position": end,
        "log_bytes": None if first is None or end is None else end - first,
        "earliest_ms": parse_number(runtime.get("earliestMessageTimeStamp")),
        "to_flush": runtime.get("remainHowManyDataToFlush"),
        "to_dispatch_bytes": number_of(runtime.get("dispatchBehindBytes")),
    }


def totals_of(brokers: Sequence[Row]) -> Row:
    """How many of ``broker_rows`` answer, their rates together, and the fullest disk."""
    return {
        "answering": sum(not each["error"] for each in brokers),
        "in_tps": total(each["in_tps"] for each in brokers if each["id"] == MASTER_ID),
        "out_tps": total(each["out_tps"] for each in brokers),
        "disk": max((each["disk_ratio"] for each in brokers if each["disk_ratio"] is not None), default=None),
    }


def total(figures: Iterable[float | None]) -> float | None:
    """None when none is known."""
    known = [each for each in figures if each is not None]
    return sum(known) if known else None


def _rate(text: str | None) -> float | None:
    """The rate over the last ten seconds, of ``10s 60s 600s``."""
    return number_of((text or "").split(" ")[0])


def _difference(runtime: Mapping[str, str], now: str, morning: str) -> int | None:
    high, low = number_of(runtime.get(now)), number_of(runtime.get(morning))
    return None if high is None or low is None else int(high - low)
