"""What becomes of the directory of a simulated broker that loses its power and comes back damaged: bits flipped, cut,
zeroed, emptied, restored from an older copy."""

from __future__ import annotations

import random
from collections.abc import Callable
from copy import deepcopy

from mqspark.base.crc import crc32
from tests.crash.disk import Tree
from tests.support.damages import FIELDS, in_body, in_properties
from tests.support.storefiles import records

EPOCHS, IDENTITY, LOG, NOTE = "epochFileCheckpoint", "brokerIdentity", "commitlog", "mqspark.member"
FEW_BYTES = 3_000


def spoilt(tree: Tree, older: Tree, kind: str, chance: random.Random) -> Tree:
    """``older``: an earlier state of it."""
    tree = deepcopy(tree)
    log = tree.get(LOG)
    if not isinstance(log, dict) or not log:
        return tree
    if kind == "older copy":
        return deepcopy(older) or tree
    if kind == "older but its note":
        return (deepcopy(older) or tree) | ({NOTE: tree[NOTE]} if NOTE in tree else {})
    if kind == "identity only":
        return {IDENTITY: tree[IDENTITY]} if IDENTITY in tree else tree
    if kind == "log gone":
        log.clear()
    elif kind.startswith("epochs"):
        for name in (EPOCHS, f"{EPOCHS}.bak"):
            if name in tree:
                _spoil_epochs(tree, name, kind, chance)
    else:
        _spoil_log(log, kind, chance)
    return tree


def _spoil_epochs(tree: Tree, name: str, kind: str, chance: random.Random) -> None:
    content = tree[name]
    assert isinstance(content, bytes)
    if kind == "epochs gone":
        del tree[name]
    elif kind == "epochs flipped":
        tree[name] = _flipped(content, chance.randrange(len(content)))
    else:
        lines = b"900-0\n"
        tree[name] = b"1\n%d\n" % (crc32(lines) & 0x7FFFFFFF) + lines


def _spoil_log(log: Tree, kind: str, chance: random.Random) -> None:
    used = [name for name in sorted(log) if any(records(_bytes(log[name])))]
    if not used:
        return
    last = used[-1]
    name = chance.choice(used) if kind.startswith("flip") else last
    content = _bytes(log[name])
    found = list(records(content))
    end = sum(found[-1])
    if kind == "segment gone":
        del log[name]
    elif kind == "cut at a record":
        log[name] = content[: chance.choice(found)[0]].ljust(len(content), b"\0")
    elif kind == "last record gone":
        log[name] = content[: found[-1][0]].ljust(len(content), b"\0")
    elif kind == "cut":
        log[name] = content[: chance.randrange(end)]
    elif kind == "zeros":
        begin = chance.randrange(end)
        size = min(chance.randrange(1, FEW_BYTES), end - begin)
        log[name] = content[:begin] + bytes(size) + content[begin + size :]
    else:
        begin, size = chance.choice(found)
        log[name] = _flipped(content, begin + PLACES[kind](content[begin : begin + size]))


PLACES: dict[str, Callable[[bytes], int]] = {
    "flip body": in_body,
    "flip properties": in_properties,
    **{f"flip {field}": lambda record, at=at: at for field, at in FIELDS.items()},  # type: ignore[misc]
}


def _flipped(content: bytes, at: int) -> bytes:
    return content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :]


def _bytes(content: bytes | Tree) -> bytes:
    assert isinstance(content, bytes)
    return content
