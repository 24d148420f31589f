"""The text of a .proto file, parsed to the descriptor that protoc makes of it.

Pure Python and linear: a hostile text costs its length. Names of types are looked up later (``protofiles``). Left out:
options of extensions (``(name) = value``), which say nothing about payloads.

Facts: the language specifications of Protobuf; descriptor.proto.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from mqspark.errors import InvalidSchema, SchemaTooLarge
from mqspark.schemas.parsedschema import MAX_NODES, PROTOBUF, needs_extra

if TYPE_CHECKING:
    from google.protobuf.descriptor_pb2 import DescriptorProto, EnumDescriptorProto, FileDescriptorProto

MAX_NESTING = 32
"""Messages, groups, options inside each other; protoc has the same limit."""
MAX_FIELD = (1 << 29) - 1
_OWN_NUMBERS = range(19_000, 20_000)
MAX_ENUM = (1 << 31) - 1
_TOKEN = re.compile(
    r"""(?P<space>[ \t\r\n\f\v]+|//[^\n]*)"""
    r"""|(?P<name>[A-Za-z_][A-Za-z0-9_]*)"""
    r"""|(?P<number>0[xX][0-9a-fA-F]+|(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?[fF]?)"""
    r"""|(?P<text>"(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*')"""
    r"""|(?P<sign>[;{}\[\]()<>=,.:/+-])"""
)
_ESCAPE = re.compile(
    r"\\(?:[xX]([0-9a-fA-F]{1,2})|([0-7]{1,3})|u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8})|(.))", re.DOTALL
)
_ESCAPED = {"n": "\n", "t": "\t", "r": "\r", "a": "\a", "b": "\b", "f": "\f", "v": "\v"}
SCALARS = {
    "double": 1, "float": 2, "int64": 3, "uint64": 4, "int32": 5, "fixed64": 6, "fixed32": 7, "bool": 8, "string": 9,
    "bytes": 12, "uint32": 13, "sfixed32": 15, "sfixed64": 16, "sint32": 17, "sint64": 18,
}  # fmt: skip
"""FieldDescriptorProto.Type by name."""
GROUP, MESSAGE, ENUM = 10, 11, 14
_KEYS = SCALARS.keys() - {"double", "float", "bytes"}
OPTIONAL, REQUIRED, REPEATED = 1, 2, 3
_LABELS = {"optional": OPTIONAL, "required": REQUIRED, "repeated": REPEATED}


def descriptors() -> Any:
    """The module of Protobuf's package with the messages that describe files. Raises ConfigError without it."""
    try:
        from google.protobuf import descriptor_pb2
    except ImportError as error:
        raise needs_extra(PROTOBUF, error) from None
    return descriptor_pb2


def read_proto(text: str) -> FileDescriptorProto:
    """Raises InvalidSchema, SchemaTooLarge, and ConfigError without the extra."""
    return _ProtoReader(text).file()


class _ProtoReader:
    def __init__(self, text: str) -> None:
        self._text = text
        self._tokens = self._split(text)
        self._at = 0
        self._statements = self._depth = 0
        self._pb = descriptors()
        self._made = self._pb.FileDescriptorProto()
        self._editions = False

    def _split(self, text: str) -> list[tuple[str, str, int]]:
        """Kind, text and position of each token; the last one is empty."""
        tokens = list[tuple[str, str, int]]()
        at = 0
        while at < len(text):
            if text.startswith("/*", at):
                end = text.find("*/", at + 2)
                if end < 0:
                    raise self._invalid("a comment does not end", at)
                at = end + 2
                continue
            match = _TOKEN.match(text, at)
            if match is None or match.lastgroup is None:
                raise self._invalid(f"{text[at]!r} is no part of the language", at)
            if match.lastgroup != "space":
                tokens.append((match.lastgroup, match[0], at))
            at = match.end()
        return [*tokens, ("end", "", at)]

    # --- tokens ---

    def _invalid(self, problem: str, at: int | None = None) -> InvalidSchema:
        place = self._tokens[self._at][2] if at is None else at
        line = self._text.count("\n", 0, place) + 1
        return InvalidSchema(problem, kind=PROTOBUF, where=f"line {line}")

    def _next(self) -> tuple[str, str]:
        kind, text, _ = self._tokens[self._at]
        if kind == "end":
            raise self._invalid("the text ends early")
        self._at += 1
        return kind, text

    def _sees(self, *texts: str) -> bool:
        kind, text, _ = self._tokens[self._at]
        return text in texts and kind != "text"

    def _takes(self, text: str) -> bool:
        if self._sees(text):
            self._at += 1
            return True
        return False

    def _expect(self, text: str) -> None:
        if not self._takes(text):
            raise self._invalid(f"{text!r} is missing before {self._tokens[self._at][1][:40]!r}")

    def _name(self) -> str:
        kind, text = self._next()
        if kind != "name":
            self._at -= 1
            raise self._invalid(f"{text[:40]!r} is no name")
        return text

    def _full_name(self) -> str:
        """The name of a type: with dots, maybe with one in front."""
        parts = [""] if self._takes(".") else []
        parts.append(self._name())
        while self._takes("."):
            parts.append(self._name())
        return ".".join(parts)

    def _whole(self, least: int, most: int) -> int:
        sign = -1 if self._takes("-") else 1
        kind, text = self._next()
        if kind != "number" or not re.fullmatch(r"0[xX][0-9a-fA-F]{1,16}|[0-9]{1,20}", text):
            self._at -= 1
            raise self._invalid(f"{text[:40]!r} is no whole number")
        number = sign * int(
            text, 16 if text[:2] in ("0x", "0X") else 8 if text[0] == "0" and text.isdigit() else 10
        )
        if not least <= number <= most:
            self._at -= 1
            raise self._invalid(f"{number} is not in {least} to {most}")
        return number

    def _string(self) -> str:
        parts = list[str]()
        while self._tokens[self._at][0] == "text":
            parts.append(_ESCAPE.sub(self._unescaped, self._next()[1][1:-1]))
        if not parts:
            raise self._invalid(f"{self._tokens[self._at][1][:40]!r} is no text in quotes")
        return "".join(parts)

    def _unescaped(self, match: re.Match[str]) -> str:
        hexadecimal, octal, short, long, other = match.groups()
        if octal:
            return chr(int(octal, 8) & 0xFF)
        if digits := hexadecimal or short or long:
            number = int(digits, 16)
            if number > 0x10FFFF or 0xD800 <= number < 0xE000:
                raise self._invalid(f"{match[0]} is no character")
            return chr(number)
        return _ESCAPED.get(other, other)

    def _statement(self) -> None:
        self._statements += 1
        if self._statements > MAX_NODES:
            raise SchemaTooLarge("messages, fields and options", MAX_NODES, kind=PROTOBUF)

    def _block(self, statement: Callable[[], None]) -> None:
        self._depth += 1
        if self._depth > MAX_NESTING:
            raise SchemaTooLarge("blocks inside each other", MAX_NESTING, kind=PROTOBUF)
        self._expect("{")
        while not self._takes("}"):
            if not self._takes(";"):
                self._statement()
                statement()
        self._depth -= 1

    # --- the file ---

    def file(self) -> FileDescriptorProto:
        made = self._made
        if self._sees("syntax", "edition") and self._tokens[self._at + 1][1] == "=":
            keyword = self._name()
            self._expect("=")
            value = self._string()
            self._expect(";")
            self._begin(keyword, value)
        while self._tokens[self._at][0] != "end":
            if not self._takes(";"):
                self._statement()
                self._of_file()
        return made

    def _begin(self, keyword: str, value: str) -> None:
        if keyword == "edition":
            edition = self._pb.Edition.DESCRIPTOR.values_by_name.get(f"EDITION_{value}")
            if edition is None or not value.isdigit():
                raise self._invalid(f"{value[:40]!r} is no edition that this version of Protobuf knows")
            self._made.syntax, self._made.edition = "editions", edition.number
            self._editions = True
        elif value not in ("proto2", "proto3"):
            raise self._invalid(f"the syntax {value[:40]!r} is neither proto2 nor proto3")
        elif value == "proto3":
            self._made.syntax = value

    def _of_file(self) -> None:
        made, word = self._made, self._name()
        if word == "package":
            if made.package:
                raise self._invalid("the file has a second package")
            made.package = self._full_name()
            self._expect(";")
        elif word == "import":
            modifier = self._name() if self._sees("public", "weak", "option") else ""
            if modifier == "option":
                raise self._invalid("an import of options alone is not supported")
            index = len(made.dependency)
            made.dependency.append(self._string())
            if modifier:
                (made.public_dependency if modifier == "public" else made.weak_dependency).append(index)
            self._expect(";")
        elif word == "option":
            self._option(made)
            self._expect(";")
        elif word == "message":
            self._message(made.message_type.add())
        elif word == "enum":
            self._enum(made.enum_type.add())
        elif word == "extend":
            self._extend(made.extension, made.message_type)
        elif word == "service":
            self._service(made.service.add())
        else:
            self._at -= 1
            raise self._invalid(f"{word[:40]!r} begins no statement of a file")

    def _service(self, made: Any) -> None:
        made.name = self._name()

        def statement() -> None:
            word = self._name()
            if word == "option":
                self._option(made)
                self._expect(";")
            elif word == "rpc":
                self._method(made.method.add())
            else:
                raise self._invalid(f"{word[:40]!r} begins no statement of a service")

        self._block(statement)

    def _method(self, made: Any) -> None:
        made.name = self._name()
        for side in ("client", "server"):
            self._expect("(")
            if self._sees("stream") and self._tokens[self._at + 1][1] != ")":
                self._at += 1
                setattr(made, f"{side}_streaming", True)
            setattr(made, "input_type" if side == "client" else "output_type", self._full_name())
            self._expect(")")
            if side == "client":
                self._expect("returns")
        if self._sees("{"):

            def statement() -> None:
                self._expect("option")
                self._option(made)
                self._expect(";")

            self._block(statement)
        else:
            self._expect(";")

    # --- messages ---

    def _message(self, made: DescriptorProto) -> None:
        made.name = self._name()
        self._message_body(made)

    def _message_body(self, made: DescriptorProto) -> None:
        optional: list[Any] = []
        self._block(lambda: self._of_message(made, optional))
        for field in optional:  # of proto3: each is alone in a group that follows the declared ones
            name = f"_{field.name}"
            taken = {
                each.name for each in (*made.field, *made.nested_type, *made.enum_type, *made.oneof_decl)
            }
            while name in taken:
                name = f"X{name}"
            field.oneof_index = len(made.oneof_decl)
            made.oneof_decl.add().name = name

    def _of_message(self, made: DescriptorProto, optional: list[Any]) -> None:
        word = self._tokens[self._at][1]
        follows = self._tokens[self._at + 1 : self._at + 2]
        named = bool(follows) and follows[0][0] == "name"
        if word == "message" and named:
            self._at += 1
            self._message(made.nested_type.add())
        elif word == "enum" and named:
            self._at += 1
            self._enum(made.enum_type.add())
        elif word == "oneof" and named:
            self._at += 1
            self._oneof(made)
        elif word == "extend":
            self._at += 1
            self._extend(made.extension, made.nested_type)
        elif word == "extensions":
            self._at += 1
            self._extensions(made)
        elif word == "reserved" and (self._tokens[self._at + 1][0] != "name" or self._editions):
            self._at += 1
            self._reserved(made, MAX_FIELD, 1)
        elif word == "option" and (named or follows[0][1] == "("):
            self._at += 1
            self._option(made)
            self._expect(";")
        elif word == "map" and follows[0][1] == "<":
            self._at += 1
            self._map(made)
        else:
            self._field(made.field, made.nested_type, optional, None)

    def _field(self, fields: Any, messages: Any, optional: list[Any] | None, oneof: int | None) -> None:
        """``optional``: takes what proto3 calls so; None where it is not allowed."""
        label = 0
        if self._sees(*_LABELS):
            label = _LABELS[self._name()]
            if oneof is not None:
                raise self._invalid("a field of a oneof has no label")
            if self._editions and label != REPEATED:
                raise self._invalid("an edition has features in place of this label")
            if self._made.syntax == "proto3" and label == REQUIRED:
                raise self._invalid("proto3 has no required fields")
        elif oneof is None and self._made.syntax == "":
            raise self._invalid("a field of proto2 is optional, required or repeated")
        made = fields.add()
        made.label = label or OPTIONAL
        if oneof is not None:
            made.oneof_index = oneof
        if self._sees("group") and self._tokens[self._at + 1][0] == "name":
            self._group(made, messages)
            return
        self._type(made)
        made.name = self._name()
        self._number_and_options(made)
        self._expect(";")
        if label == OPTIONAL and self._made.syntax == "proto3" and optional is not None:
            made.proto3_optional = True
            optional.append(made)

    def _type(self, made: Any) -> None:
        name = self._full_name()
        if name in SCALARS:
            made.type = SCALARS[name]
        else:
            made.type_name = name

    def _number_and_options(self, made: Any) -> None:
        self._expect("=")
        made.number = self._whole(1, MAX_FIELD)
        if made.number in _OWN_NUMBERS:
            raise self._invalid(
                f"{made.number} is one of the numbers 19000 to 19999 that Protobuf keeps for itself"
            )
        if self._sees("["):
            self._options(made)

    def _group(self, made: Any, messages: Any) -> None:
        if self._made.syntax != "":
            raise self._invalid("groups are of proto2 alone")
        self._at += 1
        group = messages.add()
        group.name = self._name()
        if not group.name[0].isupper():
            raise self._invalid("the name of a group begins with a capital")
        made.name, made.type, made.type_name = group.name.lower(), GROUP, group.name
        self._number_and_options(made)
        self._message_body(group)

    def _map(self, made: DescriptorProto) -> None:
        self._expect("<")
        key = self._name()
        if key not in _KEYS:
            raise self._invalid(f"{key[:40]!r} is no type of a map's keys")
        self._expect(",")
        field = made.field.add()
        entry = made.nested_type.add()
        entry.options.map_entry = True
        for number, name in ((1, "key"), (2, "value")):
            part = entry.field.add(name=name, number=number, label=OPTIONAL)
            if name == "key":
                part.type = SCALARS[key]
            else:
                self._type(part)
        self._expect(">")
        field.name = self._name()
        entry.name = entry_name(field.name)
        field.label, field.type, field.type_name = REPEATED, MESSAGE, entry.name
        self._number_and_options(field)
        self._expect(";")

    def _oneof(self, made: DescriptorProto) -> None:
        index = len(made.oneof_decl)
        oneof = made.oneof_decl.add()
        oneof.name = self._name()

        def statement() -> None:
            if self._sees("option") and self._tokens[self._at + 1][1] != "=":
                self._at += 1
                self._option(oneof)
                self._expect(";")
            else:
                self._field(made.field, made.nested_type, None, index)

        self._block(statement)

    def _extend(self, fields: Any, messages: Any) -> None:
        extended = self._full_name()

        def statement() -> None:
            self._field(fields, messages, None, None)
            fields[-1].extendee = extended

        self._block(statement)

    def _extensions(self, made: DescriptorProto) -> None:
        while True:
            first, last = self._range(1, MAX_FIELD)
            made.extension_range.add(start=first, end=last + 1)
            if not self._takes(","):
                break
        if self._sees("["):
            self._options(self._pb.DescriptorProto.ExtensionRange())
        self._expect(";")

    def _range(self, least: int, most: int) -> tuple[int, int]:
        first = last = self._whole(least, most)
        if self._takes("to"):
            last = most if self._takes("max") else self._whole(least, most)
        if last < first:
            raise self._invalid(f"the range {first} to {last} ends before it begins")
        return first, last

    def _reserved(self, made: Any, most: int, behind: int) -> None:
        """``behind``: 1 where the end of a range is the number behind it."""
        while True:
            self._statement()
            kind = self._tokens[self._at][0]
            if kind == "text":
                made.reserved_name.append(self._string())
            elif kind == "name" and self._editions:
                made.reserved_name.append(self._name())
            else:
                first, last = self._range(1 if behind else -most - 1, most)
                made.reserved_range.add(start=first, end=last + behind)
            if not self._takes(","):
                break
        self._expect(";")

    def _enum(self, made: EnumDescriptorProto) -> None:
        made.name = self._name()

        def statement() -> None:
            follows = self._tokens[self._at + 1]
            if self._sees("option") and follows[1] != "=":
                self._at += 1
                self._option(made)
                self._expect(";")
            elif self._sees("reserved") and follows[1] != "=":
                self._at += 1
                self._reserved(made, MAX_ENUM, 0)
            else:
                value = made.value.add()
                value.name = self._name()
                self._expect("=")
                value.number = self._whole(-MAX_ENUM - 1, MAX_ENUM)
                if self._sees("["):
                    self._options(value)
                self._expect(";")

        self._block(statement)

    # --- options ---

    def _options(self, made: Any) -> None:
        self._expect("[")
        while True:
            self._statement()
            self._option(made)
            if not self._takes(","):
                break
        self._expect("]")

    def _option(self, made: Any) -> None:
        """``name = value``, set in the options of ``made`` unless it is of an extension."""
        path, known = list[str](), True
        while True:
            if self._takes("("):
                self._full_name()
                self._expect(")")
                known = False
            else:
                path.append(self._name())
            if not self._takes("."):
                break
        self._expect("=")
        if self._sees("{"):
            self._skip_message()
            if known:
                raise self._invalid(f"the option {'.'.join(path)} has no value in braces")
            return
        kind, value = self._constant()
        if not known:
            return
        if hasattr(made, "default_value") and path == ["default"]:
            made.default_value = value
        elif hasattr(made, "json_name") and path == ["json_name"]:
            made.json_name = value
        else:
            self._set(made.options, path, kind, value)

    def _constant(self) -> tuple[str, str]:
        if self._tokens[self._at][0] == "text":
            return "text", self._string()
        sign = "-" if self._takes("-") else ""
        if not sign:
            self._takes("+")
        kind, text = self._next()
        if kind not in ("name", "number"):
            raise self._invalid(f"{text[:40]!r} is no value")
        return kind, sign + text

    def _skip_message(self) -> None:
        """A value in braces, of an extension."""
        depth = 0
        while True:
            _, text = self._next()
            if text in ("{", "<", "["):
                depth += 1
            elif text in ("}", ">", "]"):
                depth -= 1
            if depth == 0:
                return

    def _set(self, options: Any, path: list[str], kind: str, value: str) -> None:
        for step in path[:-1]:
            field = options.DESCRIPTOR.fields_by_name.get(step)
            if field is None or field.message_type is None or field.is_repeated:
                raise self._invalid(f"there is no option {'.'.join(path)[:80]}")
            options = getattr(options, step)
        name = path[-1]
        field = options.DESCRIPTOR.fields_by_name.get(name)
        if field is None or field.message_type is not None or name == "map_entry":
            raise self._invalid(f"there is no option {'.'.join(path)[:80]}")
        try:
            found = self._value_of(field, kind, value)
            if field.is_repeated:
                getattr(options, name).append(found)
            else:
                setattr(options, name, found)
        except (ValueError, TypeError, KeyError):
            raise self._invalid(f"{value[:40]!r} is no value of option {name}") from None

    @staticmethod
    def _value_of(field: Any, kind: str, value: str) -> Any:
        if field.enum_type is not None:
            return field.enum_type.values_by_name[value].number
        if field.type == SCALARS["bool"]:
            return {"true": True, "false": False}[value]
        if field.type == SCALARS["string"]:
            if kind != "text":
                raise ValueError
            return value
        return float(value) if field.type in (SCALARS["double"], SCALARS["float"]) else int(value, 0)


def entry_name(field: str) -> str:
    """The message of a map's entries."""
    return "".join(part[:1].upper() + part[1:] for part in field.split("_")) + "Entry"
