"""Every option: its error, how it goes with others, its line in the tables of the README. No Spark session."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

import pytest
from pyspark.sql.datasource import CaseInsensitiveDict
from pyspark.sql.types import IntegerType, StructType

from mqspark.errors import ConfigError
from pyspark_pymq import DefaultSource
from pyspark_pymq.options import ReadOptions, StoreOptions, WriteOptions
from pyspark_pymq.optiontexts import OptionTexts

BASE = {"nameserver": "127.0.0.1:9876", "topic": "T"}
README = Path(__file__).parents[2] / "datasource" / "README.md"


def refused(key: str, options: Mapping[str, str], *, streaming: bool) -> str:
    with pytest.raises(ConfigError) as caught:
        ReadOptions.parse(BASE | options, streaming=streaming)
    assert caught.value.key == key
    text = str(caught.value)
    assert text.startswith(f"{key}: ")
    assert "\n" not in text
    return text


@pytest.mark.parametrize(
    ("options", "key"),
    [
        ({"maxOffsetsPerTrigger": "0"}, "maxOffsetsPerTrigger"),
        ({"maxOffsetsPerTrigger": "many"}, "maxOffsetsPerTrigger"),
        ({"minOffsetsPerTrigger": "0"}, "minOffsetsPerTrigger"),
        ({"minOffsetsPerTrigger": "6", "maxOffsetsPerTrigger": "5"}, "minOffsetsPerTrigger"),
        ({"maxTriggerDelay": "5m"}, "maxTriggerDelay"),
        ({"minOffsetsPerTrigger": "6", "maxTriggerDelay": "soon"}, "maxTriggerDelay"),
        ({"maxBytesPerTrigger": "0"}, "maxBytesPerTrigger"),
        ({"maxBytesPerTrigger": "5 apples"}, "maxBytesPerTrigger"),
        ({"pollTimeoutMs": "-1"}, "pollTimeoutMs"),
        ({"startingOffsets": "group"}, "startingOffsets"),
        (
            {"startingOffsets": "earliest", "startingOffsetsByTimestamp": '{"T":{"0":1}}'},
            "startingOffsetsByTimestamp",
        ),
        ({"key": "k"}, "key"),
    ],
)
def test_options_of_streams(options: dict[str, str], key: str) -> None:
    refused(key, options, streaming=True)


@pytest.mark.parametrize(
    ("options", "key"),
    [
        ({"minOffsetsPerTrigger": "5"}, "minOffsetsPerTrigger"),
        ({"maxBytesPerTrigger": "5m"}, "maxBytesPerTrigger"),
        ({"maxTriggerDelay": "5m"}, "maxTriggerDelay"),
        ({"endingTimestamp": "tomorrow"}, "endingTimestamp"),
        ({"endingOffsets": "latest", "endingTimestamp": "5"}, "endingTimestamp"),
        ({"endingOffsetsByTimestamp": "[]"}, "endingOffsetsByTimestamp"),
        ({"maxPartitions": "0"}, "maxPartitions"),
        ({"maxRecordsPerPartition": "0"}, "maxRecordsPerPartition"),
        ({"includeHeaders": "1"}, "includeHeaders"),
        ({"includeProperties": "yes"}, "includeProperties"),
        ({"localRead": "sometimes"}, "localRead"),
        ({"payloadFormat": "thrift"}, "payloadFormat"),
        ({"payloadFormat": "avro"}, "payloadSchema"),
        ({"payloadFormat": "avro", "payloadSchema": "{}", "payloadSchemaFile": "/f"}, "payloadSchemaFile"),
        ({"payloadFormat": "avro", "payloadSchema": "{}", "schemaVersion": "1"}, "schemaVersion"),
        ({"payloadFormat": "avro", "schemaRegistry": "file:///etc/passwd"}, "schemaRegistry"),
        ({"payloadFormat": "avro", "schemaRegistry": "http://h", "schemaVersion": "0"}, "schemaVersion"),
        ({"payloadFormat": "avro", "schemaRegistry": "http://me:key@h"}, "schemaRegistry"),
        ({"payloadFormat": "avro", "schemaRegistry": "http://h, ftp://h"}, "schemaRegistry"),
        ({"payloadFormat": "avro", "schemaRegistry": "http://h", "schemaAccessKey": "a"}, "schemaSecretKey"),
        (
            {"payloadFormat": "avro", "schemaRegistry": "http://h", "schemaCredentialsFile": "f"},
            "schemaCredentialsFile",
        ),
        (
            {"payloadFormat": "avro", "schemaRegistry": "http://h", "schemaCredentials": "me"},
            "schemaCredentials",
        ),
        ({"payloadFormat": "json", "schemaCredentials": "none"}, "schemaCredentials"),
        ({"payloadFormat": "json", "mode": "DEADLETTER"}, "mode"),
        ({"payloadFormat": "json", "payloadMessage": "a.B"}, "payloadMessage"),
        ({"payloadFormat": "json", "mode": "strict"}, "mode"),
        ({"payloadFormat": "json", "messagePrefix": "a.b"}, "messagePrefix"),
        ({"payloadFormat": "json", "columnNameOfCorruptRecord": "`a"}, "columnNameOfCorruptRecord"),
        ({"payloadFormat": "json", "key": "k"}, "key"),
        ({"payloadFormat": "protobuf", "payloadMessage": "a.B"}, "payloadSchema"),
        ({"payloadFormat": "arrow", "mode": "FAILFAST"}, "mode"),
        ({"payloadSchema": "id int"}, "payloadSchema"),
        ({"payloadFormat": "arrow", "includeHeaders": "true"}, "includeHeaders"),
        ({"payloadFormat": "arrow", "key": "k"}, "key"),
        ({"sqlFilter": "a = 1", "tags": "A"}, "sqlFilter"),
        ({"key": "k", "tags": "A"}, "tags"),
        ({"key": "k", "startingOffsets": "earliest"}, "startingOffsets"),
        ({"key": "k", "startingTimestamp": "5"}, "startingTimestamp"),
        ({"key": "k", "endingOffsetsByTimestamp": '{"T":{"0":5}}'}, "endingOffsetsByTimestamp"),
        ({"sqlFilter": "a >"}, "sqlFilter"),
        ({"sqlFilter": " "}, "sqlFilter"),
        ({"key": ""}, "key"),
        ({"endingTimestamp": str(1 << 63)}, "endingTimestamp"),
        ({"startingOffsets": '{"T":{"0":9223372036854775808}}'}, "startingOffsets"),
        ({"archive": "/a", "tags": "A"}, "archive"),
        ({"nameserver": "h:99999"}, "nameserver"),
    ],
)
def test_options_of_batch_reads(options: dict[str, str], key: str) -> None:
    refused(key, options, streaming=False)


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ("startingOfset", "'startingOffsets'"),
        ("starting_offsets", "'startingOffsets'"),
        ("maxofsetspertrigger", "'maxOffsetsPerTrigger'"),
        ("sqlfiltr", "'sqlFilter'"),
        ("subscribed", "'subscribe'"),
        ("failOnDataLos", "'failOnDataLoss'"),
    ],
)
def test_a_misspelt_option_finds_those_that_are_close(given: str, meant: str) -> None:
    text = refused(given, {given: "1"}, streaming=True)
    assert text.startswith(f"{given}: not an option of the pymq source; did you mean {meant}")


def test_a_misspelt_option_of_the_sink() -> None:
    with pytest.raises(ConfigError, match=r"^batchByte: not .* sink; did you mean 'batchBytes'\? it knows "):
        WriteOptions.parse(BASE | {"batchByte": "1m"})
    with pytest.raises(ConfigError, match=r"^colour: not an option of the pymq sink; it knows "):
        WriteOptions.parse(BASE | {"colour": "red"})


def test_a_required_option_that_is_misspelt() -> None:
    with pytest.raises(
        ConfigError, match=r"^nameserver: required.*'nameServr' is given: did you mean 'nameserver'"
    ):
        ReadOptions.parse({"nameServr": "h:1", "topic": "T"}, streaming=False)
    with pytest.raises(ConfigError, match=r"^topic: required.*'topc' is given: did you mean 'topic'\?$"):
        ReadOptions.parse({"nameserver": "h:1", "topc": "T"}, streaming=False)


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (
            {"nameserver": "h:1", "subscrib": "T"},
            r"^topic: required.*'subscrib' is given: did you mean 'subscribe'\?$",
        ),
        ({"nameserver": "h:1", "topicPatern": "T"}, r"^topic: required.*: did you mean 'topicPattern'\?$"),
        (
            {"nameserver": "h:1", "asign": "{}"},
            r"^topic: required.*'asign' is given: did you mean 'assign'\?$",
        ),
        ({"namesrvaddress": "h:1", "topic": "T"}, r"^nameserver: required.*: did you mean 'namesrvAddr'\?$"),
        (
            {"kafka.bootstrap.servers": "h:1", "topic": "T"},
            r"'kafka.bootstrap.servers' is Kafka's name for it$",
        ),
        (
            {"Bootstrap.Servers": "h:1", "topic": "T"},
            r"(?i)^nameserver: .*; 'bootstrap.servers' is Kafka's name for it$",
        ),
    ],
)
def test_what_was_meant_by_an_option_is_said_where_it_is_missing(given: dict[str, str], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        ReadOptions.parse(given, streaming=False)
    with pytest.raises(ConfigError, match=says):
        DefaultSource(CaseInsensitiveDict({"payloadFormat": "arrow", **given})).schema()
    if "topic" in given:
        with pytest.raises(ConfigError, match=says):
            WriteOptions.parse(given)


def test_names_in_lower_case_are_shown_as_documented() -> None:
    """Spark hands them over so."""
    for options, words in (
        ({"endingtimestamp": "5"}, "endingTimestamp: a stream has no end"),
        ({"subscribepattern": "T.*"}, "subscribePattern: contradicts topic"),
    ):
        with pytest.raises(ConfigError, match=f"^{words}"):
            ReadOptions.parse(BASE | options, streaming=True)


@pytest.mark.parametrize("streaming", [True, False])
def test_options_of_the_kafka_source_find_ours(streaming: bool) -> None:
    for theirs, ours in (
        ("kafka.bootstrap.servers", "nameserver"),
        ("kafka.group.id", "group"),
        ("kafkaConsumer.pollTimeoutMs", "pollTimeoutMs"),
    ):
        assert f"{ours} is the one" in refused(theirs, {theirs: "1"}, streaming=streaming)
    assert "it knows " in refused("kafka.ssl.protocol", {"kafka.ssl.protocol": "x"}, streaming=streaming)


@pytest.mark.parametrize(
    ("options", "key"),
    [
        ({"store": " "}, "store"),
        ({"startingPosition": "-1"}, "startingPosition"),
        ({"endingPosition": "end"}, "endingPosition"),
        ({"topicPattern": "T.*"}, "topicPattern"),
        ({"nameserver": "h:1"}, "nameserver"),
        ({"tags": "A"}, "tags"),
        ({"payloadFormat": "arrow"}, "payloadFormat"),
    ],
)
def test_options_of_a_store(options: dict[str, str], key: str) -> None:
    with pytest.raises(ConfigError) as caught:
        StoreOptions.parse({"store": "/s"} | options, streaming=False)
    assert (caught.value.key, str(caught.value).split(":")[0]) == (key, key)
    with pytest.raises(ConfigError, match=f"^{key}: "):
        DefaultSource({"store": "/s"} | options).reader(StructType().add("x", IntegerType()))
    with pytest.raises(ConfigError, match=r"^store: a directory is read in batches"):
        StoreOptions.parse({"store": "/s"}, streaming=True)


def known(monkeypatch: pytest.MonkeyPatch) -> dict[str, set[str]]:
    """What each parser asks for."""
    seen: dict[str, set[str]] = {}

    def note(self: OptionTexts, what: str) -> None:
        seen.setdefault(what, set()).update(self._seen)

    monkeypatch.setattr(OptionTexts, "check_all_known", note)
    for streaming in (True, False):
        ReadOptions.parse(BASE, streaming=streaming)
    StoreOptions.parse({"store": "/s", "endingPosition": "5"}, streaming=False)
    WriteOptions.parse(
        BASE | {"deliveryGuarantee": "exactly-once", "transactionBatch": "1", "transactionId": "x"}
    )
    return seen


def test_the_tables_name_every_option(monkeypatch: pytest.MonkeyPatch) -> None:
    text = README.read_text()
    rows = re.findall(r"^\| ([^|`]+(?:`[^`]*`)?) \|", text, re.MULTILINE)
    named = {name.strip(" `").lower() for row in rows for name in row.split(",")}
    for what, options in known(monkeypatch).items():
        assert options <= named, f"{what}: {sorted(options - named)} are in no table"
