"""What an operator may set of topics and groups: names, limits and texts, declared here for every face. Commands make
options of them, HTTP makes documents.

Must not know how they are shown, nor how they are changed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

from mqspark.errors import InvalidMessage
from mqspark.message import PERM_READ, PERM_WRITE, MessageExt, MessageQueue

_DIGITS = 19


class WholeNumbers(NamedTuple):
    """Whole numbers from ``least`` to ``most``. ``Annotated[int, QUEUES]`` is one of these in an option of a command,
    in a document of HTTP and in a form."""

    least: int
    most: int

    def read(self, name: str, values: Sequence[str]) -> int:
        """A field of a form. Raises InvalidMessage."""
        text = values[0].strip() if values else ""
        digits = text.removeprefix("-")
        is_whole = digits.isascii() and digits.isdecimal() and len(digits) <= _DIGITS
        if is_whole and self.least <= int(text) <= self.most:
            return int(text)
        raise InvalidMessage(f"{name}: give a whole number from {self.least} to {self.most}", field=name)

    def __get_pydantic_core_schema__(
        self, source: Any, handler: Callable[[Any], dict[str, Any]]
    ) -> dict[str, Any]:
        return {**handler(source), "ge": self.least, "le": self.most}


QUEUE_IDS = WholeNumbers(0, 0x7FFF)
QUEUES = WholeNumbers(1, QUEUE_IDS.most)
"""The queues of a topic at one broker."""
SHARED_QUEUES = WholeNumbers(0, 0x7FFF)
"""In POP mode: of how many neighbours a consumer shares the queues; 0: of all."""
OFFSETS = WholeNumbers(0, 1 << 62)
"""Offsets of messages that may be given."""
MAX_VALUE = 4_096
"""Characters of the value of a setting."""
MAX_RESOURCE = 512
"""Characters of the resource of a rule."""
MAX_NAME = 255
"""Characters of the name of a topic or group."""
PERMS = {"r": PERM_READ, "w": PERM_WRITE, "rw": PERM_READ | PERM_WRITE, "none": 0}
"""As commands spell them → PermName's bits."""
PERM_WORDS = {"read and write": "rw", "read only": "r", "write only": "w", "neither": "none"}
"""As pages say what producers and consumers may do → as commands spell it."""
ModeName = Literal["PULL", "POP"]
"""How members consume a topic whose queues the broker assigns."""
MODES = {"CONSUME_PASSIVELY": "push", "CONSUME_ACTIVELY": "pull", "CONSUME_POP": "pop"}
"""RocketMQ's ConsumeType of a group → as people say it."""


def perm_text(perm: int) -> str:
    """``perm`` may have other bits, too."""
    return next(text for text, bits in PERMS.items() if bits == perm & PERMS["rw"])


def perm_words(perm: int) -> str:
    return next(words for words, each in PERM_WORDS.items() if each == perm_text(perm))


def place_of(queue: MessageQueue | MessageExt) -> str:
    """A queue, or that of a message, in one word, as people give and read it."""
    return f"{queue.broker_name}:{queue.queue_id}"


def rule_text(rule: Mapping[str, Any]) -> str:
    """What a user may do or not."""
    sources = f" from {' '.join(rule['sources'])}" if rule["sources"] else ""
    return f"{rule['decision']} {','.join(rule['actions'])} {rule['resource']}{sources}"


class Setting(NamedTuple):
    field: str
    """A field of RocketMQ's TopicConfig or SubscriptionGroupConfig, whose JSON name is HTTP's, too."""
    option: str
    """The option of commands."""
    text: str
    span: WholeNumbers | None = None
    """None: yes or no."""
    words: Mapping[str, int] | None = None
    """What commands call the numbers."""
    labels: Mapping[str, str] | None = None
    """What forms call these words."""

    @property
    def label(self) -> str:
        """Its name in forms."""
        return self.text.partition(":")[0].removesuffix(".")

    def read(self, name: str, values: Sequence[str]) -> int | bool:
        """A field of a form. Raises InvalidMessage."""
        if self.span is None:
            return any(values)
        if self.words is None or self.labels is None:
            return self.span.read(name, values)
        if values[0] not in self.labels:
            raise InvalidMessage(f"{name}: choose one of {', '.join(self.labels)}", field=name)
        return self.words[self.labels[values[0]]]

    @property
    def word(self) -> str:
        """Its name in rows."""
        return self.option.partition("/")[0].removeprefix("--").replace("-", "_")


def settings_row(settings: Iterable[Setting], config: object) -> dict[str, Any]:
    """The settings of a topic or a group, by their words."""
    return {each.word: getattr(config, each.field) for each in settings}


READ_QUEUES = Setting("read_queue_nums", "--read-queues", "Queues to read, per broker.", QUEUES)
_PERM = "Producers and consumers may: 4 read, 2 write, 1 inherit."
TOPIC_SETTINGS = (
    READ_QUEUES,
    Setting("write_queue_nums", "--write-queues", "Queues to write, per broker.", QUEUES),
    Setting("perm", "--perm", _PERM, WholeNumbers(0, 7), PERMS, PERM_WORDS),
    Setting("order", "--order/--no-order", "Whether routes keep its queues while a broker is down."),
)

_RETRIES = "Attempts before a message becomes a dead letter."
RETRIES = Setting("retry_max_times", "--retries", _RETRIES, WholeNumbers(-1, 1_000_000))
ORDERED = Setting("consume_message_orderly", "--ordered/--unordered", "Whether members consume in order.")
GROUP_SETTINGS = (
    RETRIES,
    Setting(
        "retry_queue_nums", "--retry-queues", "Queues of the retry topic.", WholeNumbers(0, QUEUE_IDS.most)
    ),
    ORDERED,
    Setting("consume_enable", "--enabled/--disabled", "Whether members may consume."),
    Setting("consume_broadcast_enable", "--broadcast/--no-broadcast", "Whether broadcasting is allowed."),
    Setting(
        "consume_timeout_minute",
        "--consume-timeout",
        "Minutes that a member may take for a message.",
        WholeNumbers(1, 1_000_000),
    ),
    Setting(
        "notify_consumer_ids_changed_enable",
        "--notify/--no-notify",
        "Whether members are told when others come or go.",
    ),
)
