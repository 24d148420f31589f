"""Public test tools: a real broker in your test, and time that you move.

    from mqspark.testing import Broker

    with Broker() as broker:            # ready in some ten milliseconds, any free port, a temporary store
        producer = Producer(broker.namesrv, group="g")

``Broker`` and ``Cluster`` run what ``mqspark dev`` runs, in a background thread with an event loop of its
own. When the ``with`` block ends, nothing is left: no thread, socket, file descriptor or file. ``Clients`` makes
producers and consumers for them that end with it, ``FakeClock`` is a time that you move. pytest has all of them
as fixtures (``mqspark.testing.pytest_plugin``). Needs ``mqspark[testing]``.

The names are loaded when they are first used.
"""

from __future__ import annotations

import importlib
import importlib.util
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mqspark.testing.clients import Clients
    from mqspark.testing.cluster import Broker, Cluster
    from mqspark.testing.fake_clock import FakeClock

__all__ = ["Broker", "Clients", "Cluster", "FakeClock"]

_HOMES = {"Broker": "cluster", "Clients": "clients", "Cluster": "cluster", "FakeClock": "fake_clock"}


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if home == "cluster" and importlib.util.find_spec("numpy") is None:
        raise ImportError(f"mqspark.testing.{name} needs NumPy: pip install 'mqspark[testing]'")
    value = getattr(importlib.import_module(f"{__name__}.{home}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
