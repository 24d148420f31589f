"""Checks whether a client on this machine can use a cluster. ``mqspark doctor`` prints the findings.

Needs none of the server's packages, so that a client installation can be checked, too.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib.metadata
import ipaddress
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from typing import Any, NamedTuple

from mqspark.base.logs import printable
from mqspark.client.admin import AdminClient
from mqspark.client.remoting.client_options import ClientOptions, resolve_namesrv
from mqspark.errors import MQError, NotANameServer

OK, NOTE, WARNING, FAULT = "ok", "note", "WARN", "FAIL"
_PORTS = {
    9876: "the name server's",
    10909: "the broker's fast port",
    10911: "the broker's",
    10912: "replication's",
}
_VERSIONS = {
    "pyspark": ((4, 1), (4, 3)),
    "pyarrow": ((18,), None),
    "numpy": ((1, 26), None),
    "msgspec": ((0, 19), None),
}
"""Oldest and newest supported versions."""
_SKEW_S = 5
"""Tolerated clock skew: brokers report their up time only in whole seconds."""
_CLEAN_RATIO, _REFUSE_RATIO = 0.75, 0.90
"""diskMaxUsedSpaceRatio, and the ratio at which brokers refuse messages."""
_CONTAINERS = tuple(map(ipaddress.ip_network, ("172.16.0.0/12", "10.88.0.0/16")))
"""Default networks of Docker and Podman containers."""
_JAVA_TIMEOUT_S = 10
_MAX_TEXT = 1000


class Diagnosis(NamedTuple):
    check: str
    level: str
    text: str
    """The finding, and what to do if it is a problem."""


async def diagnose(namesrv: str, options: ClientOptions, timeout_ms: int) -> list[Diagnosis]:
    """The findings of all checks, in order. Raises ConfigError for malformed name server addresses."""
    found = [*_environment(), *await asyncio.to_thread(_java), *_ports()]
    tables: dict[str, frozenset[str]] = {}
    brokers: dict[tuple[str, int], str] = {}
    for address in resolve_namesrv(namesrv):
        found += await _name_server(address, options, timeout_ms, tables, brokers)
    if len(set(tables.values())) > 1:
        known = "; ".join(f"{each}: {', '.join(sorted(names)) or 'none'}" for each, names in tables.items())
        text = (
            f"they know different brokers: {known} - every broker must register at all of them (namesrvAddr)"
        )
        found.append(Diagnosis("name servers", WARNING, text))
    for (name, number), address in sorted(brokers.items()):
        found += await _broker(name, number, address, namesrv, options, timeout_ms)
    return found


def lines_of(found: Sequence[Diagnosis]) -> list[str]:
    return [f"{each.level:4} {each.check}: {printable(each.text, _MAX_TEXT)}" for each in found]


def examine_from(arguments: Sequence[str]) -> int:
    """``mqspark doctor ARGUMENTS`` where click is not installed; returns the exit code."""
    parser = argparse.ArgumentParser(prog="mqspark doctor", description="Check a cluster from here.")
    parser.add_argument("-n", "--nameserver", default=os.environ.get("NAMESRV_ADDR", "127.0.0.1:9876"))
    parser.add_argument("-o", "--output", choices=["table", "json"], default="table")
    try:
        given = parser.parse_args(list(arguments))
    except SystemExit as stop:
        return int(stop.code or 0)
    try:
        found = asyncio.run(diagnose(given.nameserver, ClientOptions(), 3000))
    except MQError as error:
        sys.stderr.write(f"mqspark: error: {printable(str(error), _MAX_TEXT)}\n")
        return 2
    rows = [each._asdict() for each in found]
    text = json.dumps(rows, indent=2) if given.output == "json" else "\n".join(lines_of(found))
    sys.stdout.write(text + "\n")
    return 3 if any(each.level == FAULT for each in found) else 0


def _environment() -> list[Diagnosis]:
    found = [Diagnosis("python", OK, f"{sys.version.split()[0]} at {sys.executable}")]
    for name, (oldest, newest) in {"mqspark": ((0,), None), **_VERSIONS}.items():
        try:
            text = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            found.append(Diagnosis(name, NOTE, "not installed"))
            continue
        version = tuple(int(number) for number in re.findall(r"\d+", text)[:2])
        level = OK
        if version < oldest:
            level, wanted = FAULT, ".".join(map(str, oldest))
            text = f"{text} is older than {wanted}: pip install -U {name}"
        elif newest is not None and version > newest:
            level, text = WARNING, f"{text} is newer than {'.'.join(map(str, newest))}, the last tested"
        found.append(Diagnosis(name, level, text))
    return found


def _java() -> list[Diagnosis]:
    home = os.environ.get("JAVA_HOME")
    java = f"{home}/bin/java" if home else shutil.which("java")
    if java is None:
        text = "none on PATH and no JAVA_HOME; only Spark and RocketMQ's own programs need it"
        return [Diagnosis("java", NOTE, text)]
    try:
        done = subprocess.run(  # noqa: S603
            [java, "-version"], capture_output=True, text=True, timeout=_JAVA_TIMEOUT_S, check=True
        )
    except (OSError, subprocess.SubprocessError) as error:
        return [Diagnosis("java", WARNING, f"{java} does not run: {error}")]
    return [Diagnosis("java", OK, (done.stderr or done.stdout).partition("\n")[0])]


def _ports() -> list[Diagnosis]:
    """Whether default ports are taken on this machine."""
    taken = []
    for port, whose in _PORTS.items():
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                taken.append(f"{port} ({whose})")
    if not taken:
        return [Diagnosis("ports", OK, "the default ports of servers are free here")]
    advice = (
        "a second server here needs others: listenPort, or --namesrv-port and --broker-port of mqspark dev"
    )
    return [Diagnosis("ports", NOTE, f"in use here: {', '.join(taken)}; {advice}")]


async def _name_server(
    address: str,
    options: ClientOptions,
    timeout_ms: int,
    tables: dict[str, frozenset[str]],
    brokers: dict[tuple[str, int], str],
) -> list[Diagnosis]:
    check = f"name server {address}"
    began = time.monotonic()
    try:
        async with AdminClient(address, timeout_ms=timeout_ms, options=options) as admin:
            info = await admin.cluster_info()
    except NotANameServer as error:
        return [Diagnosis(check, FAULT, str(error))]
    except MQError as error:
        return [Diagnosis(check, FAULT, f"{error}{_advice(address)}")]
    elapsed_ms = (time.monotonic() - began) * 1000
    tables[address] = frozenset(info.broker_addr_table)
    for name, data in info.broker_addr_table.items():
        brokers |= {(name, number): each for number, each in data.broker_addrs.items()}
    if not info.broker_addr_table:
        text = "answers, but no broker has registered: start one with this namesrvAddr"
        return [Diagnosis(check, FAULT, text)]
    text = f"answers within {elapsed_ms:.0f} ms; number of brokers: {len(info.broker_addr_table)}"
    return [Diagnosis(check, OK, text)]


def _advice(address: str) -> str:
    if os.path.exists("/.dockerenv") and _is_loopback(address):
        return "; this is a container with its own loopback: use host.docker.internal or a shared network"
    return ""


def _is_loopback(address: str) -> bool:
    host = address.rpartition(":")[0].strip("[]")
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


async def _broker(
    name: str, number: int, address: str, namesrv: str, options: ClientOptions, timeout_ms: int
) -> list[Diagnosis]:
    check = f"broker {name}/{number}"
    try:
        async with AdminClient(namesrv, timeout_ms=timeout_ms, options=options) as admin:
            before_s = time.time()
            runtime = await admin.broker_runtime_info(address)
            after_s = time.time()
    except MQError as error:
        return [Diagnosis(check, FAULT, f"{_unreachable(address, namesrv)}: {error}")]
    text = f"{address} answers, version {runtime.get('brokerVersionDesc', 'unknown')}"
    found = [Diagnosis(check, OK, text)]
    if runtime.get("brokerActive", "true") != "true":
        text = "accepts no messages; see its log (disk full, or too few replicas)"
        found.append(Diagnosis(check, FAULT, text))
    return [*found, *_clock(check, runtime, before_s, after_s), *_disk(check, runtime)]


def _unreachable(address: str, namesrv: str) -> str:
    """Why the registered address of a broker may be unreachable."""
    text = f"it has registered as {address}, which cannot be used from here"
    if _is_loopback(address) and not all(map(_is_loopback, namesrv.replace(",", ";").split(";"))):
        return f"{text}; a loopback address only works on its machine: set brokerIP1 to an address that clients reach"
    try:
        host = ipaddress.ip_address(address.rpartition(":")[0].strip("[]"))
    except ValueError:
        return f"{text}; does the name resolve here?"
    if any(host in network for network in _CONTAINERS if network.version == host.version):
        return (
            f"{text}; it looks like an address inside a container network: set brokerIP1 to the host's address and"
            " publish the broker's port under the same number"
        )
    return f"{text}; is the broker running, is there a firewall, is brokerIP1 an address that clients reach?"


def _clock(check: str, runtime: dict[str, Any], before_s: float, after_s: float) -> list[Diagnosis]:
    parts = re.fullmatch(
        r"\[ (\d{1,6}) days, (\d{1,2}) hours, (\d{1,2}) minutes, (\d{1,2}) seconds \]",
        runtime.get("runtime", ""),
    )
    boot = runtime.get("bootTimestamp", "")
    if parts is None or not re.fullmatch(r"\d{13}", boot):
        return []
    days, hours, minutes, seconds = map(int, parts.groups())
    theirs_s = int(boot) / 1000 + ((days * 24 + hours) * 60 + minutes) * 60 + seconds
    skew_s = theirs_s + 0.5 - (before_s + after_s) / 2
    if abs(skew_s) <= _SKEW_S:
        return []
    which = "ahead of" if skew_s > 0 else "behind"
    text = f"its clock is {abs(skew_s):.0f} s {which} this machine's: run an NTP client on both"
    return [Diagnosis(check, WARNING, text)]


def _disk(check: str, runtime: dict[str, Any]) -> list[Diagnosis]:
    try:
        ratio = float(runtime.get("commitLogDiskRatio", ""))
    except ValueError:
        return []
    if ratio >= _REFUSE_RATIO:
        return [Diagnosis(check, FAULT, f"its disk is {ratio:.0%} full: it refuses messages from 90 % on")]
    if ratio >= _CLEAN_RATIO:
        text = f"its disk is {ratio:.0%} full: it removes the oldest messages early (diskMaxUsedSpaceRatio)"
        return [Diagnosis(check, WARNING, text)]
    return []
