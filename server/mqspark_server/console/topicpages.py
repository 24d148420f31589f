"""The pages about topics: list, create, browse, follow, send a message, configure, delete."""

from __future__ import annotations

import base64
import binascii
from typing import Any
from urllib.parse import quote

from fastapi import APIRouter, Request, Response

from mqspark.client.producer.producer import Producer
from mqspark.errors import InvalidMessage, MQError
from mqspark.message import PERM_READ, PERM_WRITE, Message, check_topic
from mqspark_server.console.clusteraccess import Trouble
from mqspark_server.console.data import LOOKS, VIEWS, ConsoleData, Look, Page
from mqspark_server.console.rendering import ROOT
from mqspark_server.console.site import Asking, Confirmation, Done, Site
from mqspark_server.console.visitors import Form

MAX_WANTED = 255
MAX_PAGE = 1_000_000
MAX_EXPRESSION = 1_024
MAX_QUEUES = 0x7FFF
MAX_PROPERTIES = 64
_SECTION = "Topics"
_PERMS = {
    "read and write": PERM_READ | PERM_WRITE,
    "read only": PERM_READ,
    "write only": PERM_WRITE,
    "neither": 0,
}
_TYPES = ("NORMAL", "FIFO", "DELAY", "TRANSACTION", "UNSPECIFIED")
_PRODUCER_GROUP = "mqspark_console"


def wanted_page(request: Request) -> tuple[str, int, bool]:
    """The parameters of a list: a part of a name, the page, and whether system names are included. Raises
    InvalidMessage."""
    wanted, every = request.query_params.get("q", "").strip(), "every" in request.query_params
    number = request.query_params.get("page", "1")
    if len(wanted) > MAX_WANTED:
        raise InvalidMessage(f"a name has at most {MAX_WANTED} characters", field="q")
    if not (number.isascii() and number.isdecimal() and 1 <= len(number) <= 7 and int(number) > 0):
        raise InvalidMessage("a page has a number from 1 on", field="page")
    return wanted, min(int(number), MAX_PAGE), every


def number_in(form: Form, name: str, low: int, high: int, default: int | None = None) -> int:
    """A whole number of a form. Raises InvalidMessage."""
    text = form.one(name).strip()
    if not text and default is not None:
        return default
    if text.isascii() and text.isdecimal() and len(text) <= 19 and low <= int(text) <= high:
        return int(text)
    raise InvalidMessage(f"{name}: give a whole number from {low} to {high}", field=name)


_PATH = f"{ROOT}/topics"


def add_topic_pages(router: APIRouter, site: Site) -> None:
    _add_topics(router, site)
    _add_messages(router, site)
    _add_sending(router, site)
    _add_topic_settings(router, site)


def _add_topics(router: APIRouter, site: Site) -> None:
    @router.get(_PATH)
    async def topics(request: Request) -> Response:
        async def work(asked: Asking) -> dict[str, Any]:
            wanted, number, every = wanted_page(request)
            found: Page = await ConsoleData(asked.admin).topics(wanted, number, every)
            return {"page": found, "every": every}

        return await site.show(request, "topics.html", _SECTION, work)

    @router.post(_PATH)
    async def make(request: Request) -> Response:
        return await site.change(request, _SECTION, _ask_make, _do_make)

    @router.get(f"{_PATH}/{{name}}")
    async def topic(name: str, request: Request) -> Response:
        async def work(asked: Asking) -> dict[str, Any]:
            check_topic(name)
            return {"tab": "Queues", **await ConsoleData(asked.admin).topic(name)}

        return await site.show(request, "topic.html", _SECTION, work)

    @router.post(f"{_PATH}/{{name}}/delete")
    async def delete(name: str, request: Request) -> Response:
        async def ask(asked: Asking, form: Form) -> Confirmation:
            check_topic(name)
            data = ConsoleData(asked.admin)
            bounds = await data.bounds(name)
            groups = await data.groups_of(name)
            facts = [
                ("Messages in it", f"{sum(high - low for low, high in bounds.values()):,}"),
                ("Queues", str(len(bounds))),
                ("Groups that consume it", ", ".join(groups[:20]) or "none"),
            ]
            return Confirmation(f"Delete {name} with its messages?", "Delete", facts, is_dangerous=True)

        async def do(asked: Asking, form: Form) -> Done:
            check_topic(name)
            await asked.admin.delete_topic(name)
            return Done(f"Topic {name} was deleted.", _PATH)

        return await site.change(request, _SECTION, ask, do)


def _add_messages(router: APIRouter, site: Site) -> None:
    @router.get(f"{_PATH}/{{name}}/messages")
    async def messages(name: str, request: Request) -> Response:
        given = request.query_params
        look = Look(
            given.get("by") or "latest",
            given.get("value", "")[:MAX_WANTED],
            given.get("tag", "")[:MAX_WANTED],
            given.get("view") or "text",
            given.get("sql", "")[:MAX_EXPRESSION].strip(),
        )

        async def work(asked: Asking) -> dict[str, Any]:
            check_topic(name)
            if look.by not in LOOKS or look.view not in VIEWS:
                raise InvalidMessage(f"by is one of {LOOKS}, view one of {VIEWS}", field="by")
            data = ConsoleData(asked.admin)
            bounds = await data.bounds(name)
            values: dict[str, Any] = {
                "tab": "Messages",
                "topic": name,
                "look": look,
                "trouble": "",
                "found": [],
            }
            try:
                values["found"] = await data.messages(name, look, bounds)
            except MQError as error:
                values["trouble"] = str(error)
            return values

        return await site.show(request, "messages.html", _SECTION, work)

    @router.get(f"{_PATH}/{{name}}/live")
    async def live(name: str, request: Request) -> Response:
        async def work(asked: Asking) -> dict[str, Any]:
            check_topic(name)
            await asked.admin.topic_route(name)
            tag = request.query_params.get("tag", "")[:MAX_WANTED]
            return {"tab": "Live tail", "topic": name, "tag": tag}

        return await site.show(request, "live.html", _SECTION, work)


def _add_sending(router: APIRouter, site: Site) -> None:
    @router.get(f"{_PATH}/{{name}}/send")
    async def sending(name: str, request: Request) -> Response:
        async def work(asked: Asking) -> dict[str, Any]:
            check_topic(name)
            await asked.admin.topic_route(name)
            return {"tab": "Send", "topic": name}

        return await site.show(request, "send.html", _SECTION, work)

    @router.post(f"{_PATH}/{{name}}/send")
    async def send(name: str, request: Request) -> Response:
        async def ask(asked: Asking, form: Form) -> Confirmation:
            message = _message(name, form)
            facts = [("Topic", name), ("Body", f"{len(message.body):,} bytes")]
            facts += [("Tag", message.tags or "none"), ("Keys", message.keys or "none")]
            facts += [
                (each, value) for each, value in message.properties.items() if each not in ("TAGS", "KEYS")
            ]
            return Confirmation(f"Send a message to {name}?", "Send", facts)

        async def do(asked: Asking, form: Form) -> Done:
            message = _message(name, form)
            async with Producer(asked.namesrv, group=_PRODUCER_GROUP, options=asked.options) as producer:
                sent = await producer.send(message)
            text = f"Stored in queue {sent.queue.queue_id} of {sent.queue.broker_name} at offset {sent.queue_offset}."
            return Done(text, f"{_PATH}/{quote(name, safe='')}/messages")

        return await site.change(request, _SECTION, ask, do)


def _add_topic_settings(router: APIRouter, site: Site) -> None:
    @router.get(f"{_PATH}/{{name}}/config")
    async def config(name: str, request: Request) -> Response:
        async def work(asked: Asking) -> dict[str, Any]:
            check_topic(name)
            configs = await ConsoleData(asked.admin).topic_configs(name)
            return {
                "tab": "Configuration",
                "topic": name,
                "configs": configs,
                "perms": _PERMS,
                "types": _TYPES,
            }

        return await site.show(request, "topicconfig.html", _SECTION, work)

    @router.post(f"{_PATH}/{{name}}/config")
    async def configure(name: str, request: Request) -> Response:
        async def ask(asked: Asking, form: Form) -> Confirmation:
            check_topic(name)
            new = _settings(form)
            rows: list[Any] = []
            for each in await ConsoleData(asked.admin).topic_configs(name):
                if each["error"]:
                    raise Trouble(502, "A broker cannot be asked", f"{each['broker']}: {each['error']}")
                before = f"{each['read_queues']} / {each['write_queues']}, {each['perm']}"
                rows.append(
                    (
                        each["broker"],
                        before,
                        f"{new['read_queues']} / {new['write_queues']}, {form.one('perm')}",
                    )
                )
            return Confirmation(
                f"Change {name}?", "Change", columns=("Broker", "Read / write queues now", "Then"), rows=rows
            )

        async def do(asked: Asking, form: Form) -> Done:
            check_topic(name)
            route = await asked.admin.topic_route(name)
            await asked.admin.create_topic(name, brokers=[*route.brokers], **_settings(form))
            return Done(f"Topic {name} was changed.", f"{_PATH}/{quote(name, safe='')}/config")

        return await site.change(request, _SECTION, ask, do)


async def _ask_make(asked: Asking, form: Form) -> Confirmation:
    name = form.one("name").strip()
    check_topic(name)
    if name in await asked.admin.topic_list():
        raise Trouble(409, "This topic already exists", f"Change {name} on its own page.")
    new = _settings(form)
    facts = [
        ("Name", name),
        ("Queues", f"{new['read_queues']} on each broker"),
        ("Type", form.one("type", "NORMAL")),
    ]
    return Confirmation(f"Create the topic {name}?", "Create", facts)


async def _do_make(asked: Asking, form: Form) -> Done:
    name = form.one("name").strip()
    check_topic(name)
    await asked.admin.create_topic(name, **_settings(form))
    return Done(f"Topic {name} was created.", f"{ROOT}/topics/{quote(name, safe='')}")


def _settings(form: Form) -> dict[str, Any]:
    """Keywords of ``create_topic``. Raises InvalidMessage."""
    read = number_in(form, "read_queues", 1, MAX_QUEUES, 8)
    perm = form.one("perm", "read and write")
    if perm not in _PERMS:
        raise InvalidMessage("perm: choose one from the list", field="perm")
    kind = form.one("type")
    if kind and kind not in _TYPES:
        raise InvalidMessage("type: choose one from the list", field="type")
    return {
        "read_queues": read,
        "write_queues": number_in(form, "write_queues", 1, MAX_QUEUES, read),
        "perm": _PERMS[perm],
        "order": form.is_on("order"),
        "attributes": {"message.type": kind} if kind and kind != "NORMAL" else None,
    }


def _message(topic: str, form: Form) -> Message:
    """Raises InvalidMessage."""
    check_topic(topic)
    text = form.one("body")
    body: bytes
    if form.one("encoding") == "base64":
        try:
            body = base64.b64decode("".join(text.split()), validate=True)
        except (binascii.Error, ValueError):
            raise InvalidMessage("the body is not base64", field="body") from None
    else:
        body = text.replace("\r\n", "\n").encode()  # browsers end lines with both
    if not body:
        raise InvalidMessage("the message has no body", field="body")
    properties: dict[str, str] = {}
    for line in form.one("properties").splitlines():
        if line.strip():
            name, separator, value = line.partition("=")
            if not separator or not name.strip() or len(properties) >= MAX_PROPERTIES:
                raise InvalidMessage(
                    f"properties: NAME=VALUE, one a line, at most {MAX_PROPERTIES}", field="properties"
                )
            properties[name.strip()] = value.strip()
    delay = form.one("delay").strip()
    return Message.of(
        topic,
        body,
        tags=form.one("tag").strip() or None,
        keys=form.one("keys").split() or None,
        properties=properties,
        delay_ms=number_in(form, "delay", 1, 365 * 86_400) * 1_000 if delay else None,
    )
