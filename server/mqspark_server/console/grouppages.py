"""The pages about consumer groups: list, create, members and what they do, lag, reset, mode, settings, delete."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

import msgspec
from fastapi import APIRouter, Request, Response

from mqspark.errors import BrokerError, InvalidMessage
from mqspark.message import MessageQueue, check_group, check_topic
from mqspark.protocol.bodies.topic_bodies import SubscriptionGroupConfig
from mqspark.protocol.codes import ResponseCode
from mqspark_server.console.clusteraccess import Trouble
from mqspark_server.console.clusterpages import wanted_span
from mqspark_server.console.data import ConsoleData, Page, time_ms
from mqspark_server.console.history.sampler import group_series
from mqspark_server.console.history.samples import History
from mqspark_server.console.rendering import ROOT, chart
from mqspark_server.console.site import Asking, Confirmation, Done, Site
from mqspark_server.console.topicpages import number_in, wanted_page
from mqspark_server.console.visitors import Form

MAX_RETRIES = 1_000_000
MAX_OFFSET = (1 << 62) - 1
MAX_PREVIEW = 256
_SECTION = "Groups"
_MODES = ("PULL", "POP")
_TARGETS = ("earliest", "latest", "time", "offset")
_PATH = f"{ROOT}/groups"


def add_group_pages(router: APIRouter, site: Site, history: History, now_ms: Any) -> None:
    _add_groups(router, site)
    _add_members(router, site, history, now_ms)
    _add_resets(router, site)
    _add_group_settings(router, site)


def _page_of(name: str) -> str:
    return f"{_PATH}/{quote(name, safe='')}"


def _add_groups(router: APIRouter, site: Site) -> None:
    @router.get(_PATH)
    async def groups(request: Request) -> Response:
        async def work(asked: Asking) -> dict[str, Any]:
            wanted, number, every = wanted_page(request)
            found: Page = await ConsoleData(asked.admin).groups(wanted, number, every)
            return {"page": found, "every": every}

        return await site.show(request, "groups.html", _SECTION, work)

    @router.post(_PATH)
    async def make(request: Request) -> Response:
        async def ask(asked: Asking, form: Form) -> Confirmation:
            name = form.one("name").strip()
            check_group(name)
            if name in await asked.admin.groups():
                raise Trouble(409, "This group already exists", f"Change {name} on its own page.")
            facts = [
                ("Name", name),
                ("Retries before a message is dead", str(number_in(form, "retries", 0, MAX_RETRIES, 16))),
            ]
            return Confirmation(f"Create the group {name}?", "Create", facts)

        async def do(asked: Asking, form: Form) -> Done:
            name = form.one("name").strip()
            check_group(name)
            config = SubscriptionGroupConfig(
                group_name=name,
                retry_max_times=number_in(form, "retries", 0, MAX_RETRIES, 16),
                consume_message_orderly=form.is_on("ordered"),
            )
            await asked.admin.create_group(name, config=config)
            return Done(f"Group {name} was created.", _page_of(name))

        return await site.change(request, _SECTION, ask, do)

    @router.post(f"{_PATH}/{{name}}/delete")
    async def delete(name: str, request: Request) -> Response:
        async def ask(asked: Asking, form: Form) -> Confirmation:
            check_group(name)
            values = await ConsoleData(asked.admin).group(name)
            facts = [
                ("Members that are connected", str(values["member_count"])),
                ("Messages that it has not consumed", f"{values['lag']:,}"),
                ("Its offsets", "are deleted, too"),
            ]
            return Confirmation(f"Delete the group {name}?", "Delete", facts, is_dangerous=True)

        async def do(asked: Asking, form: Form) -> Done:
            check_group(name)
            await asked.admin.delete_group(name)
            return Done(f"Group {name} was deleted.", _PATH)

        return await site.change(request, _SECTION, ask, do)


def _add_members(router: APIRouter, site: Site, history: History, now_ms: Any) -> None:
    @router.get(f"{_PATH}/{{name}}")
    async def group(name: str, request: Request) -> Response:
        async def work(asked: Asking) -> dict[str, Any]:
            check_group(name)
            values = await ConsoleData(asked.admin).group(name)
            history.note(group_series(name), now_ms(), values["lag"])
            span = wanted_span(request)
            lag = chart("Lag, messages", ["lag"], history.columns(group_series(name), span))
            return {"tab": "Members and lag", "chart": lag, "span": span, **values}

        return await site.show(request, "group.html", _SECTION, work)

    @router.get(f"{_PATH}/{{name}}/members/{{client}}")
    async def member(name: str, client: str, request: Request) -> Response:
        async def work(asked: Asking) -> dict[str, Any]:
            check_group(name)
            try:
                return await ConsoleData(asked.admin).member(name, client)
            except BrokerError as error:
                if error.code not in (ResponseCode.SYSTEM_ERROR, ResponseCode.CONSUMER_NOT_ONLINE):
                    raise
                raise Trouble(404, "This consumer does not answer", str(error)) from None

        return await site.show(request, "member.html", _SECTION, work)


def _add_resets(router: APIRouter, site: Site) -> None:
    @router.get(f"{_PATH}/{{name}}/reset")
    async def resetting(name: str, request: Request) -> Response:
        async def work(asked: Asking) -> dict[str, Any]:
            check_group(name)
            topics = await ConsoleData(asked.admin).topics_of(name)
            return {"tab": "Reset offsets", "group": name, "topics": topics}

        return await site.show(request, "reset.html", _SECTION, work)

    @router.post(f"{_PATH}/{{name}}/reset")
    async def reset(name: str, request: Request) -> Response:
        async def ask(asked: Asking, form: Form) -> Confirmation:
            check_group(name)
            topic = form.one("topic").strip()
            check_topic(topic)
            return await _preview(asked, name, topic, form)

        async def do(asked: Asking, form: Form) -> Done:
            check_group(name)
            topic = form.one("topic").strip()
            check_topic(topic)
            to = form.one("to")
            if to == "offset":
                queue = await _queue(asked, topic, form)
                await asked.admin.reset_offset(name, queue, number_in(form, "offset", 0, MAX_OFFSET))
                moved = 1
            else:
                moved = len(await asked.admin.reset_offsets(name, topic, _target_ms(form)))
            return Done(f"{name} was moved in {moved} queues of {topic}.", _page_of(name))

        return await site.change(request, _SECTION, ask, do)


def _add_group_settings(router: APIRouter, site: Site) -> None:
    @router.get(f"{_PATH}/{{name}}/config")
    async def config(name: str, request: Request) -> Response:
        async def work(asked: Asking) -> dict[str, Any]:
            check_group(name)
            data = ConsoleData(asked.admin)
            found = (await asked.admin.groups()).get(name)
            return {
                "tab": "Settings",
                "group": name,
                "config": found or SubscriptionGroupConfig(group_name=name),
                "is_configured": found is not None,
                "topics": await data.topics_of(name),
                "modes": await data.modes_of(name),
            }

        return await site.show(request, "groupconfig.html", _SECTION, work)

    @router.post(f"{_PATH}/{{name}}/config")
    async def configure(name: str, request: Request) -> Response:
        async def ask(asked: Asking, form: Form) -> Confirmation:
            check_group(name)
            old = (await asked.admin.groups()).get(name) or SubscriptionGroupConfig(group_name=name)
            new = _changed(old, form)
            rows: list[Any] = [
                (text, _shown(getattr(old, key)), _shown(getattr(new, key)))
                for key, text in _SETTINGS.items()
                if getattr(old, key) != getattr(new, key)
            ]
            if not rows:
                raise Trouble(409, "Nothing would change", "The settings already have these values.")
            return Confirmation(f"Change {name}?", "Change", columns=("Setting", "Now", "Then"), rows=rows)

        async def do(asked: Asking, form: Form) -> Done:
            check_group(name)
            old = (await asked.admin.groups()).get(name) or SubscriptionGroupConfig(group_name=name)
            # The attributes of a request are changes to the present ones.
            await asked.admin.create_group(
                name, config=msgspec.structs.replace(_changed(old, form), attributes={})
            )
            return Done(f"Group {name} was changed.", f"{_page_of(name)}/config")

        return await site.change(request, _SECTION, ask, do)

    @router.post(f"{_PATH}/{{name}}/mode")
    async def mode(name: str, request: Request) -> Response:
        def given(form: Form) -> tuple[str, str, int]:
            topic, wanted = form.one("topic").strip(), form.one("mode")
            check_topic(topic)
            if wanted not in _MODES:
                raise InvalidMessage("mode: PULL or POP", field="mode")
            return topic, wanted, number_in(form, "share", 0, 0x7FFF, 0)

        async def ask(asked: Asking, form: Form) -> Confirmation:
            check_group(name)
            topic, wanted, share = given(form)
            facts = [("Topic", topic), ("Mode", wanted)]
            if wanted == "POP":
                facts.append(
                    ("Each consumer shares the queues of", f"{share} neighbours" if share else "all")
                )
            return Confirmation(f"Let {name} consume by {wanted}?", "Change", facts)

        async def do(asked: Asking, form: Form) -> Done:
            check_group(name)
            topic, wanted, share = given(form)
            await asked.admin.set_consume_mode(topic, name, wanted, share_queues=share)
            return Done(f"{name} consumes {topic} by {wanted}.", f"{_page_of(name)}/config")

        return await site.change(request, _SECTION, ask, do)


_SETTINGS = {
    "consume_enable": "May consume",
    "consume_message_orderly": "In order",
    "consume_broadcast_enable": "May broadcast",
    "retry_max_times": "Retries before a message is dead",
    "retry_queue_nums": "Retry queues",
    "consume_timeout_minute": "Minutes to consume a message",
}


def _shown(value: object) -> str:
    return ("yes" if value else "no") if isinstance(value, bool) else str(value)


def _changed(old: SubscriptionGroupConfig, form: Form) -> SubscriptionGroupConfig:
    """Raises InvalidMessage."""
    return msgspec.structs.replace(
        old,
        consume_enable=form.is_on("consume_enable"),
        consume_message_orderly=form.is_on("consume_message_orderly"),
        consume_broadcast_enable=form.is_on("consume_broadcast_enable"),
        retry_max_times=number_in(form, "retry_max_times", 0, MAX_RETRIES),
        retry_queue_nums=number_in(form, "retry_queue_nums", 0, 0x7FFF),
        consume_timeout_minute=number_in(form, "consume_timeout_minute", 1, MAX_RETRIES),
    )


def _target_ms(form: Form) -> int:
    """As RocketMQ: 0 is the beginning, -1 the end. Raises InvalidMessage."""
    to = form.one("to")
    if to not in _TARGETS:
        raise InvalidMessage("to: earliest, latest, time or offset", field="to")
    return {"earliest": 0, "latest": -1}.get(to, 0) if to != "time" else time_ms(form.one("time").strip())


async def _queue(asked: Asking, topic: str, form: Form) -> MessageQueue:
    """Raises InvalidMessage, NoRoute."""
    broker, _, number = form.one("queue").strip().rpartition(":")
    for queue in (await asked.admin.topic_route(topic)).subscribe_queues:
        if queue.broker_name == broker and str(queue.queue_id) == number:
            return queue
    raise InvalidMessage("queue: BROKER:NUMBER of a queue of the topic", field="queue")


async def _preview(asked: Asking, group: str, topic: str, form: Form) -> Confirmation:
    """The offset that every queue would have."""
    data, to = ConsoleData(asked.admin), form.one("to")
    bounds = await data.bounds(topic)
    queues = list(bounds) if to != "offset" else [await _queue(asked, topic, form)]
    at_ms = 0 if to == "offset" else _target_ms(form)
    rows: list[Any] = []
    behind = 0
    for queue in queues:
        low, high = bounds[queue]
        if to == "offset":
            target = number_in(form, "offset", low, high)
        elif at_ms == -1:
            target = high
        else:
            target = low if at_ms == 0 else await asked.admin.offset_at(queue, at_ms)
        try:
            before = await asked.admin.query_offset(group, queue)
        except BrokerError:
            before = None
        behind += high - target
        if len(rows) < MAX_PREVIEW:
            shown = "none" if before is None else f"{before:,}"
            move = "" if before is None else f"{target - before:+,}"
            rows.append(
                (f"{queue.broker_name}:{queue.queue_id}", shown, f"{target:,}", move, f"{high - target:,}")
            )
    members = await data.member_count(group)
    facts = [
        ("Topic", topic),
        ("Messages to be consumed afterwards", f"{behind:,}"),
        (
            "Members that are connected",
            f"{members}, which continue from there at once" if members else "none",
        ),
    ]
    return Confirmation(
        f"Move {group} to other offsets?",
        "Move",
        facts,
        ("Queue", "#Now", "#Then", "#Moves by", "#Lag afterwards"),
        rows,
        is_dangerous=True,
        more=max(0, len(queues) - len(rows)),
    )
