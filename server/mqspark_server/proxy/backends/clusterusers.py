"""The users of a cluster, for the service before it: a copy, by which each request of a client is judged before it goes
to a broker, as the broker would judge it.

Clients sign calls of gRPC, not requests of remoting, and brokers cannot verify those. So this process verifies them,
and signs its requests to brokers with an account of its own (innerClientAuthenticationCredentials), as RocketMQ's proxy
does. The copy is that of a slave (``mqspark.auth.usercopy``). A broker of RocketMQ has no such copy, and lists its
users and policies.

A request that names a message by its place needs rights on that message's topic: the broker is asked for it first.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Mapping

import msgspec

from mqspark.auth.access import TABLE, NoFacts, TouchedMessage
from mqspark.auth.authadmin import AclInfo, UserInfo
from mqspark.auth.config import AuthConfig
from mqspark.auth.gate import Audited, Gate
from mqspark.auth.policies import named
from mqspark.auth.usercopy import UserCopy
from mqspark.auth.users import Users, UserStatus, UserType, user_subject
from mqspark.base.config import Limit
from mqspark.base.logs import sparing
from mqspark.errors import ConfigError, IllegalName, InvalidMessage, ProtocolError
from mqspark.message import RETRY_PREFIX
from mqspark.protocol.bodies.body import decode_body
from mqspark.protocol.bodies.topic_bodies import TopicList
from mqspark.protocol.codes import RequestCode, ResponseCode
from mqspark.protocol.command import Command
from mqspark.protocol.dispatch import Refusal
from mqspark.protocol.headers.client_headers import ViewMessageRequestHeader
from mqspark.protocol.headers.header import Header, to_ext
from mqspark.protocol.session import Session
from mqspark.record.record import decode_record
from mqspark_server.authfiles import KEY_BYTES, AesGcm
from mqspark_server.proxy import messaging_pb2 as pb
from mqspark_server.proxy.backend import Proof, Rights
from mqspark_server.proxy.backends.clusterroutes import Recent
from mqspark_server.proxy.grpcstatus import GrpcRefusal, code_of, refusal_of

REFRESH_S = 10.0
"""How long a change of users takes to be seen here, at most. RocketMQ's proxy takes 20 s (userCacheRefreshSeconds)."""
USERS_RETRY_S = 1.0

Ask = Callable[[int, Mapping[str, str]], Awaitable[Command]]
"""Asks a broker. Raises GrpcRefusal."""
AskBroker = Callable[[str, int, Mapping[str, str]], Awaitable[Command]]
"""Asks the broker of this name. Raises GrpcRefusal."""
AskPlace = Callable[[int, Header], Awaitable[Command]]

log = sparing(__name__)

_PLACES: dict[int, str] = {
    RequestCode.END_TRANSACTION: "commitLogOffset",
    RequestCode.CONSUMER_SEND_MSG_BACK: "offset",
}
"""Requests that name a message by its place, and the field in which they do."""


def check_auth_of_proxy(config: AuthConfig) -> None:
    """Raises ConfigError for settings of users that would promise what a proxy does not keep."""
    if config.authentication_enabled and config.inner_credentials is None:
        raise ConfigError(
            "authenticationEnabled of a proxy needs innerClientAuthenticationCredentials, those of the brokers:"
            " with them it asks for their users",
            key="innerClientAuthenticationCredentials",
        )
    if config.inner_credentials is not None and not config.authentication_enabled:
        raise ConfigError(
            "innerClientAuthenticationCredentials without authenticationEnabled would lend everybody the rights of"
            " that user",
            key="innerClientAuthenticationCredentials",
        )
    for value, key in (
        (config.authenticate_by_certificate, "authenticateByCertificate"),
        (config.authentication_provider, "authenticationProvider"),
        (config.init_authentication_user, "initAuthenticationUser"),
        (config.migrate_auth_from_v1_enabled, "migrateAuthFromV1Enabled"),
        (config.auth_config_path, "authConfigPath"),
        (config.audit_log_path, "auditLogPath"),
    ):
        if value:
            raise ConfigError.of(key, "a proxy has the users of its brokers, and no others")


class _ClusterFacts(NoFacts):
    """``touched``: the message at the place that is asked for. ``group``: the one whose retries are asked for, if there
    is one of that name."""

    def __init__(self) -> None:
        self.touched: TouchedMessage | None = None
        self.group = ""

    def stored(self, position: int) -> TouchedMessage | None:
        return self.touched

    def is_group(self, name: str) -> bool:
        return name == self.group


def _nothing(session: Session, command: Command) -> None:
    """What an allowed request does here."""


def _log_refusal(audited: Audited) -> None:
    if not audited.allowed:
        log.info("%s at %s is refused: %s", audited.user or "nobody", audited.peer, audited.reason)


class _RightsOfCopy(Rights):
    def __init__(self, users: Users, gate: Gate, session: Session) -> None:
        super().__init__(gate, session)
        self._users = users

    def sign_in(self, proof: Proof | None, address: str) -> None:
        if not len(self._users):
            raise GrpcRefusal(pb.INTERNAL_SERVER_ERROR, "the users of the cluster are not known yet")
        super().sign_in(proof, address)


class ClusterUsers:
    def __init__(self, config: AuthConfig, ask: Ask, ask_broker: AskBroker) -> None:
        """``config`` has credentials. Raises ConfigError without the package for encryption."""
        signer = config.inner_signer
        if signer is None:
            raise ConfigError(
                "a proxy copies users with credentials only", key="innerClientAuthenticationCredentials"
            )
        cipher = AesGcm(os.urandom(KEY_BYTES))
        self._ask, self._ask_broker = ask, ask_broker
        self._users = Users(cipher, Limit(config, "max_auth_table_bytes"))
        self._copy = UserCopy(self._users, cipher, signer, lambda: None)
        self._facts = _ClusterFacts()
        self._gate = Gate(config, self._users, self._facts, _log_refusal)
        self._gate.max_connections = config.max_connections_per_user
        self._checks = self._gate.guard(dict.fromkeys(TABLE, _nothing))
        self._groups = Recent(self._is_group)
        self._refreshing: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Without a broker that answers, clients are refused until there is one."""
        pause_s = await self._try_to_refresh()
        self._refreshing = asyncio.ensure_future(self._run(pause_s))

    def close(self) -> None:
        if self._refreshing is not None:
            self._refreshing.cancel()

    async def _run(self, pause_s: float) -> None:
        while True:
            await asyncio.sleep(pause_s)
            pause_s = await self._try_to_refresh()

    async def _try_to_refresh(self) -> float:
        """How long to wait before the next time, in seconds."""
        try:
            await self.refresh()
        except (GrpcRefusal, ProtocolError, InvalidMessage, IllegalName) as error:
            log.warning("the users of the cluster cannot be copied: %s", error)
            return USERS_RETRY_S
        except Exception:  # without this task a removed user would stay one for ever
            log.exception("the users of the cluster cannot be copied")
            return USERS_RETRY_S
        return REFRESH_S

    async def refresh(self) -> None:
        """Copy the users once. Raises GrpcRefusal, ProtocolError, InvalidMessage or IllegalName; then they stay as they
        are."""
        answer = await self._ask(RequestCode.AUTH_LIST_USER, self._copy.question())
        if answer.code != ResponseCode.SUCCESS:
            raise ProtocolError(f"a broker refuses to send its users: {(answer.remark or '')[:200]}")
        if answer.body:
            self._copy.take(answer)
        else:
            self._users.replace(await self._listed())

    async def _listed(self) -> bytes:
        """The users and policies as a broker of RocketMQ lists them, as JSON of ``Users.in_clear``."""
        users = decode_body(list[UserInfo], await self._list(RequestCode.AUTH_LIST_USER))
        acls = decode_body(list[AclInfo], await self._list(RequestCode.AUTH_LIST_ACL))
        return msgspec.json.encode(
            {
                "users": [
                    {
                        "name": each.username or "",
                        "secret": each.password or "",
                        "type": named(UserType, each.user_type or "", "user type"),
                        "status": named(UserStatus, each.user_status or "", "user status"),
                    }
                    for each in users
                ],
                "acls": [
                    {"name": user_subject(each.subject), "policies": each.policies or []} for each in acls
                ],
            }
        )

    async def _list(self, code: int) -> bytes:
        answer = await self._ask(code, {})
        if answer.code != ResponseCode.SUCCESS:
            raise ProtocolError(f"a broker refuses to list its users: {(answer.remark or '')[:200]}")
        return bytes(answer.body) or b"[]"

    # --- one client ---

    def left(self, session: Session) -> None:
        """A client has left."""
        self._gate.left(session)

    def rights(self, session: Session) -> Rights:
        return _RightsOfCopy(self._users, self._gate, session)

    async def check(
        self,
        session: Session,
        code: int,
        header: Header | Mapping[str, str] | None,
        body: bytes,
        ask: AskPlace,
        broker: str = "",
    ) -> None:
        """Raises GrpcRefusal unless the client may have this requested of the broker that ``ask`` asks. ``broker``: its
        name; only what is asked of any broker is without."""
        ext = to_ext(header) if isinstance(header, Header) else dict(header or {})
        touched = None
        if code in _PLACES:
            touched = await _touched(int(ext[_PLACES[code]]), ask)
        group = await self._group_of_retries(ext, broker)
        self._facts.touched, self._facts.group = touched, group
        try:
            self._checks[code](session, Command(code, ext_texts=ext, body=body))
        except Refusal as refusal:
            raise GrpcRefusal(code_of(refusal.code), refusal.remark) from None
        finally:
            self._facts.touched, self._facts.group = None, ""

    async def _group_of_retries(self, ext: Mapping[str, str], broker: str) -> str:
        """The group whose retries the topic has, if that may be another one than the group of the request: POP's retry
        topic of group ``a`` and topic ``b_c`` has the name of that of a group ``a_b_c``. Raises GrpcRefusal."""
        topic, group = ext.get("topic", ""), ext.get("consumerGroup", "")
        rest = topic.removeprefix(RETRY_PREFIX)
        is_either = rest != topic and group and rest.startswith(f"{group}_")
        return rest if is_either and await self._groups.find(f"{broker}@{rest}") else ""

    async def _is_group(self, place: str) -> bool:
        """Whether a group consumes at a broker, by ``broker@group``. A broker of RocketMQ that is asked for the
        settings of a group makes it (autoCreateSubscriptionGroup)."""
        broker, _, name = place.rpartition("@")
        answer = await self._ask_broker(broker, RequestCode.QUERY_TOPICS_BY_CONSUMER, {"group": name})
        if answer.code != ResponseCode.SUCCESS:
            raise refusal_of(answer)
        return bool(decode_body(TopicList, answer.body).topic_list)


async def _touched(position: int, ask: AskPlace) -> TouchedMessage:
    """The message at a place of the broker's log. Raises GrpcRefusal."""
    answer = await ask(RequestCode.VIEW_MESSAGE_BY_ID, ViewMessageRequestHeader(offset=position))
    if answer.code != ResponseCode.SUCCESS:
        raise GrpcRefusal(pb.INTERNAL_SERVER_ERROR, f"there is no message at {position}")
    try:
        message = decode_record(answer.body)
    except InvalidMessage as error:
        raise GrpcRefusal(pb.INTERNAL_SERVER_ERROR, str(error)) from None
    return TouchedMessage(message.topic, dict(message.properties))
