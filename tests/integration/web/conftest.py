"""What tests of the console share. Each module has a ``broker`` of its own."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import pytest

from mqspark.testing import Broker
from tests.support.visits import browser, log_in


@pytest.fixture
def visitor(broker: Broker) -> Iterator[httpx.Client]:
    """A browser that is logged in with the token."""
    with browser(broker) as client:
        log_in(client, secret=broker.apps[0].loopback_token)
        yield client
