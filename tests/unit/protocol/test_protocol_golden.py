"""Frames recorded from RocketMQ and known answers of its codec classes."""

from __future__ import annotations

import json
import pathlib
from typing import Any

import pytest

from mqspark.auth.access import header_of
from mqspark.errors import ProtocolError
from mqspark.protocol import codes, fastjson
from mqspark.protocol.bodies.body import decode_body, encode_body
from mqspark.protocol.bodies.client_bodies import (
    GetConsumerListByGroupResponseBody,
    HeartbeatData,
    LockBatchRequestBody,
)
from mqspark.protocol.bodies.topic_bodies import ClusterInfo, TopicRouteData
from mqspark.protocol.codes import Language, RequestCode, ResponseCode
from mqspark.protocol.command import BINARY, JSON, Command, encode_request
from mqspark.protocol.connection import Connection
from mqspark.protocol.headers.header import _fields, to_ext
from tests.support.frames import decode_register_body, encode_command
from tests.support.protocol_classes import HEADERS

GOLDEN = pathlib.Path(__file__).parents[2] / "golden"
RECORDINGS = sorted((GOLDEN / "frames").glob("*.jsonl"))


def vectors(name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (GOLDEN / "vectors" / name).read_text().splitlines() if line.strip()]


def decode(frame: bytes) -> Command:
    (command,) = Connection().receive_data(frame)
    return command


def members(frame: bytes) -> dict[str, Any]:
    length = int.from_bytes(frame[5:8], "big")
    header = json.loads(frame[8 : 8 + length])
    assert isinstance(header, dict)
    return header


# --- recordings -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("recording", RECORDINGS, ids=lambda path: path.stem)
def test_recorded_frames_decode_and_encode_again(recording: pathlib.Path) -> None:
    streams: dict[tuple[int, str], bytearray] = {}
    for line in recording.read_text().splitlines():
        record = json.loads(line)
        frame = bytes.fromhex(record["frame_hex"])
        streams.setdefault((record["conn"], record["dir"]), bytearray()).extend(frame)
        command = decode(frame)
        assert (command.code, command.opaque, command.flag, command.version) == (
            record["code"],
            record["opaque"],
            record["flag"],
            record["version"],
        )
        assert Language(command.language).name == record["language"]
        again = encode_command(command)
        if command.serialize_type == BINARY:
            assert again == frame
        else:
            assert members(again) == members(frame)
            body_length = len(frame) - 8 - int.from_bytes(frame[5:8], "big")
            assert again[len(again) - body_length :] == frame[len(frame) - body_length :]
        header_type = None if command.is_response else header_of(command.code)
        if header_type is not None and "errors" not in recording.stem:
            header = command.header(header_type)
            for name, value in to_ext(header).items():
                assert command.ext.get(name, value) == value, (command, name)
    for stream in streams.values():
        whole = Connection().receive_data(bytes(stream))
        connection, pieces = Connection(), []
        for start in range(0, len(stream), 1000):
            pieces += connection.receive_data(bytes(stream[start : start + 1000]))
        assert [encode_command(command) for command in pieces] == [
            encode_command(command) for command in whole
        ]


def test_recorded_bodies_decode() -> None:
    request_bodies: dict[int, Any] = {34: HeartbeatData, 41: LockBatchRequestBody}
    response_bodies: dict[int, Any] = {
        105: TopicRouteData,
        106: ClusterInfo,
        38: GetConsumerListByGroupResponseBody,
    }
    seen: set[int] = set()
    for recording in RECORDINGS:
        asked: dict[tuple[int, int], int] = {}
        for line in recording.read_text().splitlines():
            record = json.loads(line)
            command = decode(bytes.fromhex(record["frame_hex"]))
            key = record["conn"], command.opaque
            if not command.is_response and record["dir"] == "c2s":
                asked[key] = command.code
                body_type = request_bodies.get(command.code)
                if command.code == RequestCode.REGISTER_BROKER:
                    wrapper = decode_register_body(
                        bytes(command.body), command.version
                    ).topic_config_serialize_wrapper
                    assert len(wrapper.topic_config_table) > 1
                    seen.add(103)
            elif record["dir"] == "s2c" and command.code == 0:
                body_type = response_bodies.get(asked.get(key, -1))
            else:
                continue
            if body_type is None:
                continue
            seen.add(asked[key])
            body = decode_body(body_type, command.body)
            assert decode_body(body_type, encode_body(body)) == body
    assert seen == {34, 38, 41, 103, 105, 106}


def test_every_recorded_body_that_looks_like_json_is_read() -> None:
    count = 0
    for recording in RECORDINGS:
        for line in recording.read_text().splitlines():
            command = decode(bytes.fromhex(json.loads(line)["frame_hex"]))
            body = bytes(command.body)
            if body[:2] in (b'{"', b"{{", b"{}") and command.code in (0, 34, 41, 42, 46):
                assert isinstance(fastjson.loads(body), dict)
                count += 1
    assert count > 500


def test_malformed_requests_of_the_error_recording_are_refused_by_the_typed_header() -> None:
    refused = []
    for line in (GOLDEN / "frames" / "errors.jsonl").read_text().splitlines():
        record = json.loads(line)
        command = decode(bytes.fromhex(record["frame_hex"]))
        header_type = header_of(command.code)
        if command.is_response or header_type is None:
            continue
        try:
            command.header(header_type)
        except ProtocolError as error:
            refused.append(str(error))
    assert any("malformed" in text for text in refused)
    assert any("missing" in text for text in refused)


# --- vectors ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "vector", vectors("frames.jsonl"), ids=lambda vector: f"{vector['serialize']} {vector['name']}"
)
def test_frame_vectors(vector: dict[str, Any]) -> None:
    frame = bytes.fromhex(vector["frame_hex"])
    command = decode(frame)
    said = vector["decodedAgain"]
    assert said.startswith(
        f"code={command.code} flag={command.flag} opaque={command.opaque} version={command.version} "
        f"remark={'null' if command.remark is None else command.remark} ext="
    )
    assert said.endswith(f"body={command.body.hex() if command.body else 'null'}")
    assert command.has_ext == ("ext=null" not in said)
    for name, value in command.ext.items():
        assert f"{name}={value if value or command.serialize_type == JSON else 'null'}" in said
    again = encode_command(command)
    assert again == frame if command.serialize_type == BINARY else members(again) == members(frame)


@pytest.mark.parametrize(
    "vector",
    [each for each in vectors("headers.jsonl") if each["class"] in HEADERS],
    ids=lambda vector: vector["class"],
)
def test_header_vectors(vector: dict[str, Any]) -> None:
    header_type = HEADERS[vector["class"]]
    ext: dict[str, str] = dict(vector["extFields"])
    attributes = dict(zip(header_type.__struct_encode_fields__, header_type.__struct_fields__, strict=True))
    if vector["class"] == "SendMessageRequestHeaderV2":
        del ext["bname"]  # RocketMQ ignores it: n carries the broker's name
        del vector["fields"]["bname"]
    elif vector["class"] == "GetAllTopicConfigResponseHeader":  # the field came with 5.4
        ext["totalTopicNum"] = "7"
    assert set(attributes) >= set(ext)
    from_json = decode(encode_request(1, 1, ext)).header(header_type)
    from_binary = decode(encode_request(1, 1, ext, serialize_type=BINARY)).header(header_type)
    recorded = decode(bytes.fromhex(vector["binary_header_frame_hex"])).header(header_type)
    assert from_json == from_binary
    for name, value in vector["fields"].items():
        assert getattr(from_json, attributes[name]) == value
        if hasattr(recorded, attributes[name]):
            assert getattr(recorded, attributes[name]) == value
    assert {name: to_ext(from_json).get(name) for name in ext} == ext
    defaults = {**vector["extFieldsOfDefaultObject"]}
    defaults.pop("invokeTime", None)  # the time of making it
    mandatory = {name for name in vector["notNull"] if name not in defaults}
    required = {field.wire for field in _fields(header_type) if field.required}
    assert required == mandatory
    plain = to_ext(decode(encode_request(1, 1, {name: ext[name] for name in required})).header(header_type))
    for name, value in defaults.items():
        if name not in required:
            assert plain[name] == value


def test_codes() -> None:
    recorded = json.loads((GOLDEN / "vectors" / "codes.json").read_text())
    for name, value in recorded["RequestCode"].items():
        assert RequestCode[name] == value
    for name, value in {**recorded["ResponseCode"], **recorded["RemotingSysResponseCode"]}.items():
        assert ResponseCode[name] == value
    assert {language.name: int(language) for language in Language} == recorded["LanguageCode"]
    assert recorded["MQVersion"]["V5_3_3"] == 479 < codes.CURRENT_VERSION
    # 5.4 and 5.5 add these.
    assert {code for code in RequestCode if 200070 <= code <= 200079} == set(range(200070, 200080))
    assert RequestCode.SWITCH_TIMER_ENGINE == 5001
    assert {ResponseCode.LMQ_QUOTA_EXCEEDED, ResponseCode.LITE_SUBSCRIPTION_QUOTA_EXCEEDED} == {2017, 2018}
