"""Checks all names in headers and bodies. Names are recognised by the names of their fields, so a new header
or body is checked like all others (``mqspark.base.names`` has the rules).

Must not know what the names refer to.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable
from typing import Any, NamedTuple

import msgspec
from msgspec import inspect

from mqspark.base.names import ID, NAME, Rule, are_plain, are_sound, check
from mqspark.protocol.headers.client_headers import SendMessageRequestHeader, SendMessageRequestHeaderV2

MANY = 64
"""So many texts are checked together first: a list of ten thousand takes half a millisecond instead of four."""


class Name(NamedTuple):
    what: str
    rule: Rule = NAME
    separator: str | None = None
    """Separator of a header field with several names."""


_TOPIC, _GROUP, _BROKER, _CLUSTER = Name("topic"), Name("group"), Name("broker"), Name("cluster")
_CLIENT, _ADDRESS = Name("client id", ID), Name("address", ID)

NAMES: dict[str, Name | tuple[Name, Name]] = {
    "topic": _TOPIC,
    "topic_name": _TOPIC,
    "origin_topic": _TOPIC,
    "topic_list": Name("topic", separator=";"),
    "lite_topic": Name("topic", ID),
    "lite_topic_set": Name("topic", ID),
    "parent_topic": _TOPIC,
    "groups": _GROUP,
    "group": _GROUP,
    "group_name": _GROUP,
    "group_name_list": _GROUP,
    "consumer_group": _GROUP,
    "producer_group": _GROUP,
    "src_group": _GROUP,
    "dest_group": _GROUP,
    "compare_group": _GROUP,
    "group_list": _GROUP,
    "broker_name": _BROKER,
    "cluster": _CLUSTER,
    "cluster_name": _CLUSTER,
    "broker_cluster_name": _CLUSTER,
    "zone_name": Name("zone"),
    "schema_subject": Name("subject"),
    "namespace": Name("namespace", ID),
    "key": Name("key", ID),
    "client_id": _CLIENT,
    "proxy_froward_client_id": _CLIENT,
    "consumer_id_list": _CLIENT,
    "attempt_id": Name("attempt id", ID),
    "username": Name("user", ID),
    "broker_addr": _ADDRESS,
    "broker_address": _ADDRESS,
    "client_addr": _ADDRESS,
    "ha_server_addr": _ADDRESS,
    "master_addr": _ADDRESS,
    "master_address": _ADDRESS,
    "master_ha_address": _ADDRESS,
    "min_broker_addr": _ADDRESS,
    "offline_broker_addr": _ADDRESS,
    "ha_broker_addr": _ADDRESS,
    "born_host": _ADDRESS,
    "store_host": _ADDRESS,
    "addr": _ADDRESS,
    # Tables: the kind of their keys, and of their values when these are texts.
    "topic_config_table": _TOPIC,
    "topic_queue_mapping_info_map": _TOPIC,
    "topic_queue_mapping_detail_map": _TOPIC,
    "topic_queue_mapping_by_broker": _BROKER,
    "broker_config_map": _BROKER,
    "broker_to_map_in": _BROKER,
    "broker_to_map_out": _BROKER,
    "broker_addr_table": _BROKER,
    "broker_addrs": _ADDRESS,
    "cluster_addr_table": (_CLUSTER, _BROKER),
    "subscription_table": _TOPIC,
    "subscription_group_table": _GROUP,
    "forbidden_table": (_GROUP, _TOPIC),
    "status_table": _TOPIC,
    "replicas_info_table": _BROKER,
    "message_request_mode_map": (_TOPIC, _GROUP),
    "timing_count": _TOPIC,
}
"""Attribute → kind of name. For a table, the kind of its keys and then that of the keys or texts within."""

Check = Callable[[Any], None]


_CHECKED_BY_HANDLER: tuple[type[msgspec.Struct], ...] = (SendMessageRequestHeader, SendMessageRequestHeaderV2)
"""Send headers, where the check would cost two percent of a send. Their topic is looked up at the broker, or
passes ``check_topic`` before it is created; their other texts are not used as names."""


def names_getter(header_type: type[msgspec.Struct]) -> Callable[[Any], tuple[str | None, ...]] | None:
    """A function that returns all names of such a header, or None when there are none to check. A header
    contains no structs."""
    names = list(header_names(header_type))
    if not names or header_type in _CHECKED_BY_HANDLER:
        return None
    # For a single attribute attrgetter does not return a tuple.
    return operator.attrgetter(*names) if len(names) > 1 else operator.attrgetter(*names, *names)


def check_header(header: msgspec.Struct) -> None:
    """Raise IllegalName for the first illegal name."""
    for attribute, (what, rule, separator) in header_names(type(header)).items():
        value = getattr(header, attribute)
        if value is None:
            continue
        for name in (value,) if separator is None else value.split(separator):
            check(what, name, rule)


@functools.cache
def header_names(header_type: type[msgspec.Struct]) -> dict[str, Name]:
    """The attributes that hold names."""
    attributes = header_type.__struct_fields__
    names = {}
    for attribute in attributes:
        name = NAMES.get(attribute)
        if isinstance(name, Name) and (attribute != "key" or "namespace" in attributes):
            names[attribute] = name
    return names


def check_names(body: object) -> None:
    """Check all names in a body, including nested bodies. Raises IllegalName."""
    checker = _checker_of(type(body)) if isinstance(body, msgspec.Struct) else None
    if checker is not None:
        checker(body)
    elif isinstance(body, list):
        for each in body:
            check_names(each)


@functools.cache
def _checker_of(body_type: type[msgspec.Struct]) -> Check | None:
    return _of_struct(inspect.type_info(body_type), {})


def _of_struct(info: inspect.Type, known: dict[type, Check | None]) -> Check | None:
    if not isinstance(info, inspect.StructType):
        raise TypeError(f"{info} is not a body")
    if info.cls in known:
        return known[info.cls]
    known[info.cls] = None
    checks = []
    for each in info.fields:
        name = NAMES.get(each.name)
        if each.name == "key" and not any(other.name == "namespace" for other in info.fields):
            name = None
        names = (name,) if isinstance(name, Name) else name or ()
        found = _of_value(each.type, names, known)
        if found is not None:
            checks.append((operator.attrgetter(each.name), found))

    def check_struct(body: Any) -> None:
        for get, found in checks:
            value = get(body)
            if value:
                found(value)

    known[info.cls] = check_struct if checks else None
    return known[info.cls]


def _of_value(info: inspect.Type, names: tuple[Name, ...], known: dict[type, Check | None]) -> Check | None:
    """``names``: the kinds of the texts, from the outermost inwards. The last one applies to all further
    levels."""
    if isinstance(info, inspect.UnionType):
        kinds = [each for each in info.types if not isinstance(each, inspect.NoneType)]
        return _of_value(kinds[0], names, known) if len(kinds) == 1 else None
    if isinstance(info, inspect.StructType):
        return _of_struct(info, known)
    if isinstance(info, inspect.StrType):
        if not names:
            return None
        what, rule, _ = names[0]
        return lambda value: check(what, value, rule)
    if isinstance(info, inspect.ListType | inspect.SetType):
        of_item = _of_value(info.item_type, names, known)
        if of_item is None or not isinstance(info.item_type, inspect.StrType):
            return None if of_item is None else functools.partial(_check_each, of_item)
        return functools.partial(_check_texts, of_item)
    if isinstance(info, inspect.DictType):
        keyed = isinstance(info.key_type, inspect.StrType)
        of_key = _of_value(info.key_type, names, known)
        of_item = _of_value(info.value_type, names[1:] if keyed else names, known)
        if of_key is None and of_item is None:
            return None

        def check_table(table: dict[Any, Any]) -> None:
            if of_key is not None and not are_sound(table):
                _check_texts(of_key, table)
            if of_item is not None:
                _check_each(of_item, table.values())

        return check_table
    return None


def _check_texts(found: Check, texts: Any) -> None:
    if len(texts) < MANY or not are_plain(texts):
        _check_each(found, texts)


def _check_each(found: Check, values: Any) -> None:
    for value in values:
        if value is not None:
            found(value)
