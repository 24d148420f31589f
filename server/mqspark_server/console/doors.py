"""Decides who may log in at the console: by the users of a broker at its own console, otherwise by the cluster."""

from __future__ import annotations

import dataclasses
import hmac
import logging

from fastapi import Request

from mqspark.auth.config import AuthConfig
from mqspark.auth.failures import Failures
from mqspark.base.clock import Clock
from mqspark.base.logs import printable
from mqspark.client.admin import AdminClient
from mqspark.client.remoting.client_options import ClientOptions
from mqspark.client.remoting.credentials import Credentials
from mqspark.errors import BrokerError, MQError
from mqspark.protocol.codes import ResponseCode
from mqspark_server.web.callers import TOO_MANY, Callers
from mqspark_server.web.problems import Problem

KNOWN_MS = 10_000
"""How long the knowledge whether the cluster has users is cached."""
DOORS_TIMEOUT_MS = 5_000
MAX_ADDRESS = 64
_MAY_NOT = "has no permission"
"""In the remark of a broker that knows the user, but does not let them do that."""
log = logging.getLogger("mqspark.console")


class NoBroker(Exception):
    """No broker is registered: nobody knows whether there are users, and which keys are theirs."""


class BrokerDoor:
    """The login of the console of a broker."""

    has_keys = False

    def __init__(self, auth: AuthConfig) -> None:
        self._auth = auth

    async def has_users(self) -> bool:
        return self._auth.authentication_enabled

    async def check(self, request: Request, name: str, secret: str) -> Credentials | None:
        """Raises Problem."""
        callers: Callers = request.app.state.callers
        callers.check_login(request.scope, name, secret)
        return Credentials(name, secret) if name else None


class ClusterDoor:
    """The login of a console for any cluster, on loopback. ``own``: the keys of the console. ``token``: lets its holder
    use these keys, and change a cluster without users."""

    def __init__(
        self, namesrv: str, options: ClientOptions, token: str, clock: Clock, own: Credentials | None = None
    ) -> None:
        self._namesrv = namesrv
        self._options = options
        self._token = token
        self._own = own
        self.has_keys = own is not None
        self._clock = clock
        self._failures = Failures()
        self._known: tuple[int, bool] | None = None

    async def has_users(self) -> bool:
        """Whether a broker refuses requests without keys. Raises Problem when none can be asked. Users stay while no
        broker is registered, as after a restart of the name server: what was sampled for them is for nobody else."""
        now_ms = self._clock.monotonic_ms()
        if self._known is None or now_ms - self._known[0] > KNOWN_MS:
            try:
                self._known = now_ms, await self._refusal(None) is not None
            except NoBroker:
                if self._known is None:  # asked again: the first one to register may have users
                    return False
                self._known = now_ms, self._known[1]
        return self._known[1]

    async def check(self, request: Request, name: str, secret: str) -> Credentials | None:
        """Raises Problem."""
        address = "" if request.client is None else request.client.host
        wait_ms = self._failures.wait_ms(address, self._clock.monotonic_ms())
        if wait_ms:
            raise Problem(429, TOO_MANY, headers={"Retry-After": str(-(-wait_ms // 1000))})
        keys, refusal = await self._keys(name, secret)
        if keys is not None:
            try:
                refusal = await self._refusal(keys)
            except NoBroker:
                raise Problem(503, "no broker is registered that could check the keys") from None
            is_known = refusal is not None and _MAY_NOT in refusal
            refusal = None if is_known else refusal
            if refusal is not None and keys is self._own:
                raise Problem(502, f"the cluster refuses the keys of this console: {refusal}")
        word = "allowed" if refusal is None else "refused"
        log.info("login from %s: %s", printable(address, MAX_ADDRESS), word)
        if refusal is not None:
            self._failures.note(address, self._clock.monotonic_ms())
            raise Problem(401, refusal)
        return keys

    async def _keys(self, name: str, secret: str) -> tuple[Credentials | None, str | None]:
        """The keys of a login, which may have none, and why it is refused before the cluster is asked."""
        has_users = await self.has_users()
        if name:
            no_users = "the cluster has no users: give the token alone"
            return (Credentials(name, secret), None) if has_users else (None, no_users)
        if has_users and self._own is None:
            return None, "an access key is required, too"
        if not hmac.compare_digest(secret.encode("utf-8", "replace"), self._token.encode()):
            return None, "this is not the token that the console printed at its start"
        return self._own if has_users else None, None

    async def _refusal(self, credentials: Credentials | None) -> str | None:
        """The refusal of the first reachable broker; None: it accepted the request. Raises Problem, NoBroker."""
        options = dataclasses.replace(self._options, credentials=credentials or False)
        problem = ""
        async with AdminClient(self._namesrv, timeout_ms=DOORS_TIMEOUT_MS, options=options) as admin:
            try:
                info = await admin.cluster_info()
            except MQError as error:
                if isinstance(error, BrokerError) and error.code == ResponseCode.NO_PERMISSION:
                    return str(error)
                raise Problem(502, str(error)) from None
            for broker in info.broker_addr_table.values():
                for address in broker.broker_addrs.values():
                    try:
                        await admin.broker_runtime_info(address)
                    except BrokerError as error:
                        return str(error) if error.code == ResponseCode.NO_PERMISSION else None
                    except MQError as error:
                        problem = str(error)
                    else:
                        return None
        if problem:
            raise Problem(502, problem)
        raise NoBroker
