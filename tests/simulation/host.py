"""Time and chance of a simulated world, wherever code of this project would ask its host for them.

They are found by what modules hold, as the module ``time`` or its function ``monotonic``: a module that begins to ask
needs no line here.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import random
import secrets
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest.mock import patch

from mqspark.base.clock import DAY_MS
from mqspark.message import new_unique_id
from tests.simulation.scheduler import EPOCH_MS, ProcessLoop, World

OURS = ("mqspark", "mqspark_server")
"""Packages whose modules get the world's."""
PID = 4_711
"""The number of each process: notes in files have the same length."""
ID_PREFIX = "0" * 20
"""What is the same in all ids of messages."""
SHARED = getattr(random.random, "__self__", None)
"""The state that the functions of ``random`` share."""
NS_OF_S, NS_OF_MS = 1_000_000_000, 1_000_000

Functions = Mapping[str, Callable[..., Any]]


def world_functions(world: World) -> dict[ModuleType, Functions]:
    """What each of these modules has in this world instead of its own."""
    chance = random.Random(f"clients {world.seed}")
    return {
        time: _times(world),
        random: _numbers(chance),
        secrets: _secrets(random.Random(f"secrets {world.seed}")),
        os: {"urandom": chance.randbytes, "getpid": lambda: PID},
        uuid: _uuids(chance),
    }


def _times(world: World) -> Functions:
    """A thread that has nothing to do with the world keeps its time."""
    owner = threading.get_ident()

    def seconds() -> float:
        loop = asyncio._get_running_loop()
        if loop is not None:
            return loop.time()
        return world.now_s if threading.get_ident() == owner else time.monotonic()

    def wall_ns() -> int:
        loop = asyncio._get_running_loop()
        if isinstance(loop, ProcessLoop):
            return loop.process.clock.now_ms() * NS_OF_MS
        is_world = loop is None and threading.get_ident() == owner
        return EPOCH_MS * NS_OF_MS + int(world.now_s * NS_OF_S) if is_world else time.time_ns()

    return {
        **dict.fromkeys(("monotonic", "perf_counter"), seconds),
        **dict.fromkeys(("monotonic_ns", "perf_counter_ns"), lambda: int(seconds() * NS_OF_S)),
        **dict.fromkeys(("thread_time", "process_time"), lambda: 0.0),
        "time": lambda: wall_ns() / NS_OF_S,
        "time_ns": wall_ns,
        "localtime": time.gmtime,
        "sleep": lambda _: None,  # a job of a disk gives way to others, and here it is alone
    }


def _numbers(chance: random.Random) -> Functions:
    names = [name for name, value in vars(random).items() if getattr(value, "__self__", None) is SHARED]
    return {name: getattr(chance, name) for name in names} | {"SystemRandom": lambda: chance}


def _secrets(chance: random.Random) -> Functions:
    def token(size: int | None = None) -> bytes:
        return chance.randbytes(32 if size is None else size)

    def text(size: int | None = None) -> str:
        return token(size).hex()

    return {
        "token_bytes": token,
        "token_hex": text,
        "token_urlsafe": text,
        "randbelow": chance.randrange,
        "randbits": chance.getrandbits,
        "choice": chance.choice,
        "SystemRandom": lambda: chance,
    }


def _uuids(chance: random.Random) -> Functions:
    def drawn(*_: Any) -> uuid.UUID:
        return uuid.UUID(int=chance.getrandbits(128), version=4)

    return {"uuid1": drawn, "uuid4": drawn}


@contextmanager
def replaced_time_and_chance(world: World) -> Iterator[None]:
    """For as long as this lasts, modules of this project have the world's time and chance."""
    replacements: dict[int, Any] = {}
    for module, functions in world_functions(world).items():
        replacements[id(module)] = SimpleNamespace(**{**vars(module), **functions})
        replacements.update((id(getattr(module, name)), new) for name, new in functions.items())
    places = [
        (module, name, value)
        for path, module in list(sys.modules.items())
        if path.partition(".")[0] in OURS
        for name, value in list(vars(module).items())
        if id(value) in replacements
    ]
    try:
        for module, name, value in places:
            setattr(module, name, replacements[id(value)])
        with _counted_ids():
            yield
    finally:
        for module, name, value in places:
            setattr(module, name, value)


@contextmanager
def _counted_ids() -> Iterator[None]:
    """Ids of messages have no address and no chance in them."""
    with ExitStack() as stack:
        for name, value in (
            ("_prefix", ID_PREFIX),
            ("_counter", itertools.count()),
            ("_month_ms", (EPOCH_MS - DAY_MS, EPOCH_MS + DAY_MS)),
        ):
            stack.enter_context(patch.object(new_unique_id, name, value))
        yield
