"""Public test tools: a real broker in your test, and time that you move.

    from mqspark.testing import Broker

    with Broker() as broker:            # ready in some ten milliseconds, any free port, a temporary store
        producer = Producer(broker.namesrv, group="g")

``Broker`` and ``Cluster`` run what ``mqspark dev`` runs, in a background thread with an event loop of its
own. When the ``with`` block ends, nothing is left: no thread, socket, file descriptor or file. pytest users
get the fixture ``mq_broker`` with ``pytest_plugins = ["mqspark.testing.pytest_plugin"]`` in their
``conftest.py``. Needs the extra ``mqspark[server]``.
"""

from mqspark.testing.clock import FakeClock
from mqspark.testing.cluster import Broker, Cluster

__all__ = ["Broker", "Cluster", "FakeClock"]
