"""The note at name servers that a cluster has a decision log, and which cluster that is.

Name servers forget the route of a topic while its broker is away, but keep their table of settings on disk. That
table may outlive its cluster, or be another cluster's by chance: names of brokers say little ("dev"). Therefore the
note names stores, which have an id of their own (``mqsparkStoreId``), and counts only in a cluster with one of them:

    {"broker": "broker-a", "stores": ["9f...", "41..."]}

The stores are those of the masters that are there when the note is made or renewed. Must not know decisions.
"""

from __future__ import annotations

import json
import time

import msgspec

from mqspark.base.logs import Outages, escaping
from mqspark.client.blocking import BlockingClient
from mqspark.errors import ClientError
from mqspark.message import SINK_DECISIONS_TOPIC

log = escaping("pyspark_pymq")

NAMESPACE = "MQSPARK_SINK"
_KEY = SINK_DECISIONS_TOPIC
_STORE_ID = "mqsparkStoreId"
_MOST_STORES = 64
_RENEW_S = 60.0
"""The time between two looks at the cluster's stores, which brokers that are new or took over change."""

_renewed: dict[str, float] = {}
"""The store of a decision log → when this process last renewed its note."""
_MOST_RENEWED = 256
_outages = Outages(log)
"""By what is wrong with notes: batches come again and again."""


class _Noted(msgspec.Struct):
    broker: str
    stores: set[str]


class LogNote:
    """The note at the name servers of a client."""

    def __init__(self, client: BlockingClient) -> None:
        self._client = client

    def find(self) -> str | None:
        """The broker with this cluster's decision log; None if the cluster has none. While no store can be asked, any
        note counts."""
        noted = self._noted()
        if not noted:
            return None
        present = self._stores()
        found = [each for each in noted if each.stores & present or not present]
        cluster = min(present, default="")
        if found:
            _outages.over(cluster, "the note at the name servers is about this cluster's decision log")
        else:
            what = (
                "a note at the name servers is about another cluster's decision log: it does not count here"
            )
            _outages.failed(cluster, None, what)
        return min((each.broker for each in found), default=None)

    def keep(self, broker: str, address: str) -> None:
        """Note that this broker has the log; renewed once a minute. Raises ClientError if there is no note then."""
        own = self._client.runtime_info(address).get(_STORE_ID, "")
        noted = self._noted()
        is_noted = any(own in each.stores for each in noted)
        now = time.monotonic()
        if is_noted and now - _renewed.get(own, -_RENEW_S) < _RENEW_S:
            return
        present = self._stores() | {own}
        # A broker that is away may come back.
        others = {store for each in noted if each.stores & present for store in each.stores} - present
        stores = [*sorted(present), *sorted(others)][:_MOST_STORES]
        if [each.stores for each in noted] != [set(stores)]:
            try:
                self._client.note(NAMESPACE, _KEY, json.dumps({"broker": broker, "stores": stores}))
            except ClientError as error:
                if not is_noted:
                    raise
                what = "the note of the decision log is not renewed: %s"
                _outages.failed(("renewal", own), None, what, error)
            else:
                _outages.over(("renewal", own), "the note of the decision log is renewed again")
        while len(_renewed) >= _MOST_RENEWED:
            del _renewed[next(iter(_renewed))]
        _renewed[own] = now

    def _noted(self) -> list[_Noted]:
        found = []
        texts = self._client.notes(NAMESPACE, _KEY)
        for text in sorted(texts):
            try:
                found.append(msgspec.json.decode(text, type=_Noted))
            except (msgspec.DecodeError, RecursionError):
                _outages.failed("text", None, "a note of a decision log names no stores: it does not count")
        if len(found) == len(texts):
            _outages.over("text", "the notes of decision logs name stores")
        return found

    def _stores(self) -> set[str]:
        """The ids of the stores whose brokers answer."""
        found = set()
        for _, address in sorted(self._client.masters().items())[:_MOST_STORES]:
            try:
                with self._client.without_retries():
                    found.add(self._client.runtime_info(address).get(_STORE_ID, ""))
            except ClientError:
                continue  # it is away
        return found - {""}
