"""Replicas heal each other's logs: a slave asks its master, and gives it what the master lacks.

A slave goes through its log from record to record. What it has is compared with the master's by checksums of ranges;
where bytes are no valid record, the master's are put in their place. Where the master's are none, the slave gives it
its own. Where both are valid and differ, a queue that leads elsewhere tells which one is wrong; otherwise three
replicas decide by majority, and two only report it: no CRC covers the queue id, the queue offset and other fields.

    begin       a slave copies a master's log: what it has is compared before it counts as in sync
    round       the slave's questions; after ``begin`` without a pause, then at scrubBytesPerSecond, again and again
    answer      the master's half: checksums and bytes, what it lacks, and what it takes

The questions are further fields of request 906, which a master of RocketMQ ignores; then nothing is compared, and a log
line says so. A slave that got bytes from its master that are no valid record asks it to look there (``doubt``). A
master that finds damage there, and is not given good bytes for some seconds, cannot go on (``_give_up``).

Must not know connections, nor how valid records are put into a log.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from mqspark.base.clock import Clock
from mqspark.base.crc import crc32
from mqspark.base.logs import sparing
from mqspark.broker.config import BrokerConfig
from mqspark.broker.replication.follower import Follower
from mqspark.broker.replication.metadata import Request, Round
from mqspark.errors import InvalidMessage, MQError, ProtocolError
from mqspark.message import parse_number
from mqspark.protocol.codes import RequestCode, ResponseCode
from mqspark.protocol.command import Command
from mqspark.protocol.dispatch import Handler, Refusal, ok
from mqspark.protocol.headers.cluster_headers import ExchangeHAInfoRequestHeader
from mqspark.protocol.session import Session
from mqspark.protocol.signature import ACCESS_KEY
from mqspark.record.recordlayout import MIN_RECORD_BYTES, record_size
from mqspark.store.disk.damage import Damage, Outcome
from mqspark.store.disk.notes.membernote import MemberNote
from mqspark.store.store import MessageStore

if TYPE_CHECKING:  # imported where users have to log in
    from mqspark.auth.authority import Authority

log = sparing("mqspark.replication.healing", lines=20)

_CODE = RequestCode.EXCHANGE_BROKER_HA_INFO
RANGE_BYTES = 1 << 19
"""Length of a range that is compared or read; longer, if one record is. A checksum takes the master half a
millisecond."""
FIRST_BYTES = 1 << 30
"""The end of the log that is compared before a slave counts as in sync, if nothing is wrong with it. All of a log
that is known to be damaged."""
GIVEN_BYTES = 64 << 20
"""The most that is given to a master in one round."""
UNHEALED = "a message here is damaged, and is being healed from another replica"
HEAL_MS = 10_000
"""For so long reads wait until a record that they miss is healed."""
PAUSE_MS = 10_000
"""Between two comparisons of the whole log."""
GIVE_UP_MS = 10_000
"""For so long a master waits for the bytes that it lacks, after a slave has doubted it."""
ASK_MS = 1_000
"""A slave asks so often what its master lacks."""
MAX_WANTED = 8
MAX_DISPUTES = 100
MAX_TRIES = 5
"""So often a record is healed that the connection for the log finds to differ; then it is taken back, as others."""
DECIDE_MS = 10_000
"""For so long a slave does not count as in sync because a record differs, both are valid, and nobody has decided which
one is wrong. Two replicas alone cannot."""
MAX_FAILURES = 3
"""After so many failed rounds a slave without a controller counts as in sync as before."""


LOW, BEGIN, END, CHECKSUM = "mqsparkLow", "mqsparkBegin", "mqsparkEnd", "mqsparkChecksum"
WANTED, DISPUTED, DECIDED = "mqsparkWanted", "mqsparkDisputed", "mqsparkDecided"
"""Fields of an answer."""


class _Unable(Exception):
    """The master does not know these questions."""


class Healing:
    def __init__(
        self,
        config: BrokerConfig,
        store: MessageStore,
        clock: Clock,
        authority: Authority | None,
        member: MemberNote | None,
    ) -> None:
        """``authority``: None without users. ``member``: of this replica; None without controllers."""
        self._config = config
        self._store = store
        self._clock = clock
        self._authority = authority
        self._member = member
        self.follower: Follower | None = None
        """On a slave: the copy of the master's log that is healed."""
        self._begun = False
        self._is_whole = False
        self._unable = False
        self._failures = 0
        self._at = self._until = 0
        self._next_ms = 0
        self._asked_ms = -ASK_MS
        self._cuts = 0
        self._doubt: int | None = None
        self._places: list[int] = []
        """Records here that the connection for the log has found to differ, and that are probably damaged."""
        self._refused: list[int] = []
        """Sound records here for which the connection for the log has refused the master, whose are others."""
        self._tries: dict[int, int] = {}
        """How often they were to be healed on behalf of it."""
        self._lost: dict[int, int] = {}
        """Where a valid record is missing here and at the master: begin and end."""
        self._unsure: set[int] = set()
        """Damaged ranges at whose beginnings the master has no valid record: perhaps none begins there."""
        self._undecided: dict[int, int] = {}
        """Records that the comparison has found to differ, while both are valid, and since when."""
        self._told: set[int] = set()
        """Where records differ and nobody can tell which one is right."""
        self._disputed: list[tuple[int, int]] = []
        """What the master asks an opinion of."""
        self._wanted: list[tuple[int, int]] = []
        """What the master lacks."""
        self._doubted_ms: dict[int, int] = {}
        """On a master: places that slaves doubt, and since when."""
        self._opinions: dict[int, dict[int, bytes]] = {}
        """On a master: what other replicas have where records differ."""
        self.compared_bytes = 0
        self.given_bytes = 0

    # --- the slave's half -------------------------------------------------------------------------------------

    def begin(self) -> None:
        """From now on this log is compared with its master's. What it ends with now is compared before it counts as in
        sync; what comes later is checked when it is copied."""
        store = self._store
        self._begun, self._is_whole = True, False
        self._until = store.pipeline.stored_end
        first = store.log.min_offset if self._must_be_whole else max(self._until - FIRST_BYTES, 0)
        self._at = max(store.log.min_offset, first - first % store.log.segment_bytes)
        self._next_ms = self._failures = 0
        self._unable = False
        self._lost.clear()
        self._places.clear()
        self._unsure.clear()
        self._tries.clear()
        self._undecided.clear()
        self._told.clear()

    @property
    def _must_be_whole(self) -> bool:
        return bool(self._store.member.damage) or len(self._store.log_damage) > 0

    @property
    def is_whole(self) -> bool:
        """Whether all that was to be compared is, and nothing is damaged that the master has."""
        if not self._begun or self._is_whole or self._unable:
            return True
        if self._at < self._end or self._places or self._undecided:
            return False
        open_ranges = [each for each in self._store.log_damage if each.low < self._until]
        self._is_whole = all(self._is_lost(each.low, each.high) for each in open_ranges)
        return self._is_whole

    def _is_lost(self, low: int, high: int) -> bool:
        return any(begin <= low and high <= end for begin, end in self._lost.items())

    def is_damage(self, position: int) -> bool:
        """Whether the record here that begins at ``position`` and differs from the master's is damaged, rather than
        another message. If so, the next round heals it."""
        mender = self._store.mender
        own = mender.read(position, MIN_RECORD_BYTES)
        size = mender.whole(position, own).size_bytes
        tries = self._tries.get(position, 0)
        if self._unable or (size and mender.fits(own[:size], position) is not False):
            return False
        if tries >= MAX_TRIES or len(self._tries) >= MAX_DISPUTES:
            return False
        self._tries[position] = tries + 1
        if position not in self._places:
            self._places.append(position)
        return True

    def dispute(self, position: int) -> None:
        """The sound record here that begins at ``position`` differs from the master's: the replicas decide."""
        if position not in self._refused and len(self._refused) < MAX_DISPUTES:
            self._refused.append(position)

    def doubt(self, position: int) -> None:
        """What the master sends from ``position`` on is no valid record."""
        self._doubt = position

    def failed(self) -> None:
        """A round has failed."""
        self._failures += 1
        if self._failures == MAX_FAILURES and not self._config.enable_controller_mode:
            self._cannot("it does not answer")

    def _cannot(self, why: str) -> None:
        if not self._unable:
            log.warning(
                "the log here is not compared with the master's, and not healed from it: %s; only its own"
                " checksums are checked",
                why,
            )
        self._unable = True

    def round(self) -> Round[None]:
        """Compare, heal and give, as much as is due. Raises ProtocolError."""
        try:
            yield from self._tell_and_ask()
            yield from self._mend_known()
            yield from self._settle_disputed()
            yield from self._give_wanted()
            yield from self._go_on()
        except _Unable:
            self._cannot("its master does not know these questions")
        else:
            self._failures = 0

    @property
    def has_work(self) -> bool:
        """Whether there is something to ask although the master's log is not being copied."""
        is_open = bool(self._places) or bool(self._refused) or len(self._store.log_damage) > 0
        return is_open or self._doubt is not None

    def may_come(self, missed: Mapping[int, int]) -> bool:
        """Whether another replica may still give one of these records. ``missed``: places, and since when reads miss
        them (monotonic). One that nobody heals does not stop readers for ever."""
        if self._unable:
            return False
        since_ms = self._clock.monotonic_ms() - HEAL_MS
        return any(each_ms > since_ms and not self._is_lost(at, at + 1) for at, each_ms in missed.items())

    def as_dict(self) -> dict[str, object]:
        """The state for the health report."""
        return {
            "isWhole": self.is_whole,
            "isCompared": not self._unable,
            "comparedBytes": self.compared_bytes,
            "healedBytes": self._store.mender.healed_bytes,
            "givenBytes": self.given_bytes,
        }

    @property
    def pause_s(self) -> float:
        """Until the next round."""
        return 0.2 if self._begun and not self.is_whole else ASK_MS / 1000

    def _ask(self, want: str, low: int, size: int, body: bytes = b"") -> Round[Command]:
        ext = {
            "mqsparkWant": want,
            LOW: str(low),
            "mqsparkSize": str(size),
            "mqsparkReplica": str(self._config.broker_id),
        }
        if self._doubt is not None:
            ext["mqsparkDoubt"] = str(self._doubt)
        answer = yield Request(_CODE, ext, body)
        if END not in answer.ext:
            if answer.code in (ResponseCode.SUCCESS, ResponseCode.REQUEST_CODE_NOT_SUPPORTED):
                raise _Unable
            raise ProtocolError(f"the master answers {answer.code}: {(answer.remark or '')[:200]}")
        if self._doubt is not None and self._store.log.position > self._doubt:
            self._doubt = None
        self._wanted = _ranges(answer.ext.get(WANTED, ""))
        self._disputed = _ranges(answer.ext.get(DISPUTED, ""))
        return answer

    def _tell_and_ask(self) -> Round[None]:
        now_ms = self._clock.monotonic_ms()
        if now_ms - self._asked_ms >= ASK_MS or self._doubt is not None:
            self._asked_ms = now_ms
            yield from self._ask("checksum", 0, 0)

    def _mend_known(self) -> Round[None]:
        """Heal what is known to be damaged, first of all."""
        for place in list(self._places):
            if own := self._sound_at(place):
                yield from self._settle(place, own)
            else:
                yield from self._mend(place)
            self._places.remove(place)
        for low, high, _ in self._store.log_damage:
            at: int | None = None if low in self._unsure or self._is_lost(low, high) else low
            while at is not None and at < high:
                at = yield from self._take_over(at)
                if at is None:
                    # Perhaps no record begins at ``low``: the comparison comes here from the front.
                    self._unsure.add(low)
                    self._at = min(self._at, max(low - low % self._store.log.segment_bytes, 0))

    def _sound_at(self, place: int) -> bytes:
        """The first record there, if it is sound."""
        own = self._store.mender.read(place, MIN_RECORD_BYTES)
        return own[: self._store.mender.whole(place, own).size_bytes]

    def _settle_disputed(self) -> Round[None]:
        """Say again and again what is here, until a majority has decided and both are the same."""
        for place in dict.fromkeys([*self._refused, *self._undecided]):
            if own := self._sound_at(place):
                yield from self._settle(place, own)
                own = self._store.mender.read(place, len(own))[: len(own)]
                answer = yield from self._ask("checksum", place, len(own))
            is_same = not own or answer.ext.get(CHECKSUM) == str(crc32(own))
            if is_same and place in self._refused:
                self._refused.remove(place)
            since_ms = self._undecided.get(place)
            if since_ms is not None and (is_same or self._clock.monotonic_ms() - since_ms >= DECIDE_MS):
                del self._undecided[place]

    def _give_wanted(self) -> Round[None]:
        """Give the master what it lacks, or asks an opinion of, as far as it is sound here."""
        mender, left = self._store.mender, GIVEN_BYTES
        wanted, disputed = self._wanted, self._disputed
        for low, high in [*wanted, *disputed]:
            at, high = low, min(high, self._store.pipeline.stored_end)
            while at < high and left > 0:
                own = mender.read(at, min(RANGE_BYTES, high - at, mender.segment_end(at) - at))
                whole = mender.whole(at, own)
                own = own[: whole.size_bytes]
                if not own:
                    break
                answer = yield from self._give(at, own)
                if (low, high) in disputed:
                    yield from self._obey(at, own, answer)
                left -= len(own)
                at = mender.segment_end(at) if whole.ends_segment else at + len(own)

    def _give(self, at: int, data: bytes) -> Round[Command]:
        self.given_bytes += len(data)
        return (yield from self._ask("give", at, len(data), data))

    def _obey(self, at: int, own: bytes, answer: Command) -> Round[None]:
        """Take over what a majority of replicas has, if it is not what is here."""
        decided = answer.ext.get(DECIDED)
        if decided in (None, str(crc32(own))):
            return
        theirs = bytes((yield from self._ask("bytes", at, len(own))).body)[: len(own)]
        if str(crc32(theirs)) == decided:
            self._store.mender.heal(at, theirs, is_right=True)

    def _go_on(self) -> Round[None]:
        store, now_ms = self._store, self._clock.monotonic_ms()
        if self.follower is None or not self.follower.is_agreed:  # the log here may have to be taken back
            return
        if self._cuts != store.copy.cuts:  # the places behind the cut are no ends of records any more
            self._cuts = store.copy.cuts
            self._at = min(self._at, store.log.newest_segment_start)
            self._until = store.pipeline.stored_end
        rate = store.config.scrub_bytes_per_second
        if self._at >= self._end:
            if now_ms < self._next_ms or not self.is_whole or rate <= 0:
                return
            self._at, self._until = store.log.min_offset, store.pipeline.stored_end
        budget = rate * ASK_MS // 1000
        while self._at < self._end and (budget > 0 or not self.is_whole):
            self._at = before = max(self._at, store.log.min_offset)
            self._at = yield from self._compare(before)
            budget -= self._at - before
            self.compared_bytes += self._at - before
            if self._at <= before:  # it is tried again with the next round
                return
        if self._at >= self._end:
            self._next_ms = now_ms + PAUSE_MS

    @property
    def _end(self) -> int:
        return min(self._until, self._store.pipeline.stored_end)

    def _compare(self, at: int) -> Round[int]:
        """Compare what begins at ``at``, where a record begins; returns where to go on."""
        mender = self._store.mender
        most = min(RANGE_BYTES, self._end - at, mender.segment_end(at) - at)
        own = mender.read(at, most)
        whole = mender.whole(at, own)
        if not whole.size_bytes:
            return (yield from self._mend(at))
        end = mender.segment_end(at) if whole.ends_segment else at + whole.size_bytes
        own = own[: whole.size_bytes]
        answer = yield from self._ask("checksum", at, len(own))
        theirs = answer.ext.get(CHECKSUM)
        begin, stored_end = (parse_number(answer.ext.get(each)) or 0 for each in (BEGIN, END))
        if theirs != str(crc32(own)) and begin <= at and at + len(own) <= stored_end:
            yield from self._settle(at, own)
        return end

    def _take_over(self, at: int) -> Round[int | None]:
        """Heal what the master has of the records from ``at`` on, where none begins here; returns where that ends."""
        mender = self._store.mender
        answer = yield from self._ask("bytes", at, min(RANGE_BYTES, mender.segment_end(at) - at))
        if not mender.whole(at, answer.body).size_bytes:
            return None
        return at + mender.heal(at, bytes(answer.body))

    def _mend(self, at: int) -> Round[int]:
        """No valid record begins here at ``at``, though the one before ends there: take the master's."""
        mender = self._store.mender
        end = min(mender.segment_end(at), max(self._end, at + 1))
        answer = yield from self._ask("bytes", at, min(RANGE_BYTES, mender.segment_end(at) - at))
        if mender.whole(at, answer.body).size_bytes:
            return at + mender.heal(at, bytes(answer.body))
        behind = mender.next_whole(at, end) or end
        if answer.body:
            self._lost[at] = behind
            log.error("the log has no valid record from %d to %d, neither here nor at the master", at, behind)
        elif at >= (parse_number(answer.ext.get(BEGIN)) or 0) and at < self._store.pipeline.stored_end:
            raise ProtocolError(f"the master does not give its log from {at} on")
        else:
            self._lost[at] = behind  # the master has lost it to retention
        return behind

    def _settle(self, at: int, own: bytes) -> Round[None]:
        """The valid records from ``at`` on differ from the master's bytes."""
        mender = self._store.mender
        answer = yield from self._ask("bytes", at, len(own))
        theirs = bytes(answer.body)
        sound = mender.whole(at, theirs).size_bytes
        low = 0
        while low < len(own):
            size = record_size(own, low) if len(own) - low > 8 else len(own) - low
            ours = own[low : low + size]
            place, low = at + low, low + size
            other = theirs[place - at : place - at + size]
            if ours == other:
                continue
            if place - at + size > sound:  # theirs is no valid record, or of another length
                if place - at >= sound:
                    yield from self._give(place, ours)
                else:
                    self._differ(place)
                continue
            ours_fits, theirs_fits = mender.fits(ours, place), mender.fits(other, place)
            if ours_fits is False and theirs_fits is not False:
                mender.heal(place, other, is_right=True)
                continue
            answer = yield from self._give(place, ours)
            if answer.ext.get(DECIDED) == str(crc32(other)):
                mender.heal(place, other, is_right=True)
            elif DECIDED not in answer.ext:
                self._differ(place)

    def _differ(self, place: int) -> None:
        if place not in self._told and len(self._told) < MAX_DISPUTES:
            self._told.add(place)
            self._undecided[place] = self._clock.monotonic_ms()
            text = f"the record at {place} of the log differs from the master's, and both match their CRCs"
            self._store.damages.note(Damage("log.differs", Outcome.WRONG, text, place))

    # --- the master's half ------------------------------------------------------------------------------------

    def watching(self, handlers: dict[int, Handler]) -> dict[int, Handler]:
        """The handler of request 906, which also answers these questions."""
        plain = handlers[_CODE]

        def answer(session: Session, command: Command) -> Any:
            if "mqsparkWant" not in command.ext:
                return plain(session, command)
            return self.answer(command)

        return {_CODE: answer}

    def answer(self, command: Command) -> bytes:
        """Raises Refusal."""
        header = command.header(ExchangeHAInfoRequestHeader)
        if not self._may_ask(command.ext.get(ACCESS_KEY, "")):
            raise Refusal(ResponseCode.NO_PERMISSION, "only brokers may compare logs")
        low, size = header.mqspark_low or 0, min(header.mqspark_size or 0, RANGE_BYTES)
        store, ext, body = self._store, {}, b""
        try:
            if header.mqspark_doubt is not None:
                self._doubted(header.mqspark_doubt)
            if header.mqspark_want == "give":
                decided = self._take(header.mqspark_replica or 0, low, bytes(command.body))
                if decided is not None:
                    ext[DECIDED] = str(crc32(decided))
            elif size > 0 and store.log.min_offset <= low < store.pipeline.stored_end:
                wanted = max(header.mqspark_size or 0, 0)
                found = store.mender.read(low, size)
                found = found[: store.pipeline.stored_end - low]
                if header.mqspark_want == "bytes":
                    body = found
                elif len(found) >= wanted:
                    ext[CHECKSUM] = str(crc32(found[:wanted]))
        except (MQError, OSError) as error:
            raise Refusal(ResponseCode.SYSTEM_ERROR, str(error)) from None
        ext[BEGIN], ext[END] = str(store.log.min_offset), str(store.pipeline.stored_end)
        lacking = [(each.low, each.high) for each in store.log_damage]
        ext[WANTED] = _text(lacking[:MAX_WANTED])
        ext[DISPUTED] = _text(
            [(each, each + len(next(iter(found.values())))) for each, found in self._opinions.items()][
                :MAX_WANTED
            ]
        )
        return ok(command, ext, body)

    def _may_ask(self, access_key: str) -> bool:
        """Whether the user of a request may read and write the log."""
        return self._authority is None or self._authority.super_signer(access_key) is not None

    def _give_up(self, reason: str) -> None:
        """On a master that lacks bytes that a slave needs, and is not given them. Raises OSError."""
        if self._member is not None:
            self._member.suspect(reason)

    def _doubted(self, place: int) -> None:
        store, now_ms = self._store, self._clock.monotonic_ms()
        if not store.log.min_offset <= place < store.pipeline.stored_end:
            return
        store.log_damage.suspect(place)
        if not store.log_damage.covers(place, place + 1):
            self._doubted_ms.pop(place, None)
            return
        if len(self._doubted_ms) >= MAX_DISPUTES:
            self._doubted_ms.clear()
        since_ms = self._doubted_ms.setdefault(place, now_ms)
        if now_ms - since_ms >= GIVE_UP_MS:
            self._doubted_ms.clear()
            self._give_up(
                f"the log holds no valid record at {place}, which a slave needs, and no slave has it"
            )

    def _take(self, replica: int, low: int, data: bytes) -> bytes | None:
        """Bytes of a slave: they are put where there is no valid record here, and are an opinion where there is one.
        Returns what a majority has there, if it is known."""
        mender = self._store.mender
        if mender.whole(low, data).size_bytes != len(data) or not data:
            raise InvalidMessage(f"the bytes given for {low} are no valid records", field="log")
        own = mender.read(low, len(data))[: len(data)]
        if own == data:
            if low in self._opinions:
                return self._decide(replica, low, data, own)
            return data
        if not mender.whole(low, own).size_bytes:
            if mender.heal(low, data):
                log.warning("the log was healed at %d by replica %d", low, replica)
            return None
        return self._decide(replica, low, data, own)

    def _decide(self, replica: int, low: int, data: bytes, own: bytes) -> bytes | None:
        mender = self._store.mender
        if mender.fits(own, low) is False and mender.fits(data, low) is not False:
            self._opinions.pop(low, None)
            mender.heal(low, data, is_right=True)
            return data
        if low not in self._opinions and len(self._opinions) >= MAX_DISPUTES:
            self._opinions.pop(next(iter(self._opinions)))
        opinions = self._opinions.setdefault(low, {})
        opinions[replica] = data
        if len(opinions) < 2:
            text = f"the record at {low} of the log differs from that of replica {replica}, and both match their CRCs"
            self._store.damages.note(Damage("log.differs", Outcome.WRONG, text, low))
            return None
        voices = [own, *opinions.values()]
        best = max(voices, key=voices.count)
        if 2 * voices.count(best) <= len(voices):
            return None
        if best != own:
            mender.heal(low, best, is_right=True)
        if all(voice == best for voice in opinions.values()):
            del self._opinions[low]
        return best


def _ranges(text: str) -> list[tuple[int, int]]:
    """Raises ProtocolError."""
    found = []
    for part in text.split(";")[:MAX_WANTED] if text else ():
        low, _, high = part.partition("-")
        if not (low.isdecimal() and high.isdecimal() and len(part) < 42 and int(low) < int(high)):
            raise ProtocolError(f"{part[:60]!r} is no range of a log")
        found.append((int(low), int(high)))
    return found


def _text(ranges: list[tuple[int, int]]) -> str:
    return ";".join(f"{low}-{high}" for low, high in ranges)
