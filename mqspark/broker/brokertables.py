"""What the parts of one broker share: its state, the tables in files, and the changes that wait until they are safe.

Must not know who serves requests.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from mqspark.base.clock import Clock
from mqspark.base.config import Limit
from mqspark.broker.config import BrokerConfig
from mqspark.broker.group.membership import MemberNotices
from mqspark.broker.pop.assignment import RequestModes
from mqspark.broker.registration import Publication
from mqspark.broker.replication.tablenotices import TableNotices
from mqspark.broker.savedstate import SavedState
from mqspark.broker.state.changes import PendingChanges
from mqspark.broker.state.state import Random, new_state
from mqspark.store.config import StoreConfig
from mqspark.store.disk.configfile import ConfigFile
from mqspark.store.store import MessageStore

if TYPE_CHECKING:  # imported where users have to log in
    from mqspark.auth.authority import Authority


class BrokerTables:
    """Raises StoreCorrupt when a file of ``config/`` cannot be read. The parameters are those of ``BrokerCore``."""

    def __init__(
        self,
        config: BrokerConfig,
        store_config: StoreConfig,
        store: MessageStore,
        clock: Clock,
        *,
        machine_bytes: int,
        random: Random,
        new_unique_id: Callable[[], str],
        utc_offset_ms: Callable[[int], int],
        config_file: Callable[[str], ConfigFile],
        settings_file: ConfigFile | None,
        authority: Authority | None,
    ) -> None:
        self.config_file = config_file
        self.member_notices = MemberNotices(config)
        self.state = state = new_state(
            config,
            store_config,
            store,
            clock,
            machine_bytes=machine_bytes,
            random=random,
            new_unique_id=new_unique_id,
            utc_offset_ms=utc_offset_ms,
            members_changed=self.member_notices.note,
        )
        self.table_notices = TableNotices()
        self.changes = PendingChanges(
            config, clock, store.deletions, state.long_work, state.stats.rpc, self.table_notices.changed
        )
        self.publication = Publication(config, state.topics, state.mappings, self.changes)
        store.upkeep.compact_duty.topics = state.topics.compacted
        self.modes = RequestModes(Limit(config, "max_group_table_bytes"))
        self.saved = SavedState(state, self.modes, config_file, self.changes.answer_due, settings_file)
        if authority is not None:
            self.saved.watch(authority.saved)
