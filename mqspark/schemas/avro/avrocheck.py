"""Whether bytes are a value of an Avro type: the value is walked over, not built.

A function for each type, made once: it takes the bytes and a position, and returns the position behind the value. It
raises ``_ValueMisfit``, or IndexError where the bytes end, and the records around it note on the way out which field
it was.

Bounded: values are counted before they are visited, by their types; what depends on the payload (items, values of
maps, branches of unions, types inside themselves) when it is known. A value of no bytes (null, a record of such) is not
visited; readers do make objects of these, so they are counted, too. ``MAX_NESTING`` bounds a type inside itself.
"""

from __future__ import annotations

from collections.abc import Callable

from mqspark.errors import SchemaTooLarge
from mqspark.schemas.avro.avrotypes import AvroType, all_types
from mqspark.schemas.parsedschema import AVRO, ENDS_EARLY, TOO_MUCH_TOGETHER, Check, Effort, Flaw

MAX_NESTING = 100
"""Values of a recursive type inside each other; Protobuf has the same limit."""
MAX_EMPTY_ITEMS = 100_000
"""Items of an array that take no bytes."""
MAX_EMPTY_VALUES = 1_000_000
"""Values of no bytes in all: fields of records, items of arrays, and what is in them."""
MAX_VISITS = 5_000_000
"""Values of one payload: half a second. The largest message has fewer bytes."""
MAX_CHAIN = 300
"""Records inside each other, with nothing between them, by their places or names."""
_MAX_DIGITS = 1_000
"""A decimal of more digits is bytes."""

_Walk = Callable[[bytes, int], int]
_WIDTHS = {"float": 4, "double": 8}


class _ValueMisfit(Exception):
    def __init__(self, problem: str, *path: str) -> None:
        super().__init__(problem)
        self.problem = problem
        self.path = list(path)
        """The innermost step first."""


def payload_checks(root: AvroType) -> tuple[Check, Callable[[Effort], Check]]:
    """The check of single payloads, and what makes one for the payloads of a batch. Raises SchemaTooLarge."""
    if _longest_chain(root) > MAX_CHAIN:
        raise SchemaTooLarge("records inside each other by their names", MAX_CHAIN, kind=AVRO)
    walks = _AvroCheckWalks(_recursive_records(root))
    walk = walks.of(root)
    visits = walks.visits_of(root)

    def check(payload: bytes | memoryview) -> Flaw | None:
        walks.counts.begin(MAX_VISITS)
        return checked(payload)

    def checked(payload: bytes | memoryview) -> Flaw | None:
        data = bytes(payload)
        walks.nesting.clear()
        try:
            walks.counts.visit(visits)
            end = walk(data, 0)
        except _ValueMisfit as error:
            return Flaw("".join(reversed(error.path)).removeprefix("."), error.problem)
        except IndexError:
            return Flaw("", ENDS_EARLY)
        except RecursionError:
            return Flaw("", "the value has too many types inside each other")
        if end == len(data):
            return None
        return Flaw("", f"the value ends {len(data) - end} bytes before the payload")

    def of_batch(effort: Effort) -> Check:
        def check_next(payload: bytes | memoryview) -> Flaw | None:
            if effort.left < 0:
                return Flaw("", TOO_MUCH_TOGETHER)
            most = int(effort.left * MAX_VISITS)
            walks.counts.begin(most)
            flaw = checked(payload)
            effort.left -= (most - walks.counts.visits_left) / MAX_VISITS
            return Flaw("", TOO_MUCH_TOGETHER) if effort.left < 0 and most < MAX_VISITS else flaw

        return check_next

    return check, of_batch


class _Counts:
    """How many values a payload may still have."""

    def __init__(self) -> None:
        self.begin(MAX_VISITS)

    def begin(self, visits: int) -> None:
        self._empties = MAX_EMPTY_VALUES
        self.visits_left = visits

    def take_empties(self, count: int) -> None:
        self._empties -= count
        if self._empties < 0:
            raise _ValueMisfit(f"there are more than {MAX_EMPTY_VALUES} values of no bytes")

    def visit(self, count: int) -> None:
        self.visits_left -= count
        if self.visits_left < 0:
            raise _ValueMisfit(f"there are more than {MAX_VISITS} values")


class _AvroCheckWalks:
    def __init__(self, recursive: set[int]) -> None:
        self._recursive = recursive
        self._made = dict[int, _Walk]()
        self.nesting = dict[int, int]()
        """How many values of a recursive record are open."""
        self.counts = _Counts()
        self._empty = dict[int, bool]()
        self._sizes = dict[int, int]()
        self._visits = dict[int, int]()

    def of(self, found: AvroType) -> _Walk:
        if found.type in _PRIMITIVE and found.decimal is None:
            return _PRIMITIVE[found.type]
        walk = self._made.get(id(found))
        if walk is None:
            if found.type == "record":
                return self._record(found)
            walk = self._made[id(found)] = self._other(found)
        return walk

    def _other(self, found: AvroType) -> _Walk:
        if found.decimal is not None and found.decimal[0] <= _MAX_DIGITS:
            return _decimal(_bytes if found.type == "bytes" else _fixed(found.size), found)
        if found.type == "fixed":
            return _fixed(found.size)
        if found.type == "enum":
            return _enum(found)
        if found.type == "union":
            names = [each.fullname for each in found.parts]
            return _union(
                names, [(self.of(each), self.visits_of(each) - 1) for each in found.parts], self.counts
            )
        if found.type == "array":
            item = found.parts[0]
            if self.is_empty(item):
                return _array_of_empties(self.counts, self.size_of_empty(item))
            return _array(self.of(item), self.visits_of(item), self.counts)
        if found.type == "map":
            return _map(self.of(found.parts[0]), 1 + self.visits_of(found.parts[0]), self.counts)
        return _PRIMITIVE[found.type]

    def _record(self, found: AvroType) -> _Walk:
        fields = list[tuple[str, _Walk]]()
        nesting, key, counts = self.nesting, id(found), self.counts
        count = sum(self.size_of_empty(each.type) for each in found.fields if self.is_empty(each.type))

        def walk(data: bytes, at: int) -> int:
            if count:
                counts.take_empties(count)
            for name, inner in fields:
                try:
                    at = inner(data, at)
                except _ValueMisfit as error:
                    error.path.append(f".{name}")
                    raise
                except IndexError:
                    raise _ValueMisfit(ENDS_EARLY, f".{name}") from None
            return at

        def counted(data: bytes, at: int) -> int:
            depth = nesting.get(key, 0) + 1
            if depth > MAX_NESTING:
                raise _ValueMisfit(f"more than {MAX_NESTING} values of {found.name} are inside each other")
            nesting[key] = depth
            counts.visit(visits)
            at = walk(data, at)
            nesting[key] = depth - 1
            return at

        visits = self._visits_inside(found)
        self._made[key] = chosen = counted if key in self._recursive else walk
        fields += [
            (field.name, self.of(field.type)) for field in found.fields if not self.is_empty(field.type)
        ]
        return chosen

    def is_empty(self, found: AvroType) -> bool:
        """Whether each value takes no bytes. A record inside itself, without a way out, has no value."""
        if found.type == "null":
            return True
        if found.type == "fixed":
            return found.size == 0
        if found.type != "record":
            return False
        if id(found) not in self._empty:
            self._empty[id(found)] = False
            self._empty[id(found)] = all(self.is_empty(field.type) for field in found.fields)
        return self._empty[id(found)]

    def size_of_empty(self, found: AvroType) -> int:
        """How many values a value of no bytes is, with those in it: there may be very many in a few records."""
        if found.type != "record":
            return 1
        if id(found) not in self._sizes:
            self._sizes[id(found)] = 1 + sum(self.size_of_empty(field.type) for field in found.fields)
        return self._sizes[id(found)]

    def visits_of(self, found: AvroType) -> int:
        """How many visits a value surely is. A recursive record, and what unions, arrays and maps have, are counted
        when they are met."""
        if found.type != "record" or id(found) in self._recursive:
            return 1
        if id(found) not in self._visits:
            self._visits[id(found)] = 1 + self._visits_inside(found)
        return self._visits[id(found)]

    def _visits_inside(self, record: AvroType) -> int:
        return sum(self.visits_of(field.type) for field in record.fields if not self.is_empty(field.type))


def _longest_chain(root: AvroType) -> int:
    known = dict[int, int]()

    def chain(found: AvroType) -> int:
        if id(found) not in known:
            known[id(found)] = 1
            known[id(found)] = 1 + max((chain(field.type) for field in found.fields), default=0)
        return known[id(found)]

    return max(map(chain, all_types(root)))


def _recursive_records(root: AvroType) -> set[int]:
    """At least one of each circle of types."""
    found, done, open_ = set[int](), set[int](), set[int]()
    waiting = [(root, False)]
    while waiting:
        each, leaving = waiting.pop()
        if leaving:
            open_.discard(id(each))
            done.add(id(each))
        elif id(each) in open_:
            found.add(id(each))
        elif id(each) not in done:
            open_.add(id(each))
            waiting.append((each, True))
            waiting += [(part, False) for part in each.inner]
    return found


def _read_long(data: bytes, at: int) -> tuple[int, int]:
    byte = data[at]
    at += 1
    if byte < 0x80:
        return byte >> 1 ^ -(byte & 1), at
    number, shift = byte & 0x7F, 7
    while True:
        byte = data[at]
        at += 1
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            break
        shift += 7
        if shift > 63:
            raise _ValueMisfit("a number has more than ten bytes")
    if number >> 64:
        raise _ValueMisfit("a number has more than 64 bits")
    return number >> 1 ^ -(number & 1), at


def _long(data: bytes, at: int) -> int:
    if data[at] < 0x80:
        return at + 1
    return _read_long(data, at)[1]


def _int(data: bytes, at: int) -> int:
    if data[at] < 0x80:
        return at + 1
    number, end = _read_long(data, at)
    if not -(1 << 31) <= number < 1 << 31:
        raise _ValueMisfit(f"{number} is no int")
    return end


def _boolean(data: bytes, at: int) -> int:
    if data[at] > 1:
        raise _ValueMisfit(f"byte {data[at]} is no boolean")
    return at + 1


def _null(data: bytes, at: int) -> int:
    return at


def _fixed(size: int) -> _Walk:
    def walk(data: bytes, at: int) -> int:
        end = at + size
        if end > len(data):
            raise IndexError
        return end

    return walk


def _bytes(data: bytes, at: int) -> int:
    size, at = _read_long(data, at)
    if size < 0:
        raise _ValueMisfit(f"a length is {size}")
    if size > len(data) - at:
        raise IndexError
    return at + size


def _string(data: bytes, at: int) -> int:
    size = data[at]
    at += 1
    if size >= 0x80:
        size, at = _read_long(data, at - 1)
    elif size & 1:
        raise _ValueMisfit("a length is negative")
    else:
        size >>= 1
    end = at + size
    if size < 0:
        raise _ValueMisfit(f"a length is {size}")
    if end > len(data):
        raise IndexError
    try:
        data[at:end].decode()
    except UnicodeDecodeError as error:
        raise _ValueMisfit(f"the text is not UTF-8 at its byte {error.start}") from None
    return end


def _decimal(inner: _Walk, found: AvroType) -> _Walk:
    """Readers would round a number with more digits."""
    digits, size = (found.decimal or (0,))[0], found.size
    limit = 10**digits

    def walk(data: bytes, at: int) -> int:
        start = at if size else _read_long(data, at)[1]
        end = inner(data, at)
        if not -limit < int.from_bytes(data[start:end], "big", signed=True) < limit:
            raise _ValueMisfit(f"the decimal has more than {digits} digits")
        return end

    return walk


_PRIMITIVE: dict[str, _Walk] = {
    "null": _null,
    "boolean": _boolean,
    "int": _int,
    "long": _long,
    "bytes": _bytes,
    "string": _string,
    **{name: _fixed(size) for name, size in _WIDTHS.items()},
}


def _enum(found: AvroType) -> _Walk:
    count = len(found.symbols)

    def walk(data: bytes, at: int) -> int:
        number, end = _read_long(data, at)
        if not 0 <= number < count:
            raise _ValueMisfit(f"{number} is none of the {count} symbols of {found.name}")
        return end

    return walk


def _union(names: list[str], branches: list[tuple[_Walk, int]], counts: _Counts) -> _Walk:
    """``branches``: each with the visits that a value of it is besides that of the union."""
    count = len(branches)

    def walk(data: bytes, at: int) -> int:
        number, at = _read_long(data, at)
        if not 0 <= number < count:
            raise _ValueMisfit(f"{number} is none of the {count} types {', '.join(names[:10])}")
        inner, visits = branches[number]
        if visits:
            counts.visit(visits)
        return inner(data, at)

    return walk


def _blocks(data: bytes, at: int) -> tuple[int, int]:
    """Number of items of the next block, and where they begin."""
    count, at = _read_long(data, at)
    if count < 0:
        _, at = _read_long(data, at)
        count = -count
    return count, at


def _array_of_empties(counts: _Counts, size: int) -> _Walk:
    """``size``: of each of its items, as ``_AvroCheckWalks.size_of_empty``."""

    def walk(data: bytes, at: int) -> int:
        items = 0
        while True:
            count, at = _blocks(data, at)
            if count == 0:
                return at
            items += count
            if items > MAX_EMPTY_ITEMS:
                raise _ValueMisfit(f"an array has {items} items of no bytes, more than {MAX_EMPTY_ITEMS}")
            counts.take_empties(count * size)

    return walk


def _visit_block(data: bytes, at: int, count: int, visits: int, counts: _Counts) -> None:
    """No more values than bytes are left; where those end, the walk does."""
    counts.visit(min(count, len(data) - at) * visits)


def _array(item: _Walk, visits: int, counts: _Counts) -> _Walk:
    def walk(data: bytes, at: int) -> int:
        index = 0
        while True:
            count, at = _blocks(data, at)
            if count == 0:
                return at
            last = index + count
            _visit_block(data, at, count, visits, counts)
            try:
                while index < last:
                    at = item(data, at)
                    index += 1
            except _ValueMisfit as error:
                error.path.append(f"[{index}]")
                raise

    return walk


def _map(value: _Walk, visits: int, counts: _Counts) -> _Walk:
    def walk(data: bytes, at: int) -> int:
        while True:
            count, at = _blocks(data, at)
            if count == 0:
                return at
            _visit_block(data, at, count, visits, counts)
            for _ in range(count):
                start, at = at, _string(data, at)
                try:
                    at = value(data, at)
                except _ValueMisfit as error:
                    _, key = _read_long(data, start)
                    error.path.append(f"[{data[key:at].decode()[:40]!r}]")
                    raise

    return walk
