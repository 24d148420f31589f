"""The controller under whatever brokers, operators and kills do: who is master, since when, and who has everything.

The model knows only what was answered. At any time: one master for an epoch, epochs grow, the SyncStateSet changes by
the master of its epoch alone, and a master that is elected was in the last SyncStateSet that anybody heard of.
"""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from mqspark.protocol.codes import RequestCode
from tests.support.draws import draws
from tests.unit.controller_kit import NAME, ControllerBench

IDS = st.integers(1, 4)
SETS = st.sets(IDS, max_size=4)
NEAR = st.integers(-1, 1)


class ControllerLife(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.directory = Path(tempfile.mkdtemp())
        self.bench = ControllerBench(self.directory)
        self.masters: dict[int, int | None] = {}
        """Epoch → its master, of every answer and notice."""
        self.known: tuple[int | None, int, set[int], int] = (None, 0, set(), 0)
        """The last answer."""
        self.altered: set[frozenset[int]] = set()
        """Sets that the master of the known epoch has asked for since the last look."""

    def teardown(self) -> None:
        shutil.rmtree(self.directory)

    @property
    def joined(self) -> set[int]:
        return set(self.bench.brokers)

    @precondition(lambda self: len(self.joined) < 4)
    @rule()
    def join(self) -> None:
        self.bench.join(len(self.joined) + 1)

    @rule(broker_id=IDS, epoch=st.integers(0, 5), offset=st.integers(0, 3))
    def heartbeat(self, broker_id: int, epoch: int, offset: int) -> None:
        """A newer epoch than the controller's says that its state is an older one: ``test_doubts``."""
        if broker_id in self.joined:
            self.bench.heartbeat(broker_id, epoch=min(epoch, self.known[1]), maxOffset=offset)

    @rule(broker_id=IDS, designate=st.booleans())
    def elect(self, broker_id: int, designate: bool) -> None:
        answer = self.bench.elect(broker_id, designate=designate)
        if answer.code == 0:
            self.heard_of(int(answer.ext["masterEpoch"]), int(answer.ext["masterBrokerId"]))
        self.look()

    @rule(members=SETS, master=IDS, off=NEAR, set_off=NEAR, as_master=st.booleans(), saved=st.booleans())
    def alter(
        self, members: set[int], master: int, off: int, set_off: int, as_master: bool, saved: bool
    ) -> None:
        now, epoch, _, set_epoch = self.known
        if as_master and now is not None:
            master, off, set_off, members = now, 0, 0, members & self.joined | {now}
            for member in members:
                self.bench.heartbeat(member)
        legal = (master, off, set_off) == (now, 0, 0) and now is not None and now in members
        if legal:
            self.altered.add(frozenset(members))
        if saved:
            answer = self.bench.alter(master, epoch + off, members, set_epoch + set_off)
            assert legal or answer.code != 0
        else:  # a kill comes before the disk has it
            header = {"brokerName": NAME, "masterBrokerId": str(master), "masterEpoch": str(epoch + off)}
            body = b'{"syncStateSet":%s,"syncStateSetEpoch":%d}' % (
                str(sorted(members)).encode(),
                set_epoch + set_off,
            )
            self.bench.operator.give(RequestCode.CONTROLLER_ALTER_SYNC_STATE_SET, header, body)
            assert all(each.code != 0 for each in self.bench.operator.heard())
            self.bench.reopen()
        self.look()

    @rule(broker_id=IDS)
    def die(self, broker_id: int) -> None:
        if broker_id in self.joined and self.bench.brokers[broker_id].session.open:
            self.bench.die(broker_id)
            self.bench.brokers[broker_id] = self.bench.connect()
            self.look()

    @rule(ms=st.sampled_from([500, 6_000, 16_000]), hearts=SETS)
    def wait(self, ms: int, hearts: set[int]) -> None:
        self.bench.advance(ms, *(hearts & self.joined))
        self.look()

    @rule()
    def stand_still(self) -> None:
        self.bench.clock.advance(60_000)
        self.bench.core.tick()
        self.look()

    @rule(while_saving=st.booleans(), broker_id=IDS)
    def kill_the_controller(self, while_saving: bool, broker_id: int) -> None:
        if while_saving and broker_id in self.joined:
            peer = self.bench.brokers[broker_id]
            if peer.session.open:
                peer.disconnect()  # perhaps an election that nobody hears of
                assert self.bench.core.take_notices() == [] or not self.bench.core.jobs_due
        self.bench.reopen()
        self.look()

    def look(self) -> None:
        """Ask, and compare with what was known."""
        if not self.joined:
            return
        master, epoch, members, set_epoch = self.bench.info()
        old_master, old_epoch, old_members, old_set_epoch = self.known
        self.heard_of(epoch, master)
        assert epoch >= old_epoch
        assert set_epoch >= old_set_epoch
        assert set_epoch > old_set_epoch or members == old_members
        if epoch == old_epoch:
            assert master == old_master
            assert members == old_members or frozenset(members) in self.altered
        elif master is not None:
            assert members == {master}
            heard = [old_members, *self.altered] if old_epoch else [self.joined]
            assert any(master in each for each in heard), "elected outside the SyncStateSet"
        else:
            assert members <= old_members or frozenset(members) in self.altered
        assert master is None or master in members
        self.known = (master, epoch, members, set_epoch)
        self.altered = set()
        for notice in self.bench.core.take_notices():
            header = notice.header
            assert header.master_epoch is not None
            self.heard_of(header.master_epoch, header.master_broker_id)
            assert header.master_epoch <= epoch

    def heard_of(self, epoch: int, master: int | None) -> None:
        assert self.masters.setdefault(epoch, master) == master, f"two masters of epoch {epoch}"

    @invariant()
    def the_state_is_one_that_can_be(self) -> None:
        for found in self.bench.core.replicas.sets.values():
            found.validate()


TestControllerLife = ControllerLife.TestCase
TestControllerLife.settings = settings(max_examples=draws(60), stateful_step_count=30, deadline=None)
