"""The HTTP application of a broker: /health, /metrics, /api/v1 and the schema registry.

``http`` loads it; ``httpguard`` limits access.
"""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from fastapi import APIRouter, FastAPI, Request, Response
from fastapi.responses import JSONResponse, RedirectResponse
from pydantic import Field

from mqspark.auth.policies import Action
from mqspark.base.document import Document
from mqspark.errors import InvalidMessage, MessageTooLarge
from mqspark.message import (
    MAX_PROPERTIES_BYTES,
    TRANSACTION_PREPARED,
    check_topic,
    encode_properties,
    new_unique_id,
)
from mqspark.protocol.codes import RequestCode
from mqspark.protocol.headers.client_headers import SendMessageResponseHeader
from mqspark.store.tools.diverged import saved_parts
from mqspark_server.web import login
from mqspark_server.web.callers import CLUSTER, Callers, Connect
from mqspark_server.web.families import CONTENT_TYPE
from mqspark_server.web.httpguard import ASGIApp, Guarded
from mqspark_server.web.metrics import render
from mqspark_server.web.places import Places
from mqspark_server.web.problems import Problem, as_problem, new_api
from mqspark_server.web.requestbodies import BoundedBodies
from mqspark_server.web.schemaapi import (
    BrokerSchemas,
    SchemaDoor,
    schema_router,
)
from mqspark_server.web.turns import between_turns
from mqspark_server.web.v1 import (
    deadletterapi,
    groupapi,
    ingest,
    messageapi,
    settingsapi,
    tailapi,
    topicapi,
    userapi,
)
from mqspark_server.web.v1.asking import ERRORS, AskerNow, Given, QueueId, TopicName

if TYPE_CHECKING:
    from mqspark_server.node import BrokerNode


class NewMessage(Given):
    """A message to store: exactly one of ``body`` and ``bodyBase64``."""

    body: str | None = Field(default=None, description="text, stored as UTF-8")
    bodyBase64: str | None = Field(default=None, description="any bytes")
    tags: str | None = None
    keys: list[str] = Field(default_factory=list)
    properties: dict[str, str] = Field(default_factory=dict)
    queueId: QueueId | None = Field(default=None, description="the broker chooses when absent")


@dataclass(slots=True)
class StoredMessage(Document):
    msg_id: str = field(metadata={"description": "unique id, as a producer would make it"})
    offset_msg_id: str = field(metadata={"description": "the broker's id: where the message is"})
    topic: str
    queue_id: int
    queue_offset: int


MAX_LISTED = 100
"""Files of ``mqspark.diverged`` in a report."""


def store_report(app: BrokerNode) -> dict[str, Any]:
    """The known state of the store of a broker: why it accepts no messages, its damage, the recovery at its start."""
    store = app.store
    segments = None
    if store is not None and app.lifecycle.ready:
        size = app.store_config.mapped_file_size_commit_log
        segments = {
            "count": (store.log.newest_segment_start - store.log.min_offset) // size + 1,
            "bytes": size,
        }
    return {
        "broker": app.config.broker_name,
        "phase": app.lifecycle.phase.name.lower(),
        "store": {
            "path": str(app.store_path),
            "segments": segments,
            "readOnly": store.condition.read_only if store is not None and app.lifecycle.ready else None,
            "refusing": store.condition.why_refusing if store is not None and app.lifecycle.ready else None,
            "diskFull": store.status.disk_full if store is not None else None,
            "readProblem": store.status.read_problem if store is not None else None,
            "damageProblem": store.status.damage_problem if store is not None else None,
            "indexProblem": store.status.index_problem if store is not None else None,
            "scrub": store.upkeep.scrub.as_dict() if store is not None else None,
            "damageCounts": store.damages.summary() if store is not None else {},
            "damage": store.damages.as_dicts(100) if store is not None else [],
            "damagedOffsets": store.status.damaged_offsets[:100] if store is not None else [],
            "checkpointProblem": store.status.checkpoint_problem if store is not None else None,
            "retentionProblem": store.status.retention_problem if store is not None else None,
            "compactionProblem": store.upkeep.compact_duty.problem if store is not None else None,
            "recovery": app.recovery,
            "member": store.member.as_dict() if store is not None else None,
            "setAside": [
                {"file": each.path.name, "position": each.position, "bytes": each.size_bytes}
                for each in (saved_parts(store.paths.diverged, store.files) if store is not None else [])
            ][:MAX_LISTED],
        },
    }


def create_api(app: BrokerNode, connect: Connect, more: Sequence[APIRouter] = ()) -> ASGIApp:
    """``connect``: for what another broker has. ``more``: further routes, under the same limits."""
    api = described_api(more)
    callers = api.state.callers = Callers(app, app.loopback_token)
    api.state.schemas = BrokerSchemas(app, callers, connect)
    api.state.broker, api.state.connect = app, connect
    api.state.ingests, api.state.tails = Places("requests are being stored"), Places("tails are open")
    api.state.scrapes = []
    hosts = (*app.settings.server.http_allowed_hosts.split(";"), app.config.broker_ip1)
    return Guarded(BoundedBodies(api, app, callers), (*hosts, app.settings.server.http_bind_address))


def described_api(more: Sequence[APIRouter] = ()) -> FastAPI:
    """The paths of a broker, without one that answers: for their document."""
    api = new_api("mqspark broker", summary="Health, metrics and a small API beside the remoting port")
    own = (login, topicapi, messageapi, tailapi, groupapi, deadletterapi, settingsapi, userapi, ingest)
    # Not by include_router: FastAPI would build every route again for each broker, within its first request.
    for router in (*(each.router for each in own), *more, _schemas_router, _own_router):
        api.router.routes.extend(router.routes)
    return api


_own_router = APIRouter()


def _schema_door(request: Request) -> SchemaDoor:
    door: SchemaDoor = request.app.state.schemas
    return door


_schemas_router = schema_router(_schema_door)


@_own_router.get("/", include_in_schema=False)
async def enter() -> RedirectResponse:
    """The console, which links everything else."""
    return RedirectResponse("/console")


@_own_router.get(
    "/health/ready", tags=["health"], responses={503: {"description": "not ready; the body says why"}}
)
async def ready(request: Request) -> JSONResponse:
    """Whether messages are accepted and served: the start-up state, the store, the replicas, the name servers. A
    broker with users gives the reason only to callers who may Get its cluster."""
    app: BrokerNode = request.app.state.broker
    callers: Callers = request.app.state.callers
    store, parts = app.store, app.parts
    is_serving = app.lifecycle.ready and parts is not None
    refused = parts.core.sends_refused if parts is not None and is_serving else None
    read_problem = store.status.read_problem if store is not None else None
    damage_problem = store.status.damage_problem if store is not None else None
    good = is_serving and all(problem is None for problem in (refused, read_problem, damage_problem))
    body = {
        "status": "ready" if good else "not ready",
        **app.lifecycle.describe(),
        "sendsRefused": refused,
        "store": store_report(app)["store"],
        "delayProblem": parts.core.delay_problem if parts is not None else None,
        "registeredWith": parts.registrar.known_to if parts is not None else [],
        "registrationProblem": parts.core.publication.problem if parts is not None else None,
        "following": parts.following.as_dict() if parts is not None and parts.following is not None else None,
        "housekeepingError": parts.housekeeper.error if parts is not None else None,
    }
    if callers.has_users:
        try:
            callers.authorize(callers.identify(request.scope), CLUSTER, Action.GET)
        except Problem:
            body = {"status": body["status"]}
    return JSONResponse(body, 200 if good else 503)


@_own_router.get(
    "/metrics",
    tags=["metrics"],
    response_class=Response,
    responses={status: ERRORS[status] for status in (401, 403, 429)},
)
async def metrics(request: Request) -> Response:
    """Prometheus text, RocketMQ 5 metric names. Concurrent requests share one rendering. A broker with users shows
    them only to callers who may Get its cluster."""
    app: BrokerNode = request.app.state.broker
    callers: Callers = request.app.state.callers
    scrapes: list[asyncio.Task[bytes]] = request.app.state.scrapes
    if callers.has_users:
        callers.authorize(callers.identify(request.scope), CLUSTER, Action.GET)
    if not scrapes:
        scrape = asyncio.get_running_loop().create_task(between_turns(render(app)), name="mqspark-scrape")
        scrapes.append(scrape)
        scrape.add_done_callback(scrapes.remove)
    return Response(await asyncio.shield(scrapes[0]), media_type=CONTENT_TYPE)


@_own_router.get("/api/v1/cluster", tags=["cluster"], responses=ERRORS)
async def cluster(asker: AskerNow) -> dict[str, Any]:
    """The state of this broker, as the admin tools show it."""
    asker.authorize(CLUSTER, Action.GET)
    app, parts, config = asker.app, asker.parts, asker.app.config
    return {
        "cluster": config.broker_cluster_name,
        "broker": config.broker_name,
        "brokerId": config.broker_id,
        "address": app.address,
        "nameServers": parts.registrar.addresses,
        "registeredWith": parts.registrar.known_to,
        "runtime": parts.core.runtime_info(),
    }


@_own_router.post("/api/v1/topics/{topic}/messages", tags=["messages"], status_code=201, responses=ERRORS)
async def put_message(topic: TopicName, message: NewMessage, asker: AskerNow) -> StoredMessage:
    """Store one message; answered when the broker's flush type allows it."""
    with as_problem(400, InvalidMessage, MessageTooLarge):
        check_topic(topic)
        body = _body(message)
        unique_id = new_unique_id()
        properties = _properties(message, unique_id)
    header = asker.sending(topic, properties, queue_id=message.queueId)
    answer = await asker.ask(RequestCode.SEND_MESSAGE_V2, header, body)
    stored = answer.header(SendMessageResponseHeader)
    return StoredMessage(unique_id, stored.msg_id, topic, stored.queue_id, stored.queue_offset)


def _body(message: NewMessage) -> bytes:
    if (message.body is None) == (message.bodyBase64 is None):
        raise InvalidMessage("exactly one of body and bodyBase64 must be given", field="body")
    try:
        body = (
            message.body.encode()
            if message.body is not None
            else base64.b64decode(message.bodyBase64 or "", validate=True)
        )
    except UnicodeEncodeError as error:
        raise InvalidMessage(f"body is not text: {error.reason}", field="body") from None
    except ValueError:  # also for non-ASCII text
        raise InvalidMessage("bodyBase64 is not base64", field="bodyBase64") from None
    if not body:
        raise InvalidMessage("the message has no body", field="body")
    return body


def _properties(message: NewMessage, unique_id: str) -> str:
    properties = dict(message.properties)
    if TRANSACTION_PREPARED in properties:
        # The broker's transaction check would reach no producer.
        raise InvalidMessage("half messages are sent by a TransactionProducer", field="properties")
    if message.tags:
        properties["TAGS"] = message.tags
    if message.keys:
        properties["KEYS"] = " ".join(message.keys)
    properties["UNIQ_KEY"] = unique_id
    properties["WAIT"] = "true"
    encoded = encode_properties(properties)
    if len(encoded) > MAX_PROPERTIES_BYTES:  # the broker would not read a header of several times this size
        raise MessageTooLarge("properties", len(encoded), MAX_PROPERTIES_BYTES)
    return encoded.decode()
