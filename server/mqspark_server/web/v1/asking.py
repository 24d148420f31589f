"""What all routes of /api/v1 share: the broker, its answers as results or problems, pages and ETags."""

from __future__ import annotations

import base64
import binascii
import hashlib
from collections.abc import Iterable
from itertools import islice, takewhile
from typing import Annotated, Any, Generic, NamedTuple, TypeVar

import msgspec
from fastapi import Depends, Path, Query, Request, Response
from fastapi.dependencies.utils import get_flat_params
from fastapi.routing import APIRoute
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter

from mqspark.auth.policies import Action, Kind
from mqspark.auth.users import MAX_NAME_LENGTH
from mqspark.base.keyorder import KeyOrder
from mqspark.base.logs import printable
from mqspark.broker.state.state import BrokerState
from mqspark.broker.tables.topics import Topic
from mqspark.errors import NoSuchTopic
from mqspark.protocol.codes import Reason, ResponseCode
from mqspark.protocol.command import Command, Fields
from mqspark.protocol.headers.client_headers import SendMessageRequestHeaderV2
from mqspark.protocol.slices import Work
from mqspark_server.node import BrokerNode, BrokerParts
from mqspark_server.shown.nouns import MAX_NAME, QUEUE_IDS
from mqspark_server.web.callers import CLUSTER, Caller, Callers, Subject
from mqspark_server.web.problems import Problem, ProblemDetails
from mqspark_server.web.turns import between_turns

MAX_PAGE = 1_000
PRODUCER_GROUP = "HTTP_PRODUCER"
_MAX_CURSOR_LENGTH = 65_536

_STATUS: dict[int, int] = {
    ResponseCode.MESSAGE_ILLEGAL: 400,
    ResponseCode.INVALID_PARAMETER: 400,
    ResponseCode.SUBSCRIPTION_PARSE_FAILED: 400,
    ResponseCode.NO_PERMISSION: 403,
    ResponseCode.TOPIC_NOT_EXIST: 404,
    ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST: 404,
    ResponseCode.QUERY_NOT_FOUND: 404,
    ResponseCode.CONSUMER_NOT_ONLINE: 409,
    ResponseCode.REQUEST_CODE_NOT_SUPPORTED: 501,
    ResponseCode.SYSTEM_BUSY: 503,
    ResponseCode.SERVICE_NOT_AVAILABLE: 503,
    ResponseCode.FLUSH_DISK_TIMEOUT: 504,
}
"""Broker response code → HTTP status, of what has no reason; all others are a 500."""

_REASONS: dict[Reason | None, int] = {Reason.WRONG_VALUE: 400, Reason.FEATURE_OFF: 501, Reason.NOT_NOW: 503}
"""Reason → HTTP status, where RocketMQ has one code for several reasons."""

_PROBLEMS = {
    400: "the request is malformed, or the broker refuses its values",
    401: "the caller is not logged in, or the credentials are wrong",
    403: "the caller lacks the permission",
    404: "it does not exist",
    409: "the state of the broker does not allow it now",
    412: "it has changed since it was read, or already exists",
    413: "the request is too large",
    415: "the content type of the body is not accepted here",
    422: "the request does not have the documented form",
    429: "too many failed logins from this address; see Retry-After",
    500: "the broker failed",
    501: "the broker does not have this feature, or it is off",
    502: "another server of the cluster refuses or cannot be asked; the text says which servers made the change",
    503: "the broker is busy, read-only, full or not ready",
    504: "the broker did not answer in time; a change may have been made",
}
ERRORS: dict[int | str, dict[str, Any]] = {
    status: {"model": ProblemDetails, "description": text} for status, text in _PROBLEMS.items()
}
"""For routers: every error is a problem."""

TopicName = Annotated[str, Path(min_length=1, max_length=MAX_NAME)]
GroupName = Annotated[str, Path(min_length=1, max_length=MAX_NAME)]
Prefix = Annotated[str, Query(max_length=MAX_NAME)]
QueueId = Annotated[int, QUEUE_IDS]
UserName = Annotated[str, Path(min_length=1, max_length=MAX_NAME_LENGTH)]
Limit = Annotated[int, Query(ge=1, le=MAX_PAGE, description="the most items to return")]
After = Annotated[
    str | None,
    Query(max_length=_MAX_CURSOR_LENGTH, description="`next` of the previous page; absent: the first page"),
]


T = TypeVar("T")


class Given(BaseModel):
    """A document of a request: it has no other fields, and no values of other types: ``"off"`` is no boolean."""

    model_config = ConfigDict(extra="forbid", strict=True)


IN_QUERY = ConfigDict(strict=False)
"""The additional configuration of what is asked in a query, where numbers are written as text, too."""


def making(kind: type[Any]) -> dict[str, Any]:
    """For a route: its answer, also a 201 when it has made something."""
    return {"response_model": kind, "responses": {201: {"model": kind, "description": "made"}}}


class ItemPage(BaseModel, Generic[T]):
    items: list[T]
    next: str | None = Field(
        description="the `after` of the next page; null on the last page. With a filter, others may be empty, too."
    )


async def page_of(form: TypeAdapter[T], items: Iterable[T], following: str | None) -> Response:
    """An ``ItemPage`` of items that may be long, written between turns."""

    def written() -> Work[bytes]:
        parts = [b'{"items":[']
        for item in items:
            parts += (form.dump_json(item, by_alias=True), b",")
            yield
        if len(parts) > 1:
            parts.pop()
        return b"".join((*parts, b'],"next":', msgspec.json.encode(following), b"}"))

    return Response(await between_turns(written()), media_type="application/json")


class Paging:
    """Which page of names is wanted."""

    def __init__(self, limit: Limit = 100, after: After = None) -> None:
        self._limit, self._after = limit, after

    def of(self, names: Iterable[str]) -> tuple[list[str], str | None]:
        """The names of the page, and the cursor of the next one. Names that are created or deleted meanwhile do not
        move others to another page. Raises Problem for an invalid cursor."""
        return self.of_order(KeyOrder(names))

    def of_pages(
        self, pages: Iterable[Iterable[str]], prefix: str = ""
    ) -> Work[tuple[list[str], str | None]]:
        """The same of very many names, which come in pages, perhaps more than once each."""
        after = None if self._after is None else decoded(self._after)
        some: list[str] = []
        for names in pages:
            some += (name for name in names if name.startswith(prefix) and (after is None or name > after))
            some = sorted(set(some))[: self._limit + 1]
            yield
        return self._cut(some)

    def of_order(self, names: KeyOrder[str], prefix: str = "") -> tuple[list[str], str | None]:
        """The same of those that begin with ``prefix``, without a look at the others."""
        after = "" if self._after is None else decoded(self._after)
        found = takewhile(lambda name: name.startswith(prefix), names.since(max(prefix, after)))
        rest = (name for name in found if self._after is None or name > after)
        return self._cut([*islice(rest, self._limit + 1)])

    def _cut(self, some: list[str]) -> tuple[list[str], str | None]:
        """``some``: one more than the page has, if there are more."""
        page = some[: self._limit]
        return page, cursor(page[-1]) if len(some) > self._limit else None


PagingNow = Annotated[Paging, Depends()]


class Asker(NamedTuple):
    """A caller of a broker that serves."""

    app: BrokerNode
    parts: BrokerParts
    callers: Callers
    caller: Caller
    request: Request
    response: Response

    @property
    def state(self) -> BrokerState:
        return self.parts.core.state

    def authorize(self, subject: Subject, *actions: Action) -> None:
        """Raises Problem unless the caller may do one of the actions."""
        self.callers.authorize(self.caller, subject, *actions)

    def authorize_topic(self, name: str, *actions: Action) -> None:
        """Raises Problem."""
        self.authorize(Subject(Kind.TOPIC, name), *actions)

    def authorize_group(self, name: str, *actions: Action) -> None:
        """Raises Problem."""
        self.authorize(Subject(Kind.GROUP, name), *actions)

    def topic(self, name: str) -> Topic:
        """Raises Problem."""
        found = self.state.topics.get(name)
        if found is None:
            raise Problem(404, str(NoSuchTopic(name)))
        return found

    def refusal(self, status: int, text: str, subject: Subject, action: Action) -> Problem:
        """Says what there is or is not, to callers who may do the action. Raises Problem: others learn that they may
        not, and nothing else."""
        self.authorize(subject, action)
        return Problem(status, text)

    def check_known(self, group: str) -> None:
        """Raises Problem for a group that has no settings and no members."""
        if group not in self.state.subscriptions and self.state.clients.consumer(group) is None:
            raise Problem(404, f"no group {group!r}")

    def check_match(self, current: Any, subject: Subject = CLUSTER, action: Action = Action.GET) -> None:
        """If-Match and If-None-Match against the present document; None: there is nothing yet. The answer to a change
        is a 201 then. ``action``: what a caller must be allowed who learns that they do not match. Raises Problem."""
        tag = None if current is None else _etag(current)
        wanted, unwanted = (self.request.headers.get(name) for name in ("if-match", "if-none-match"))
        if wanted is not None and (tag is None or not {"*", tag}.intersection(_parts(wanted))):
            text = "it has changed since it was read: read it again before you change it"
            raise self.refusal(412, text, subject, action)
        if unwanted is not None and tag is not None and {"*", tag}.intersection(_parts(unwanted)):
            raise self.refusal(412, "it already exists", subject, action)
        if current is None:
            self.response.status_code = 201

    def tag(self, document: Any) -> None:
        """The answer has the ETag of the document's content, whenever that was written."""
        self.response.headers["ETag"] = _etag(document)

    async def ask(self, code: int, header: Fields = None, body: bytes = b"") -> Command:
        """The answer of the broker's handler. Raises Problem."""
        answer = await self.callers.ask(self.caller, code, header, body)
        if answer.code != ResponseCode.SUCCESS:
            raise refused(answer)
        return answer

    def sending(
        self, topic: str, properties: str, *, queue_id: int | None = None, flag: int = 0, batch: bool = False
    ) -> SendMessageRequestHeaderV2:
        """The header of a send. ``queue_id``: None lets the broker choose."""
        place = topic, -1 if queue_id is None else queue_id, self.app.clock.now_ms()
        return SendMessageRequestHeaderV2.of(PRODUCER_GROUP, *place, properties, flag=flag, batch=batch)


def refused(answer: Command) -> Problem:
    status = _REASONS.get(answer.reason) or _STATUS.get(answer.code, 500)
    return Problem(status, f"code {answer.code}: {answer.remark or ''}", code=answer.code)


def _check_parameters(request: Request) -> None:
    """Raises Problem for a query parameter that the operation does not have: a misspelt filter would select
    everything."""
    route = request.scope["route"]
    if not request.query_params or not isinstance(route, APIRoute):
        return
    known = {field.alias for field in get_flat_params(route.dependant)} - request.path_params.keys()
    for name in request.query_params:
        if name not in known:
            names = ", ".join(sorted(known)) or "none"
            raise Problem(422, f"there is no query parameter {printable(name, 80)!r}; there are: {names}")


async def _asker(request: Request, response: Response) -> Asker:
    _check_parameters(request)
    app: BrokerNode = request.app.state.broker
    callers: Callers = request.app.state.callers
    caller = callers.identify(request.scope)
    if not app.lifecycle.ready or app.parts is None:
        raise Problem(503, f"the broker is {app.lifecycle.phase.name.lower()}")
    return Asker(app, app.parts, callers, caller, request, response)


AskerNow = Annotated[Asker, Depends(_asker)]


# --- pages ---


def cursor(text: str) -> str:
    return base64.urlsafe_b64encode(text.encode("utf-8", "surrogatepass")).decode().rstrip("=")


def decoded(text: str) -> str:
    """Raises Problem for an invalid cursor."""
    try:
        return base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True).decode()
    except (binascii.Error, ValueError):
        raise Problem(
            400, "the cursor is not from this broker: leave `after` out for the first page"
        ) from None


# --- versions ---


def _etag(document: Any) -> str:
    text = msgspec.json.encode(document, order="sorted")
    return f'"{hashlib.sha256(text).hexdigest()[:32]}"'


def _parts(header: str) -> list[str]:
    return [each.strip() for each in header.split(",")]
