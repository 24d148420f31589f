"""What goes wrong in a run: a list that depends on the seed alone, and that can be shortened."""

from __future__ import annotations

import errno
import itertools
import random
from collections.abc import Sequence
from dataclasses import dataclass

NODES = ("broker-0", "broker-1", "broker-2", "controller")
KINDS = (
    ("kill", 4),
    ("power", 3),
    ("pause", 4),
    ("cut", 4),
    ("isolate", 4),
    ("reset", 2),
    ("clock", 1),
    ("slow", 1),
    ("disk", 1),
    ("stall", 3),
)


OLDER, OLDER_SHARE = "older copy", 0.25
"""The broker itself cannot see this one; and its share of all damages, beside the one that it has as others."""
SPOIL_KINDS = (
    (
        "cut at a record",
        "cut",
        "segment gone",
        "log gone",
        "identity only",
        "last record gone",
        "older but its note",
    ),
    (OLDER,),
    ("epochs flipped", "epochs gone", "epochs forged"),
    ("zeros", "flip body", "flip size", "flip magic", "flip physical offset"),
    ("flip properties", "flip queue id", "flip queue offset"),  # no CRC covers these
)
UNSEEN = SPOIL_KINDS[-1]
"""Until replicas have compared their logs, nobody sees these."""
SPOILS = tuple(itertools.chain(*SPOIL_KINDS))
"""What is done to the directory of a broker whose power is cut: see ``Machine.spoil``."""
SEEN_SPOILS = tuple(
    SPOILS.index(kind) for kind in ("cut", "log gone", "epochs flipped", "epochs gone", "epochs forged")
)
"""A start sees these at once."""
SPOIL_SHARE = 0.2
"""The share of all runs without a story in which a broker comes back damaged while other things happen."""
ROLES = ("master", "slave-a", "slave-b")
"""Roles of brokers when a fault begins: see ``History.machine_as``."""

STEPS_MS = (-60_000, -1_000, 1_000, 3_600_000)
"""Steps of a clock on the wall."""
CHANGES_S = 10.0
"""How long a cluster changes as a whole."""
SMALL_STEPS_MS = (-3_000, -1_000, 1_000, 4_000)
"""Where it is waited for what is due by that clock."""


@dataclass(frozen=True, slots=True)
class Fault:
    at_s: float
    kind: str
    node: str
    other: str
    for_s: float
    value: int = 0
    when: str = ""
    """It waits from ``at_s`` on for this moment: "asks" (a master asks for somebody new in the SyncStateSet), "grown"
    (that is granted), "led" (a master is elected, alone in the SyncStateSet), or "tables" (a slave has copied them, and
    its log does not go as far)."""

    def __str__(self) -> str:
        text = f"{self.at_s:7.3f} s  {self.kind} {self.node}"
        if self.kind in ("cut", "reset"):
            text += f" -> {self.other}"
        if self.kind in ("spoil", "rot"):
            text += f": {SPOILS[self.value]}"
        elif self.value:
            text += f" ({self.value})"
        text += f" when {self.when}" if self.when else ""
        return text + (f" for {self.for_s:.3f} s" if self.for_s else "")


def draw_faults(
    seed: int,
    begin_s: float,
    end_s: float,
    *,
    power: bool = True,
    lost_disks: bool = True,
    nodes: Sequence[str] = NODES,
    steps_ms: Sequence[int] = STEPS_MS,
) -> list[Fault]:
    """One or two at a time, mostly; at most one lost disk. ``power``: whether it may be cut; else processes are
    killed instead."""
    chance = random.Random(f"faults {seed}")
    mean_s = chance.choice((0.4, 1.0, 2.5, 5.0))
    kinds = [kind for kind, weight in KINDS for _ in range(weight) if power or kind != "power"]
    if chance.random() < 0.3:  # one kind only, again and again
        kinds = [chance.choice(kinds)]
    found = _absences(chance, begin_s, end_s) if chance.random() < 0.25 else []
    if power and chance.random() < 0.15:
        return sorted([*found, *_tears(chance, begin_s, end_s)], key=lambda fault: fault.at_s)
    if chance.random() < 0.15 and power and lost_disks:
        at_s = chance.uniform(begin_s, end_s)
        for_s = min(chance.choice((0.05, 1.0, 3.0)), end_s - at_s)
        found.append(Fault(round(at_s, 3), "lose", chance.choice(NODES[:3]), "controller", round(for_s, 3)))
    at_s = begin_s
    while True:
        at_s += chance.expovariate(1 / mean_s)
        if at_s >= end_s:
            return sorted(found, key=lambda fault: fault.at_s)
        kind, node = chance.choice(kinds), chance.choice(nodes)
        other = chance.choice([each for each in nodes if each != node])
        for_s = min(chance.choice((0.05, 0.5, 1.5, 3.0, 6.0)) * chance.uniform(0.7, 1.3), end_s - at_s)
        value = 0
        if kind == "clock":
            value = chance.choice(steps_ms)
        elif kind == "cut":
            value = chance.choice((0, 1))  # 1: both ways
        elif kind == "disk":
            value = chance.choice((errno.EIO, errno.ENOSPC))
        elif kind == "stall":
            value = chance.choice((100, 500, 2_000))
            for_s = max(for_s, 0.5)
        found.append(Fault(round(at_s, 3), kind, node, other, round(for_s, 3), value))
        if kind in ("disk", "stall") and chance.random() < 0.5:  # much is written and not synced then
            at_s += for_s * chance.uniform(0.5, 1.0)
            cut = "power" if power else "kill"
            found.append(Fault(round(at_s, 3), cut, node, other, round(chance.uniform(0.05, 2.0), 3)))


def draw_changes(seed: int, begin_s: float, end_s: float) -> list[Fault]:
    """What happens to the cluster as a whole: the state of the controller becomes an older one ("restore", ``value``
    milliseconds older), all brokers come back on other ports ("move"), one is apart from the others while all reach the
    controller ("apart"; ``value``: 0 nothing of it arrives, 1 nothing arrives at it, 2 both)."""
    chance = random.Random(f"changes {seed}")
    found: list[Fault] = []
    at_s = begin_s + chance.uniform(0.5, 2.0)
    while at_s < end_s:
        kind = chance.choice(("restore", "move", "apart", "apart"))
        value = {"restore": chance.randint(300, 6_000), "move": 0, "apart": chance.randint(0, 2)}[kind]
        node = "controller" if kind == "restore" else chance.choice(("master", "master", "slave-a"))
        for_s = chance.uniform(0.1, 1.0) if kind != "apart" else chance.uniform(1.0, 7.0)
        found.append(Fault(round(at_s, 3), kind, node, "controller", round(for_s, 3), value))
        at_s += chance.uniform(1.0, 5.0)
    return found


def draw_spoil(seed: int, begin_s: float, end_s: float) -> list[Fault]:
    """Now and then a broker's disk comes back damaged."""
    chance = random.Random(f"spoil {seed}")
    if chance.random() >= SPOIL_SHARE:
        return []
    at_s, for_s = chance.uniform(begin_s, end_s), chance.choice((0.05, 1.0, 3.0))
    node, for_s = chance.choice(NODES[:3]), min(for_s, end_s - at_s)
    return [Fault(round(at_s, 3), "spoil", node, "controller", round(for_s, 3), _any_spoil(chance))]


def draw_story(seed: int, story: str, begin_s: float) -> list[Fault]:
    """The faults of a run that leads to one moment. Nodes are roles: see ``History.machine_as``."""
    chance = random.Random(f"story {seed} {story}")
    at_s = begin_s + chance.uniform(0.1, 1.5)
    found: list[Fault] = []

    def add(after_s: float, kind: str, node: str, for_s: float, value: int = 0, other: str = "controller",
            when: str = "") -> None:  # fmt: skip
        found.append(Fault(round(at_s + after_s, 3), kind, node, other, round(for_s, 3), value, when))

    if story == "majority":  # all who have everything are away, and one is there who has not
        add(0, "cut", "slave-a", 7.0, 1, other="master")
        after_s, down = chance.uniform(3.0, 6.0), chance.choice(("kill", "power"))
        add(after_s, down, "master", chance.uniform(0.5, 4.0))
        add(after_s, down, "slave-b", chance.uniform(0.5, 4.0))
    elif story == "return":  # a slave comes back behind, to a master that has just come back in its term
        away_s = chance.uniform(3.2, 5.0)
        add(0, "isolate", "slave-a", away_s)
        add(away_s - chance.uniform(0.1, 0.8), "power", "master", chance.uniform(0.05, 0.4))
        add(away_s, "stall", "slave-a", 4.0, 500)
    elif story in ("grown", "grown lost"):  # a slave leads as soon as it may
        if story == "grown":
            add(0, "isolate", "slave-a", 13.0)
        else:
            add(12.0, "lose", "slave-a", 1.0)
        add(9.0, "isolate", "slave-b", 9.5)
        add(12.2, "kill", "master", 3.0, when="grown")
    elif story == "torn copy":
        found = _tears(chance, at_s, at_s + 8.0, "slave-a")
    elif story == "spoilt":
        found = _returns_of_the_spoilt(chance, at_s)
    elif story == "taken back":
        found = _led_again(chance, at_s)
    elif story == "changed":
        found = draw_changes(seed, begin_s, begin_s + CHANGES_S)
    elif (
        story == "alone"
    ):  # nobody else has what a master has acknowledged, and nobody knows how much that is
        for node in ("slave-a", "slave-b"):
            add(0, "isolate", node, 12.0)
        away_s = chance.uniform(0.1, 0.6)
        add(7.6, "copy", "master", 0.0)
        add(8.0, "rot", "master", away_s, SPOILS.index("older but its note"))
        add(8.0, "power", "controller", away_s / 2)
    elif story == "shrunk":  # a new master comes back damaged before anybody was counted in
        add(0, "spoil", "master", chance.uniform(0.1, 1.0), chance.choice(SEEN_SPOILS), when="led")
        add(0.1, "kill", "master", 8.0)
    elif story == "severed":
        add(0, "apart", "master", 12.0, chance.randint(0, 2))
    elif story == "unknown":  # a request to count a slave in is lost, and the slave dies
        add(0, "isolate", "slave-a", 5.0)
        for node, for_s in (("controller", chance.uniform(0.1, 0.6)), ("slave-a", 20.0)):
            add(3.0, "kill", node, for_s, when="asks")
    elif story == "heard":  # nobody hears the master but the name server
        for node in ("controller", "slave-a", "slave-b"):
            add(0, "cut", node, 12.0, 1, other="master")
    else:  # tables
        for number in range(4):
            add(2.5 * number, "kill", "master", 1.5, when="tables")
    return sorted(found, key=lambda fault: fault.at_s)


def _any_spoil(chance: random.Random) -> int:
    return SPOILS.index(OLDER if chance.random() < OLDER_SHARE else chance.choice(chance.choice(SPOIL_KINDS)))


def _returns_of_the_spoilt(chance: random.Random, at_s: float) -> list[Fault]:
    """One broker comes back damaged: while the others run, or when all have lost their power: first, with another one,
    or together with both. Twice, in two roles."""
    found: list[Fault] = []
    for node in chance.sample(ROLES, 2):
        rest = [each for each in ROLES if each != node]
        chance.shuffle(rest)
        away_s = chance.uniform(0.1, 0.6)
        found.append(Fault(round(at_s, 3), "spoil", node, "controller", round(away_s, 3), _any_spoil(chance)))
        later_s = chance.choice(((), (3.5, 3.5), (0.0, 3.5), (0.0, 0.0)))
        for other, more_s in zip(rest, later_s, strict=False):
            for_s = away_s + more_s + chance.uniform(0.0, 0.3)
            found.append(Fault(round(at_s, 3), "power", other, "controller", round(for_s, 3)))
        if later_s and chance.random() < 0.5:  # it may not know how much is confirmed
            found.append(Fault(round(at_s, 3), "power", "controller", "broker-0", round(away_s / 2, 3)))
        at_s += 7.0 + chance.uniform(0.0, 2.0)
    return found


def _led_again(chance: random.Random, at_s: float) -> list[Fault]:
    """A master dies with what nobody else has. It comes back to a new master that can write nothing without it, takes
    the end of its log back, and leads again as soon as it may."""
    cut_s = at_s + 8.0  # only these two are in the SyncStateSet now
    kill_s = cut_s + chance.uniform(0.1, 0.8)
    return [
        Fault(round(at_s, 3), "isolate", "slave-b", "controller", 19.0),
        Fault(round(cut_s, 3), "cut", "slave-a", "master", 2.5, 1),
        Fault(round(kill_s, 3), "kill", "master", "controller", round(chance.uniform(2.8, 3.6), 3)),
        Fault(round(kill_s + 1.0, 3), "kill", "master", "controller", 3.0, when="grown"),
    ]


def _tears(chance: random.Random, begin_s: float, end_s: float, node: str = "") -> list[Fault]:
    """One broker's power is cut again and again while much of its log is written and not synced."""
    found: list[Fault] = []
    node, at_s = node or chance.choice(NODES[:3]), begin_s
    while at_s < end_s - 1.0:
        stalled_s = round(chance.uniform(0.3, 0.9), 3)
        found.append(Fault(round(at_s, 3), "stall", node, "controller", stalled_s, 2_000))
        at_s += stalled_s * chance.uniform(0.6, 1.0)
        away_s = round(chance.uniform(0.05, 0.5), 3)
        found.append(Fault(round(at_s, 3), "power", node, "controller", away_s))
        at_s += away_s + chance.uniform(1.0, 2.5)
    return found


def _absences(chance: random.Random, begin_s: float, end_s: float) -> list[Fault]:
    """The controller is away again and again, mostly for less than a master's lease: what it decides arrives late."""
    found: list[Fault] = []
    at_s = begin_s
    while at_s < end_s:
        for_s = round(chance.uniform(0.3, 2.3), 3)
        found.append(
            Fault(round(at_s, 3), chance.choice(("isolate", "pause")), "controller", "broker-0", for_s)
        )
        at_s += for_s + chance.uniform(0.2, 2.0)
    return found
