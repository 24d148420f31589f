"""Whatever replicas lose and whenever the controller ends: what is confirmed stays confirmed, and whoever leads has it.

The model has three replicas with their logs, as lists of messages. At any time at most one of them has lost some of
its log, and may not know it: with an older copy it lacks also what it had noted.
"""

from __future__ import annotations

import shutil
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from mqspark.controller.replicasets import ReplicaTable
from mqspark.controller.statefile import StateFile
from tests.support.draws import draws
from tests.unit.controller_kit import NAME, ControllerBench

IDS = (1, 2, 3)
LEAST = 2
Message = tuple[int, int]
"""The epoch in which it was written, and a number."""


@dataclass
class Copy:
    log: list[Message] = field(default_factory=list)
    epoch: int = -1
    """The last one in its epoch file."""
    damage: str = ""
    is_up: bool = True

    def says(self) -> dict[str, object]:
        return {"epoch": self.epoch, "maxOffset": len(self.log), "damage": self.damage}


class ConfirmedEnd(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.directory = Path(tempfile.mkdtemp())
        self.bench = ControllerBench(self.directory)
        self.copies = {broker_id: Copy() for broker_id in IDS}
        self.confirmed: list[Message] = []
        self.saved = self.led = self.count = 0
        self.lost: int | None = None
        """Who may lack something and was not counted in since."""

    def teardown(self) -> None:
        shutil.rmtree(self.directory)

    @initialize()
    def begin(self) -> None:
        for broker_id in IDS:
            self.bench.incarnations[broker_id] = f"first-{broker_id}"
            self.bench.join(broker_id)
        self.bench.elect(1)
        self.look()
        for broker_id in IDS:
            self.follow(broker_id)
        self.count_in(set(IDS))

    @property
    def master(self) -> int | None:
        """Who leads, and knows it."""
        master = self.bench.info()[0]
        return master if master is not None and self.copies[master].is_up else None

    # --- brokers ---

    @rule(count=st.integers(1, 3))
    def write(self, count: int) -> None:
        if self.master is not None:
            own = self.copies[self.master]
            for _ in range(count):
                self.count += 1
                own.log.append((own.epoch, self.count))

    @rule(broker_id=st.sampled_from(IDS))
    def follow(self, broker_id: int) -> None:
        """It has compared its log with the master's, and has all of it."""
        copy, master = self.copies[broker_id], self.master
        if copy.is_up and master is not None and not self.copies[master].damage:
            copy.log, copy.epoch, copy.damage = [*self.copies[master].log], self.copies[master].epoch, ""

    @rule()
    def confirm(self) -> None:
        """The master acknowledges what all members have."""
        master, _, members, _ = self.bench.info()
        if master is None or master != self.master or len(members) < LEAST:
            return
        end = min(len(self.copies[each].log) for each in members)
        if all(self.copies[each].is_up for each in members) and end > len(self.confirmed):
            self.confirmed = self.copies[master].log[:end]

    @rule(count=st.integers(1, 3))
    def serve(self, count: int) -> None:
        """All are there, get what is written, are counted in, and it is confirmed."""
        for broker_id in IDS:
            if not self.copies[broker_id].is_up:
                self.come_back(broker_id, 0, knows=False, older=False)
        self.elect(1)
        self.write(count)
        for broker_id in IDS:
            self.follow(broker_id)
        self.count_in(set(IDS))
        self.confirm()
        for broker_id in IDS:
            self.heartbeat(broker_id)

    @rule(broker_id=st.sampled_from(IDS))
    def heartbeat(self, broker_id: int) -> None:
        copy = self.copies[broker_id]
        if not copy.is_up:
            return
        said = copy.says()
        if broker_id == self.master and self.confirmed:
            said |= {"confirmOffset": len(self.confirmed), "confirmEpoch": self.confirmed[-1][0]}
        self.bench.heartbeat(broker_id, **said)
        self.bench.save()
        self.look()

    @rule(wanted=st.sets(st.sampled_from(IDS)))
    def count_in(self, wanted: set[int]) -> None:
        master, epoch, members, set_epoch = self.bench.info()
        if master is None or master != self.master:
            return
        own = self.copies[master].log
        has_all = {each for each in wanted if self.copies[each].log == own and self.copies[each].is_up}
        asked = has_all | {master}
        for each in asked:
            self.heartbeat(each)
        answer = self.bench.alter(master, epoch, asked, set_epoch, minInSyncReplicas=LEAST)
        if self.lost in asked and (answer.code == 0 or asked == members):
            self.lost = None
        self.look()

    @rule(broker_id=st.sampled_from(IDS))
    def die(self, broker_id: int) -> None:
        if self.copies[broker_id].is_up:
            self.copies[broker_id].is_up = False
            self.bench.die(broker_id)
            self.look()

    @rule(broker_id=st.sampled_from(IDS), left=st.integers(0, 20), knows=st.booleans(), older=st.booleans())
    def come_back(self, broker_id: int, left: int, knows: bool, older: bool) -> None:
        copy = self.copies[broker_id]
        if older and self.lost in (None, broker_id):
            self.lost = broker_id
            copy.log = copy.log[:left]
            copy.epoch = copy.log[-1][0] if copy.log else -1
            copy.damage = "it is shorter than it was" if knows else copy.damage
        self.bench.restart(broker_id, **copy.says())
        copy.is_up = True
        self.look()

    @rule(first=st.sampled_from(IDS), left=st.integers(0, 20), others=st.integers(0, 2))
    def come_back_first(self, first: int, left: int, others: int) -> None:
        """All lose their power, and one comes back before the others, perhaps with an older copy."""
        for broker_id in IDS:
            self.die(broker_id)
        self.come_back(first, left, knows=False, older=True)
        self.elect(first)
        for broker_id in [each for each in IDS if each != first][:others]:
            self.come_back(broker_id, 0, knows=False, older=False)
            self.elect(broker_id)

    @rule(broker_id=st.sampled_from(IDS))
    def elect(self, broker_id: int) -> None:
        self.bench.elect(broker_id)
        self.look()

    # --- the controller ---

    @rule(ms=st.sampled_from([500, 6_000]))
    def wait(self, ms: int) -> None:
        for _ in range(0, ms, 500):
            self.bench.clock.advance(500)
            for broker_id in IDS:
                self.heartbeat(broker_id)
            self.bench.core.tick()
            self.bench.save()
        self.look()

    @rule()
    def reopen(self) -> None:
        self.bench.reopen()
        self.look()

    def look(self) -> None:
        """A new master begins its epoch."""
        master, epoch, _, _ = self.bench.info()
        if master is None or epoch == self.led:
            return
        self.led = epoch
        own = self.copies[master]
        assert own.log[: len(self.confirmed)] == self.confirmed, f"{master} leads and lacks what is confirmed"
        own.epoch = epoch

    @invariant()
    def what_is_saved_never_falls(self) -> None:
        found = self.bench.core.replicas.get(NAME)
        content = StateFile(self.directory, self.bench.files).load()
        if found is None or content is None:
            return
        table = ReplicaTable(lambda: 1 << 30)
        table.load(content)
        saved = table.sets[NAME].confirmed if NAME in table.sets else 0
        assert self.saved <= saved <= len(self.confirmed)
        assert saved <= found.confirmed
        self.saved = saved


TestConfirmedEnd = ConfirmedEnd.TestCase
TestConfirmedEnd.settings = settings(max_examples=draws(40), stateful_step_count=40, deadline=None)
