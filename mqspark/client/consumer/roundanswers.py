"""What brokers have answered in one round of a rebalance. A group has the same members for all of its topics, and a
broker that is silent for one of them is not waited for again: a round of many topics costs one timeout a broker.
"""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from mqspark.errors import ConnectionLost, RequestTimeout

T = TypeVar("T")


class RoundAnswers:
    def __init__(self) -> None:
        self.members: dict[str, list[str]] = {}
        """Address → all client ids of the group."""
        self.silent: dict[str, RequestTimeout | ConnectionLost] = {}
        """Address → the failure of the last request."""

    async def ask(self, addresses: Sequence[str], question: Callable[[str], Awaitable[T]]) -> T:
        """The answer of one of these brokers, of which there is at least one. Raises what ``question`` raises."""
        able = [address for address in addresses if address not in self.silent]
        random.shuffle(able)  # spreads load
        for address in able:
            try:
                return await question(address)
            except (RequestTimeout, ConnectionLost) as error:
                self.silent[address] = error
        raise self.silent[addresses[0]]
