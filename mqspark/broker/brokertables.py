"""What the parts of one broker share: its state, the tables in files, and the changes that wait until they are safe.

Must not know who serves requests.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from mqspark.base.config import Limit
from mqspark.broker.group.membership import MemberNotices
from mqspark.broker.pop.assignment import RequestModes
from mqspark.broker.registration import Publication
from mqspark.broker.replication.tablenotices import TableNotices
from mqspark.broker.savedstate import SavedState
from mqspark.broker.state.changes import PendingChanges
from mqspark.broker.state.state import BrokerState
from mqspark.store.disk.configfile import ConfigFile

if TYPE_CHECKING:  # imported where users have to log in
    from mqspark.auth.authority import Authority


class BrokerTables:
    """Raises StoreCorrupt when a file of ``config/`` cannot be read. Other parameters are those of
    ``BrokerCore``."""

    def __init__(
        self,
        state: BrokerState,
        member_notices: MemberNotices,
        config_file: Callable[[str], ConfigFile],
        settings_file: ConfigFile | None,
        authority: Authority | None,
    ) -> None:
        self.config_file = config_file
        self.state = state
        self.member_notices = member_notices
        config, store = state.config, state.store
        self.table_notices = TableNotices()
        self.changes = PendingChanges(
            config, state.clock, store.deletions, state.long_work, state.stats.rpc, self.table_notices.changed
        )
        self.publication = Publication(config, state.topics, state.mappings, self.changes)
        store.upkeep.compact_duty.topics = state.topics.compacted
        self.modes = RequestModes(Limit(config, "max_group_table_bytes"))
        self.saved = SavedState(state, self.modes, config_file, self.changes.answer_due, settings_file)
        if authority is not None:
            self.saved.watch(authority.saved)
