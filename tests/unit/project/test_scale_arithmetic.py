"""docs/scale.md counts with the rates of docs/performance.md, and counts right."""

from __future__ import annotations

import math
import re
from pathlib import Path

DOCS = Path(__file__).parents[3] / "docs"
SCALE, PERFORMANCE = ((DOCS / name).read_text() for name in ("scale.md", "performance.md"))


def row(page: str, begin: str) -> list[str]:
    """The cells of the only row whose first cell is this."""
    (line,) = (each for each in page.splitlines() if each.startswith(f"| {begin} |"))
    return [cell.strip() for cell in line.strip("|").split("|")][1:]


def number(text: str) -> float:
    found = re.search(r"[\d,]+(?:\.\d+)?", text)
    assert found, text
    return float(found[0].replace(",", ""))


ASYNC, SYNC, PULL = (
    number(row(PERFORMANCE, f"{what}, raw frames, 1 KB{how}")[0])
    for what, how in (("send", ", ASYNC_FLUSH"), ("send", ", SYNC_FLUSH"), ("pull", ""))
)


def test_the_rates_of_a_broker_are_those_that_were_measured_last() -> None:
    assert row(SCALE, "a send of 1 KiB, ASYNC_FLUSH; SYNC_FLUSH")[0].startswith(
        f"{ASYNC:,.0f}; {SYNC:,.0f} /s"
    )
    assert row(SCALE, "a pull of 1 KiB")[0] == f"{PULL:,.0f} /s"
    (pair,) = re.findall(r"send to a SYNC_MASTER .*?, (0\.\d+) of a single broker", PERFORMANCE, re.MULTILINE)
    assert row(SCALE, "a synchronous slave")[0] == f"{pair} of the rate"


def test_the_limits_of_a_host_follow_from_the_rates() -> None:
    arithmetic, gives = row(SCALE, "cores")
    brokers = int(number(arithmetic.partition(":")[2]))
    assert f"{brokers} brokers \N{MULTIPLICATION SIGN} {ASYNC:,.0f} /s" in arithmetic
    assert gives.startswith(f"{brokers * ASYNC / 1e6:.1f} M ")
    enough = []
    for limit in ("network in, 25 Gbit/s", "disk, 4 GB/s of sequential writes"):
        arithmetic, gives = row(SCALE, limit)
        bytes_a_second = 25e9 / 8 if "Gbit" in limit else 4e9
        messages = bytes_a_second / 1_150
        enough.append(math.ceil(messages / ASYNC))
        assert gives.startswith(f"{messages / 1e6:.1f} M "), gives
        assert gives.endswith(f": {enough[-1]} brokers"), gives
    assert f"{enough[0]} to {enough[1]} brokers are enough; {brokers} pay off" in SCALE
    idle = row(SCALE, "a broker, idle")[0]
    memory_mb, idle_ms = number(idle.partition(",")[0]), number(idle.partition(",")[2])
    assert row(SCALE, "memory of idle brokers")[1].startswith(f"{(brokers * memory_mb + 48) / 1e3:.1f} GB")
    assert row(SCALE, "idle processor time")[1].startswith(f"{brokers * idle_ms / 1e3:.1f} of a core")
    assert row(SCALE, "ports")[1] == str(brokers * 10)
