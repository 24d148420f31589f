"""One broker with gRPC and the console for the tests of this folder, and topics that the tests name."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from mqspark.client.sync import AdminClient
from mqspark.testing import Broker


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    settings = {
        "grpcEnable": True,
        "enableLmq": True,
        "enableMultiDispatch": True,
        "recallMessageEnable": True,
    }
    with Broker(http=True, settings=settings) as one:
        yield one


@pytest.fixture(scope="module")
def topic_of_type(broker: Broker) -> Callable[..., str]:
    """``topic_of_type(name, type, queues)`` creates it and returns its name."""

    def make(name: str, kind: str = "NORMAL", queues: int = 4) -> str:
        with AdminClient(broker.namesrv) as admin:
            admin.create_topic(name, queues=queues, attributes={"message.type": kind})
        return name

    return make
