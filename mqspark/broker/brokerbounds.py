"""All that peers can make a broker keep: under one budget, and with users, with a share for each of them.

Must not know what is kept.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from mqspark.base.bounded import Bounded, Ledger, TableBudget, Tables
from mqspark.base.config import Limit
from mqspark.base.shares import Holders, Shares
from mqspark.broker.state.state import BrokerState

if TYPE_CHECKING:  # imported where users have to log in
    from mqspark.auth.authority import Authority


class BrokerBounds:
    def __init__(
        self,
        state: BrokerState,
        authority: Authority | None,
        bounded: Iterable[Bounded],
    ) -> None:
        config = state.config
        self._authority = authority
        self._timed_shares: tuple[Shares, ...] = (
            state.delayed, state.check_points, state.acknowledgements, state.calls.shares
        )  # fmt: skip
        """The bounds of what is in no table."""
        self.budget = budget = TableBudget(
            lambda: config.tables_bound(state.memory.machine_bytes), "maxTablesBytes"
        )
        holders: Holders | None = None
        if authority is not None:
            holders = Holders(
                authority.limited_user,
                authority.limited,
                Limit(config, "max_table_share_per_user"),
                lambda: budget.bound,
            )
        for shares in self._timed_shares:
            shares.holders = holders
        self.tables = Tables(*bounded, budget=budget, holders=holders)

    @property
    def ledgers(self) -> list[Ledger]:
        return [table for table in self.tables if isinstance(table, Ledger)]

    @property
    def shares(self) -> list[Shares]:
        """What users hold, by kind; empty without users."""
        if self._authority is None:
            return []
        return [*(each.shares for each in self.ledgers), *self._timed_shares]

    def as_text(self) -> dict[str, str]:
        """Rows of the table of code 28."""
        budget = self.budget
        rows = {"mqsparkTables": f"{budget.bytes} of {budget.bound} bytes, {budget.refused} refused"}
        for bounded in self.tables:
            rows[f"mqsparkTable_{bounded.name}"] = (
                f"{bounded.bytes} of {bounded.bound} bytes, {bounded.entries} entries, {bounded.refused} refused"
            )
        return rows
