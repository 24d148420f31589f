"""One remoting command: a request or a response, with its header in either serialisation.

    offset  size          field
    0       4             total: bytes that follow this field, i32
    4       1             serialisation of the header: 0 JSON, 1 ROCKETMQ (binary)
    5       3             header length, u24
    8       header length header
    ...     the rest      body

Source: RemotingCommand, RocketMQSerializable. A RocketMQ server answers in JSON whatever the request used,
and every peer can read JSON, so this module emits JSON by default.

Must not know what codes mean, nor where bytes come from (``mqspark.protocol.connection``).

Facts: docs/rocketmq/protocol.md#frame.
"""

from __future__ import annotations

import functools
import struct
from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias, TypeVar

import msgspec

from mqspark.base.names import are_sound
from mqspark.errors import ProtocolError
from mqspark.protocol import fastjson
from mqspark.protocol.codes import CURRENT_VERSION, REASON_FIELD, Language, Reason
from mqspark.protocol.headers.header import I32, Header, from_ext, from_texts, json_decoder, to_ext
from mqspark.protocol.headertemplates import from_template, header_text
from mqspark.protocol.layouts import Head, HeaderLayout, HeaderLayouts, Values, copier
from mqspark.protocol.named import check_header, header_names, names_getter

JSON, BINARY = 0, 1
"""Serialisation types of a header."""

RESPONSE_FLAG, ONEWAY_FLAG = 0x1, 0x2
"""Bits of ``Command.flag``."""

MAX_BINARY_CODE = 0x7FFF

MAX_REMARK_LENGTH = 4096
"""Limit in characters. A remark may contain text from a peer, which is not sent back at full length."""

Buffer: TypeAlias = bytes | bytearray | memoryview
Fields: TypeAlias = Header | Mapping[str, str] | None
H = TypeVar("H", bound=Header)

_NO_FIELDS = msgspec.Raw(b"")
PREFIX = struct.Struct(">iI")
PREFIX_BYTES = PREFIX.size
_BINARY_HEAD = struct.Struct(">hbhiii")
_I16 = struct.Struct(">h")
_I32 = struct.Struct(">i")

_LANGUAGE_IDS: dict[str | int | None, int] = {language.name: int(language) for language in Language}
_LANGUAGE_NAMES = {int(language): language.name for language in Language}


class Command(msgspec.Struct, eq=False, gc=False):
    """A decoded command.

    ``body`` is b"" when there is none. A body of ``connection.LARGE_BODY_BYTES`` or more is a memoryview of
    the received bytes. ``language`` is the sender's language code, -1 when its name is unknown.
    """

    code: int
    opaque: int = 0
    flag: int = 0
    language: int = int(Language.JAVA)
    version: int = 0
    remark: str | None = None
    raw_ext: msgspec.Raw = _NO_FIELDS
    """``extFields`` of a JSON header as they came."""
    ext_texts: dict[str, str] | None = None
    """``extFields`` of a binary header; of a JSON header once it has been decoded for ``ext``."""
    serialize_type: int = JSON
    body: bytes | memoryview = b""
    layout: HeaderLayout | None = None
    """That of its header. Then ``values`` stand for ``extFields``."""
    values: Values = ()

    @property
    def is_response(self) -> bool:
        return self.flag & RESPONSE_FLAG != 0

    @property
    def is_oneway(self) -> bool:
        return self.flag & ONEWAY_FLAG != 0

    @property
    def has_ext(self) -> bool:
        """Whether the header had ``extFields``, even an empty one."""
        if self.layout is not None:
            return self.layout.has_ext
        return self.ext_texts is not None or bytes(self.raw_ext) not in (b"", b"null")

    @property
    def ext(self) -> dict[str, str]:
        """``extFields`` with every value as text, without null values. Raises ProtocolError when it is not an
        object."""
        if self.ext_texts is None:
            if self.layout is not None:
                self.ext_texts = self.layout.ext(self.values)
            elif not self.has_ext:
                return {}
            else:
                self.ext_texts = _decode_ext(self.raw_ext)
        return self.ext_texts

    @property
    def reason(self) -> Reason | None:
        """Why a server of this project refused the request, where the code does not say it. Raises ProtocolError."""
        given = self.ext.get(REASON_FIELD)
        return next((each for each in Reason if each == given), None)

    def header(self, header_type: type[H]) -> H:
        """``extFields`` as a typed header. Raises ProtocolError, which names the missing or malformed field,
        or IllegalName, which names the kind of the illegal name."""
        if self.layout is not None:
            return self._header_of_layout(self.layout, header_type)
        decode, names = _reader(header_type)
        header: H
        if self.serialize_type != JSON:
            ext = self.ext
            if not all(ext.values()):
                # The binary form cannot tell empty text from null. RocketMQ reads null.
                ext = {name: value for name, value in ext.items() if value}
            header = from_texts(header_type, ext) or from_ext(header_type, ext)
        else:
            raw = self.raw_ext
            try:
                header = decode(raw) if raw else from_ext(header_type, self.ext)
            except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
                header = from_ext(header_type, self.ext)
        if names is not None and not are_sound(names(header)):
            check_header(header)
        return header

    def _header_of_layout(self, layout: HeaderLayout, header_type: type[H]) -> H:
        known = layout.header(header_type, self.values)
        if known is not None:
            return known
        raw = msgspec.Raw(_encode_json(self.ext)) if self.serialize_type == JSON else _NO_FIELDS
        parsed = Command(self.code, raw_ext=raw, ext_texts=self.ext, serialize_type=self.serialize_type)
        header = parsed.header(header_type)
        layout.learn_header(header, [*header_names(header_type)])
        return header

    def __repr__(self) -> str:
        kind = "response" if self.is_response else "oneway" if self.is_oneway else "request"
        remark = f" remark={self.remark!r}" if self.remark else ""
        return f"<Command {kind} code={self.code} opaque={self.opaque} body={len(self.body)} bytes{remark}>"


UNREAD_CODE = -1
"""No request has this code, so no handler is called."""


class UnreadRequest(Command, kw_only=True, eq=False, gc=False):
    """A request of which only a few numbers were read. ``asked`` is its code; ``code`` is UNREAD_CODE."""

    asked: int
    exceeded: str
    """Which limit it exceeds."""


@functools.cache
def _reader(
    header_type: type[H],
) -> tuple[Callable[[msgspec.Raw], H], Callable[[H], tuple[str | None, ...]] | None]:
    return json_decoder(header_type), names_getter(header_type)


# --- decode -------------------------------------------------------------------------------------------------


class _JsonHeader(msgspec.Struct, gc=False):
    code: I32
    opaque: I32 = 0
    flag: I32 = 0
    language: str | int | None = "JAVA"
    version: I32 = 0
    remark: str | None = None
    extFields: msgspec.Raw = _NO_FIELDS


_decode_json_header = msgspec.json.Decoder(_JsonHeader, strict=False).decode
_decode_ext_texts = msgspec.json.Decoder(dict[str, str]).decode


layouts = HeaderLayouts()


def decode_command(data: bytes | bytearray, start: int, meta: int, body: bytes | memoryview) -> Command:
    """``decode_header`` of a frame whose header begins at ``start``; ``meta`` has its kind and length as a frame has
    them. A header of a known layout is not parsed."""
    alike = layouts.known.get(meta)
    if alike is not None:
        for layout in alike:
            if layout.constants_of(data, start) == layout.constants:
                values = layout.values_of(data, start)
                opaque = layout.opaque(data, start, values)
                if opaque is None:
                    break
                layout.is_used = True
                alike[0].in_vain = 0
                if layout is not alike[0]:
                    layouts.prefer(meta, layout)
                command: Command = layout.new_command()
                command.opaque, command.body, command.layout, command.values = opaque, body, layout, values
                return command
        layouts.missed(meta, alike[0])
    header = data[start : start + (meta & 0xFFFFFF)]
    if type(header) is not bytes:
        header = bytes(header)
    command = decode_header(meta >> 24, header, body)
    if not body and not meta >> 24:
        return command  # of JSON headers, only those of sends are learned
    if layouts.credit < layouts.learning_cost:
        layouts.credit += 1
    elif not command.flag & RESPONSE_FLAG and layouts.is_worth_it(header):
        _learn(meta, header, command)
    return command


def note_unknown(count: int) -> None:
    """So many headers were decoded without a look at the layouts, because those before them had none."""
    layouts.passed(count)


def _learn(meta: int, header: bytes, command: Command) -> None:
    head = Head(
        command.code,
        command.flag,
        command.language,
        command.version,
        command.remark,
        command.serialize_type,
    )
    model = Command(head.code, 0, *head[1:5], serialize_type=head.serialize_type)
    layouts.learn(meta, header, head, lambda: command.ext if command.has_ext else None, copier(model))


def decode_header(serialize_type: int, header: bytes, body: bytes | memoryview) -> Command:
    """The command of one frame. Raises ProtocolError when ``header`` is malformed."""
    if serialize_type == JSON:
        try:
            fields = _decode_json_header(header)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            fields = _decode_odd_json_header(header)
        language = _LANGUAGE_IDS.get(fields.language)
        if language is None:
            language = _language_id(fields.language)
        return Command(
            fields.code,
            fields.opaque,
            fields.flag,
            language,
            fields.version,
            fields.remark,
            fields.extFields,
            None,
            JSON,
            body,
        )
    if serialize_type == BINARY:
        return _decode_binary_header(header, body)
    raise ProtocolError(f"unknown header serialisation {serialize_type}")


def _decode_odd_json_header(header: bytes) -> _JsonHeader:
    """Decode a header that fastjson accepts but msgspec refuses."""
    members = fastjson.loads(header, fastjson.HEADER)
    if not isinstance(members, dict):
        raise ProtocolError("the header is not a JSON object")
    remark, language = members.get("remark"), members.get("language", "JAVA")
    ext = members.get("extFields")
    return _JsonHeader(
        code=_integer(members, "code"),
        opaque=_integer(members, "opaque"),
        flag=_integer(members, "flag"),
        language=language if isinstance(language, (str, int)) else None,
        version=_integer(members, "version"),
        remark=None if remark is None else _text(remark),
        extFields=_NO_FIELDS if ext is None else msgspec.Raw(msgspec.json.encode(ext)),
    )


def _integer(members: Mapping[str, object], name: str) -> int:
    value = members.get(name)
    if value is None and name != "code":
        return 0
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, str) and value.removeprefix("-").isdecimal() and len(value) <= 11:
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int) or not -0x80000000 <= value <= 0x7FFFFFFF:
        raise ProtocolError(f"header member {name!r} is not a 32-bit integer")
    return value


def _language_id(language: str | int | None) -> int:
    if isinstance(language, str):
        return _LANGUAGE_IDS.get(language.upper(), -1)
    return language if language in _LANGUAGE_NAMES else -1


def _decode_ext(raw: msgspec.Raw) -> dict[str, str]:
    try:
        return _decode_ext_texts(raw)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        fields = fastjson.loads(bytes(raw), fastjson.HEADER)
    if not isinstance(fields, dict):
        raise ProtocolError("extFields is not a JSON object")
    return {name: _text(value) for name, value in fields.items() if value is not None}


def _text(value: object) -> str:
    if isinstance(value, str):
        return value
    return msgspec.json.encode(value).decode()


def _decode_binary_header(header: bytes, body: bytes | memoryview) -> Command:
    end = len(header)
    if end < _BINARY_HEAD.size:
        raise ProtocolError(f"a binary header of {end} bytes")
    code, language, version, opaque, flag, remark_length = _BINARY_HEAD.unpack_from(header, 0)
    position = _BINARY_HEAD.size
    if not 0 <= remark_length <= end - position - 4:
        raise ProtocolError(f"remark length {remark_length} in a binary header of {end} bytes")
    try:
        remark = None
        if remark_length:
            remark = header[position : position + remark_length].decode()
            position += remark_length
        (ext_length,) = _I32.unpack_from(header, position)
        position += 4
        if ext_length != end - position:
            raise ProtocolError(f"ext length {ext_length} where {end - position} bytes are left")
        ext = _decode_binary_ext(header[position:]) if ext_length else None
    except (struct.error, UnicodeDecodeError) as error:
        raise ProtocolError(f"undecodable binary header: {error}") from None
    language = language if language in _LANGUAGE_NAMES else -1
    return Command(code, opaque, flag, language, version, remark, _NO_FIELDS, ext, BINARY, body)


def _decode_binary_ext(block: bytes) -> dict[str, str]:
    ext: dict[str, str] = {}
    position, end = 0, len(block)
    while position < end:
        (length,) = _I16.unpack_from(block, position)
        start = position + 2
        position = start + length
        if not 0 <= length <= end - start - 4:
            raise ProtocolError(f"ext name length {length} exceeds its block")
        name = block[start:position].decode()
        (length,) = _I32.unpack_from(block, position)
        start = position + 4
        position = start + length
        if not 0 <= length <= end - start:
            raise ProtocolError(f"ext value length {length} exceeds its block")
        ext[name] = block[start:position].decode()
    return ext


# --- encode -------------------------------------------------------------------------------------------------

_encode_json = msgspec.json.encode


def encode_request(
    code: int,
    opaque: int,
    header: Fields = None,
    body: Buffer = b"",
    *,
    oneway: bool = False,
    language: int = Language.PYTHON,
    version: int = CURRENT_VERSION,
    remark: str | None = None,
    serialize_type: int = JSON,
) -> bytes:
    """A whole request frame. Codes that the binary header cannot hold are sent in JSON."""
    flag = ONEWAY_FLAG if oneway else 0
    head = _encode_head(code, flag, opaque, header, len(body), remark, language, version, serialize_type)
    return b"".join((head, body)) if body else head


def encode_request_head(
    code: int,
    opaque: int,
    header: Fields,
    body_length: int,
    *,
    oneway: bool = False,
) -> bytes:
    """Length prefix and header of a request. The caller writes ``body_length`` bytes of body after it."""
    flag = ONEWAY_FLAG if oneway else 0
    return _encode_head(code, flag, opaque, header, body_length, None, Language.PYTHON, CURRENT_VERSION, JSON)


def encode_response(
    opaque: int,
    code: int,
    header: Fields = None,
    body: Buffer = b"",
    remark: str | None = None,
    *,
    language: int = Language.JAVA,
    version: int = CURRENT_VERSION,
    serialize_type: int = JSON,
) -> bytes:
    """A whole response frame to the request ``opaque``. The language is JAVA, the only server language that
    clients know in practice."""
    head = _encode_head(
        code, RESPONSE_FLAG, opaque, header, len(body), remark, language, version, serialize_type
    )
    return b"".join((head, body)) if body else head


def encode_response_head(
    opaque: int,
    code: int,
    header: Fields,
    body_length: int,
    remark: str | None = None,
) -> bytes:
    """Length prefix and header of a response. The caller writes ``body_length`` bytes of body after it."""
    return _encode_head(
        code, RESPONSE_FLAG, opaque, header, body_length, remark, Language.JAVA, CURRENT_VERSION, JSON
    )


def send_response_frame(
    opaque: int,
    msg_id: str,
    queue_id: int,
    queue_offset: int,
    transaction_id: str | None = None,
    region: str = "DefaultRegion",
) -> bytes:
    """The whole frame of a successful answer to a send. A fast path with the same content as
    ``encode_response``.

    ``msg_id`` and ``region`` come from the broker and need no escaping. ``transaction_id`` is the client's
    UNIQ_KEY and is escaped.
    """
    # Formatting bytes costs half as much as formatting text and encoding it.
    with_transaction, without = _send_templates(region)
    if transaction_id is None:
        text = without % (msg_id.encode(), queue_id, queue_offset, opaque)
    else:
        quoted = _encode_json(transaction_id)
        text = with_transaction % (msg_id.encode(), queue_id, queue_offset, quoted, opaque)
    length = len(text)
    return PREFIX.pack(length + 4, length) + text


class _Prefixes(dict[int, bytes]):
    """Prefixes of JSON frames without a body, by the length of their headers. As long as few have been asked for, it
    keeps them."""

    def __missing__(self, length: int) -> bytes:
        prefix = PREFIX.pack(length + 4, length)
        if len(self) < _MAX_PREFIXES:
            self[length] = prefix
        return prefix


_MAX_PREFIXES = 256
_prefixes = _Prefixes()

SentMessage = tuple[int, int, int, bytes, int]
"""Physical offset, queue id, queue offset, transaction id of ASCII letters and digits, opaque."""


class SentFrames:
    """``send_response_frame`` for the single messages of one store, by their positions."""

    def __init__(self, region: str, id_prefix: str) -> None:
        """``id_prefix``: what the store's message ids begin with; the physical offset follows."""
        template, _ = _send_templates(region)
        self._template = template.replace(b'"msgId":"%b"', b'"msgId":"%b%%016X"' % id_prefix.encode(), 1)
        self._template_of_word = self._template.replace(b'"transactionId":%b', b'"transactionId":"%b"', 1)

    def frame(
        self, opaque: int, physical_offset: int, queue_id: int, queue_offset: int, transaction_id: str
    ) -> bytes:
        text = self._template % (
            physical_offset,
            queue_id,
            queue_offset,
            _encode_json(transaction_id),
            opaque,
        )
        return _prefixes[len(text)] + text

    def frames(self, sent: Sequence[SentMessage]) -> bytes:
        """A frame each."""
        template, prefixes = self._template_of_word, _prefixes
        if len(sent) == 1:
            text = template % sent[0]
            return prefixes[len(text)] + text
        texts = [template % each for each in sent]
        lengths = [*map(len, texts)]
        if lengths.count(lengths[0]) == len(lengths):  # as long as no number gets another digit
            prefix = prefixes[lengths[0]]
            return prefix + prefix.join(texts)
        return b"".join([part for text in texts for part in (prefixes[len(text)], text)])


@functools.cache
def _send_templates(region: str) -> tuple[bytes, bytes]:
    """The templates with and without a transaction id."""
    head = (
        b'{"code":0,"extFields":{"MSG_REGION":"%b","TRACE_ON":"true",'
        b'"msgId":"%%b","queueId":"%%d","queueOffset":"%%d"'
    )
    tail = b'},"flag":1,"language":"JAVA","opaque":%%d,"serializeTypeCurrentRPC":"JSON","version":%d}'
    head, tail = head % region.encode().replace(b"%", b"%%"), tail % CURRENT_VERSION
    return head + b',"transactionId":%b' + tail, head + tail


def _encode_head(
    code: int,
    flag: int,
    opaque: int,
    header: Fields,
    body_length: int,
    remark: str | None,
    language: int,
    version: int,
    serialize_type: int,
) -> bytes:
    if isinstance(header, Header):
        if header.alike and serialize_type == JSON and remark is None:
            language_name = _LANGUAGE_NAMES.get(language, "OTHER")
            known = from_template(code, flag, opaque, header, language_name, version)
            if known is not None:
                length = len(known)
                return PREFIX.pack(4 + length + body_length, length) + known
        ext: Mapping[str, str] | None = to_ext(header)
    else:
        ext = header
    if remark is not None and not (len(remark) <= MAX_REMARK_LENGTH and remark.isascii()):
        remark = remark[:MAX_REMARK_LENGTH].encode("utf-8", "replace").decode()
    if serialize_type == BINARY and -MAX_BINARY_CODE <= code <= MAX_BINARY_CODE:
        text = _encode_binary(code, flag, opaque, ext, remark, language, version)
        kind = BINARY << 24
    else:
        fields = "" if ext is None else f'"extFields":{_encode_json(ext).decode()},'
        words = "" if remark is None else f'"remark":{_encode_json(remark).decode()},'
        language_name = _LANGUAGE_NAMES.get(language, "OTHER")
        text = header_text(code, fields, flag, language_name, f"{opaque}", words, version).encode()
        kind = 0
    return PREFIX.pack(4 + len(text) + body_length, kind | len(text)) + text


def _encode_binary(
    code: int,
    flag: int,
    opaque: int,
    ext: Mapping[str, str] | None,
    remark: str | None,
    language: int,
    version: int,
) -> bytes:
    remark_bytes = remark.encode() if remark else b""
    parts: list[bytes] = []
    for name, value in (ext or {}).items():
        name_bytes, value_bytes = name.encode(), value.encode()
        parts += (_I16.pack(len(name_bytes)), name_bytes, _I32.pack(len(value_bytes)), value_bytes)
    block = b"".join(parts)
    return b"".join(
        (
            _BINARY_HEAD.pack(code, language, version, opaque, flag, len(remark_bytes)),
            remark_bytes,
            _I32.pack(len(block)),
            block,
        )
    )
