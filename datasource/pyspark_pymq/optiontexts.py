"""Converts option texts to values and checks each option; errors begin with the option's name.

``pyspark_pymq.options`` defines the options and their combinations. Must not import pyspark.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from mqspark.arrow.cluster.queuechoice import (
    EARLIEST_OFFSET,
    LATEST_OFFSET,
    OffsetSpec,
    Position,
    QueueTexts,
    TopicSelection,
)
from mqspark.arrow.signing import SigningOptions
from mqspark.base.config import INT32_MAX, INT64_MAX, did_you_mean, parse_addresses, told_of
from mqspark.client.remoting.credentials import Credentials
from mqspark.errors import ConfigError, InvalidFilter
from mqspark.message import check_group, check_topic
from mqspark.record.compression import LIMITS, MAX_INFLATED_BYTES, InflateLimits

_ALIASES = {
    "subscribe": "topic",
    "topics": "topic",
    "path": "topic",  # load("a topic")
    "subscribepattern": "topicpattern",
}
_KAFKAS = {
    "kafka.bootstrap.servers": "nameserver",
    "bootstrap.servers": "nameserver",
    "kafka.group.id": "group",
    "kafkaconsumer.polltimeoutms": "pollTimeoutMs",
}
"""Kafka's option names, for hints to users of the Kafka source."""
_MEANT = {
    "nameserver": ("nameserver", "nameservers", "namesrvAddr"),
    "topic": ("topic", "topics", "subscribe", "topicPattern", "subscribePattern", "assign"),
}
"""What users may have wanted to write when an option is missing."""
_SPARK_OWN = frozenset({"checkpointlocation", "queryname"})
"""Spark passes these on to a sink."""
_TABLE_HINT = (
    ". Of a catalog table, Spark passes the OPTIONS to reads only if it was created without a column list, and never "
    "to writes; there they belong to the statement: INSERT INTO t WITH (nameserver = '...', topic = '...') ..., "
    "SELECT * FROM t WITH (...), df.writeStream.options(...).toTable('t')"
)
_SPELLINGS = {
    name.lower(): name
    for name in (
        "topicPattern",
        "subscribePattern",
        "endingOffsets",
        "endingTimestamp",
        "endingOffsetsByTimestamp",
    )
}
"""Spark passes names in lower case; errors show this documented spelling."""
_MAX_DIGITS = 40
_SHOWN_LENGTH = 200
SECRETS = ("accessKey", "secretKey", "securityToken", "schemaAccessKey", "schemaSecretKey")
"""Options whose values are kept nowhere."""


class OptionTexts:
    """Takes options from a mapping; those left at the end are unknown."""

    def __init__(self, options: Mapping[str, str]) -> None:
        self._values: dict[str, str] = {}
        self._spelled: dict[str, str] = {}
        self._seen: dict[str, str] = {}
        """Requested names in lower case, to their documented spelling."""
        for key, value in options.items():
            name = _ALIASES.get(key.lower(), key.lower())
            if name in self._values:
                if key.lower() == "path" or self._spelled[name].lower() == "path":
                    raise ConfigError.of(key, "the topic is given twice, in load(...) and as an option")
                raise ConfigError.of(key, f"means the same as {self._spelled[name]}; give one of them")
            self._values[name] = str(value)
            self._spelled[name] = _SPELLINGS.get(key, key)

    def text(self, name: str) -> str | None:
        self._seen[name.lower()] = name
        value = self._values.get(name.lower())
        return None if value is None else value.strip()

    def is_given(self, name: str) -> bool:
        return name.lower() in self._values

    def given_topics(self) -> str | None:
        """The spelling of the option that selects topics, if there is one."""
        self._seen["topic"] = "topic"
        return next(
            (self._spelled[name] for name in ("topic", "topicpattern", "assign") if name in self._values),
            None,
        )

    def given(self, prefix: str) -> str | None:
        """The spelling of a given option with this prefix, if there is one."""
        return next((self._spelled[name] for name in sorted(self._values) if name.startswith(prefix)), None)

    def check_all_known(self, what: str) -> None:
        """Raises ConfigError for an option that no code has read."""
        unknown = sorted(self._spelled[name] for name in self._values.keys() - self._seen.keys() - _SPARK_OWN)
        if unknown:
            ours = _KAFKAS.get(unknown[0].lower())
            if ours is not None:
                raise ConfigError.of(
                    unknown[0], f"an option of Kafka's; {ours} is the one of the pymq {what}"
                )
            known = sorted(self._seen.values(), key=str.lower)
            hint = did_you_mean(unknown[0], [*known, *self._other_names()])
            raise ConfigError.of(
                unknown[0], f"not an option of the pymq {what}{hint or ';'} it knows {', '.join(known)}"
            )

    def _other_names(self) -> list[str]:
        """The aliases of known options."""
        return [
            _SPELLINGS.get(alias, alias)
            for alias, name in _ALIASES.items()
            if name in self._seen and alias != "path"
        ]

    def _missing(self, name: str, text: str) -> ConfigError:
        """The error that ``name`` is required, with the given option that was perhaps meant to be it."""
        for given in sorted(self._values.keys() - self._seen.keys()):
            spelled = self._spelled[given]
            if _KAFKAS.get(given) == name:
                return ConfigError.of(name, f"{text}; {spelled!r} is Kafka's name for it")
            if hint := did_you_mean(spelled, _MEANT.get(name, (name,))):
                return ConfigError.of(name, f"{text}; {spelled!r} is given{hint.replace(';', ':', 1)}")
        return ConfigError.of(name, f"{text}")

    def nameserver(self) -> str:
        value = self.text("nameserver")
        if not value:
            hint = "" if self._values.keys() - _SPARK_OWN else _TABLE_HINT
            raise self._missing("nameserver", f"required, as host:port, several separated by ';'{hint}")
        with told_of("nameserver"):
            parse_addresses(value, key="nameserver", required=True)
        return value

    def group(self) -> str | None:
        value = self.text("group")
        if value is not None:
            with told_of("group"):
                check_group(value)
        return value

    def signing(self) -> SigningOptions:
        """How requests to the cluster are signed."""
        return self._signing("accessKey", "secretKey", "securityToken", "credentialsFile")

    def registry_signing(self) -> SigningOptions:
        """How requests to a schema registry are signed that has users of its own."""
        return self._signing("schemaAccessKey", "schemaSecretKey", None, "schemaCredentialsFile")

    def _signing(
        self, access_name: str, secret_name: str, token_name: str | None, file_name: str
    ) -> SigningOptions:
        access, secret = self._secret(access_name), self._secret(secret_name)
        token = None if token_name is None else self._secret(token_name)
        file = self.text(file_name)
        for name, value in ((access_name, access), (secret_name, secret)):
            if value is None and (access is not None or secret is not None or token is not None):
                raise ConfigError.of(name, "required with the other keys")
        if file is None:
            return SigningOptions(
                None if access is None or secret is None else Credentials(access, secret, token)
            )
        if access is not None:
            raise ConfigError.of(file_name, f"contradicts {access_name}; give one of them")
        if not file.startswith("/"):
            raise ConfigError.of(file_name, f"an absolute path of the driver and the workers, not {file!r}")
        return SigningOptions(file=file, option=file_name)

    def _secret(self, name: str) -> str | None:
        """The text exactly as given; it is in no error."""
        self._seen[name.lower()] = name
        value = self._values.get(name.lower())
        if value is not None and not value:
            raise ConfigError.of(name, "empty")
        return value

    def flag(self, name: str, default: bool) -> bool:
        value = self.text(name)
        if value is None:
            return default
        if value.lower() not in ("true", "false"):
            raise ConfigError.of(name, f"true or false, not {value!r}")
        return value.lower() == "true"

    def number(self, name: str, default: int, *, lowest: int) -> int:
        value = self.text(name)
        if value is None:
            return default
        number = _whole(value)
        if number is None or number < lowest:
            raise ConfigError.of(name, f"a whole number from {lowest} on, not {_shown(value)}")
        return number

    def positive(self, name: str) -> int | None:
        value = self.number(name, 0, lowest=1)
        return value or None

    def bytes_size(self, name: str) -> int | None:
        """``1048576``, ``512k``, ``64m`` or ``1g``, as in Spark's settings."""
        value = self.text(name)
        if value is None:
            return None
        found = re.fullmatch(r"(\d+)\s*(?:([kmg])b?|b)?", value.lower())
        number = None if found is None else _whole(found[1])
        if found is None or not number:
            raise ConfigError.of(name, f"a size like 1048576, 512k or 64m, not {_shown(value)}")
        return number << {"k": 10, "m": 20, "g": 30, None: 0}[found[2]]

    def inflate_limits(self) -> InflateLimits:
        return InflateLimits(
            self.bytes_size("maxInflatedBytes") or MAX_INFLATED_BYTES,
            self.number("maxInflateRatio", LIMITS.max_ratio, lowest=0),
        )

    def duration_ms(self, name: str, default: int) -> int:
        """``500ms``, ``30s``, ``15m`` or ``1h``, as in Spark's settings."""
        value = self.text(name)
        if value is None:
            return default
        found = re.fullmatch(r"(\d+)\s*(ms|s|m|min|h)", value.lower())
        number = None if found is None else _whole(found[1])
        if found is None or number is None:
            raise ConfigError.of(name, f"a time like 500ms, 30s, 15m or 1h, not {_shown(value)}")
        return number * {"ms": 1, "s": 1000, "m": 60_000, "min": 60_000, "h": 3_600_000}[found[2]]

    @staticmethod
    def check_topic(option: str, name: str) -> None:
        _check_topic(option, name)

    def choice(self, name: str, choices: tuple[str, ...], default: str) -> str:
        value = (self.text(name) or default).lower()
        if value not in choices:
            raise ConfigError.of(name, f"one of {', '.join(choices)}, not {value!r}")
        return value

    def tags(self) -> tuple[str, ...]:
        value = self.text("tags")
        if value is None or value in ("", "*"):
            return ()
        names = tuple(name for part in value.split("||") if (name := part.strip()))
        if not names or "*" in names:
            raise ConfigError.of("tags", f"tags separated by '||', or '*' alone, not {value!r}")
        return names

    def directories(self, name: str) -> tuple[str, ...] | None:
        """Absolute paths, separated by commas; None when it is not given."""
        value = self.text(name)
        if value is None:
            return None
        paths = tuple(path for part in value.split(",") if (path := part.strip()))
        for path in paths:
            if not path.startswith("/"):
                raise ConfigError.of(name, f"absolute paths separated by commas, not {path!r}")
        return paths

    def keys(self) -> tuple[str, ...]:
        """Empty when the option is not given; without a key it would read the whole topic."""
        value = self.text("key")
        if value is None:
            return ()
        if not value:
            raise ConfigError.of("key", "a key, or several separated by spaces, not ''")
        return tuple(value.split())

    def sql_filter(self) -> str | None:
        """Checked here, because brokers see the filter only with the first pull."""
        value = self.text("sqlFilter")
        if value is None:
            return None
        if not value:
            raise ConfigError.of("sqlFilter", "an expression, not ''")
        from mqspark.filter.sql import compile_sql

        try:
            compile_sql(value)
        except InvalidFilter as error:
            raise ConfigError.of("sqlFilter", f"{error}") from None
        return value

    def topics(self) -> TopicSelection:
        given = [name for name in ("topic", "topicpattern", "assign") if name in self._values]
        names, pattern, assign = self.text("topic"), self.text("topicPattern"), self.text("assign")
        if len(given) > 1:
            first, second = (self._spelled[name] for name in given[:2])
            raise ConfigError.of(second, f"contradicts {first}; give one of topic, topicPattern, assign")
        if names is not None:
            listed = tuple(dict.fromkeys(name for part in names.split(",") if (name := part.strip())))
            if not listed:
                raise ConfigError.of("topic", "no topic is named")
            for name in listed:
                _check_topic("topic", name)
            return TopicSelection(names=listed)
        if pattern is not None:
            try:
                re.compile(pattern)
            except (re.error, RecursionError, OverflowError) as error:
                raise ConfigError.of("topicPattern", f"not a regular expression ({error})") from None
            return TopicSelection(pattern=pattern)
        if assign is not None:
            return TopicSelection(assigned=_assigned(assign))
        raise self._missing("topic", "required (or topicPattern, or assign)")

    def offset_spec(
        self,
        prefix: str,
        default: Position,
        *,
        allow_latest: bool = True,
        allow_earliest: bool = True,
        group: str | None = None,
    ) -> OffsetSpec:
        names = (f"{prefix}Offsets", f"{prefix}Timestamp", f"{prefix}OffsetsByTimestamp")
        text, timestamp, by_timestamp = (self.text(name) for name in names)
        chosen = [name for name in names if name.lower() in self._values]
        if len(chosen) > 1:
            raise ConfigError.of(chosen[1], f"contradicts {chosen[0]}; give one of them")
        option = chosen[0] if chosen else names[0]
        if timestamp is not None:
            timestamp_ms = _whole(timestamp)
            if timestamp_ms is None:
                raise ConfigError.of(option, f"milliseconds since the epoch, not {_shown(timestamp)}")
            return OffsetSpec(option, default, timestamp_ms=timestamp_ms)
        if by_timestamp is not None:
            return OffsetSpec(option, default, timestamps_ms=_queue_numbers(option, by_timestamp, lowest=0))
        if text is None:
            return OffsetSpec(option, default)
        if text.startswith("{"):
            offsets = _queue_numbers(option, text, lowest=EARLIEST_OFFSET)
            numbers = {number for queues in offsets.values() for number in queues.values()}
            if LATEST_OFFSET in numbers and not allow_latest:
                raise ConfigError.of(option, "-1 (latest) is no start of a batch read")
            if EARLIEST_OFFSET in numbers and not allow_earliest:
                raise ConfigError.of(option, "-2 (earliest) is no end")
            return OffsetSpec(option, default, offsets=offsets)
        allowed = {
            "earliest": allow_earliest,
            "latest": allow_latest,
            "group": prefix == "starting",
        }
        if not allowed.get(text.lower()):
            words = ", ".join(word for word, permitted in allowed.items() if permitted)
            raise ConfigError.of(option, f"{words} or JSON, not {text!r}")
        position = Position(text.lower())
        if position is Position.GROUP and group is None:
            raise ConfigError.of(option, "group needs the option group")
        return OffsetSpec(option, position)


def _whole(text: str) -> int | None:
    """A whole number that a broker's long can be; None for other texts, of which ``int`` refuses the longest."""
    if not text.isdecimal() or len(text) > _MAX_DIGITS:
        return None
    number = int(text)
    return number if number <= INT64_MAX else None


def _shown(value: object) -> str:
    """The beginning of a value, for an error."""
    text = repr(value)
    return text if len(text) <= _SHOWN_LENGTH else f"{text[:_SHOWN_LENGTH]}..."


def _check_topic(option: str, name: str) -> None:
    with told_of(option, f"{option}: {name!r}"):
        check_topic(name)


def _json_object(option: str, text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ConfigError.of(option, f"not JSON ({error})") from None
    if not isinstance(value, dict) or not value:
        raise ConfigError.of(option, "a JSON object of topics is needed")
    for topic in value:
        _check_topic(option, topic)
    return value


def _queue_numbers(option: str, text: str, *, lowest: int) -> QueueTexts:
    numbers: QueueTexts = {}
    for topic, queues in _json_object(option, text).items():
        if not isinstance(queues, dict) or not queues:
            raise ConfigError.of(option, f"topic {topic!r} needs an object of queues")
        for queue, number in queues.items():
            _check_queue(option, queue)
            if isinstance(number, bool) or not isinstance(number, int) or not lowest <= number <= INT64_MAX:
                raise ConfigError.of(
                    option,
                    f"{topic} {queue}: a whole number from {lowest} on is needed, not {_shown(number)}",
                )
        numbers[topic] = dict(queues)
    return numbers


def _assigned(text: str) -> dict[str, tuple[str, ...]]:
    assigned = {}
    for topic, queues in _json_object("assign", text).items():
        if not isinstance(queues, list) or not queues:
            raise ConfigError.of("assign", f"topic {topic!r} needs a list of queues")
        texts = tuple(dict.fromkeys(str(queue) for queue in queues))
        for queue in texts:
            _check_queue("assign", queue)
        assigned[topic] = texts
    return assigned


def _check_queue(option: str, queue: str) -> None:
    queue_id = _whole(queue.rpartition(":")[2])
    if queue_id is None or queue_id > INT32_MAX:
        raise ConfigError.of(option, f"{_shown(queue)} is not a queue id, nor broker:queue id")
