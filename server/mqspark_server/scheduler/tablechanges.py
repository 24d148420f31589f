"""Changes of live tables over HTTP: pause, resume, drop.

A job server has no users. Who may change a table, the cluster that it follows says: whoever may change settings of its
brokers (Update on the cluster), and everybody in a cluster without users. The keys come with each request.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fastapi import Request

from mqspark.client.admin import AdminClient
from mqspark.client.remoting.client_options import ClientOptions
from mqspark.client.remoting.credentials import Credentials
from mqspark.errors import BrokerError, ConfigError, MQError
from mqspark.protocol.codes import ResponseCode
from mqspark_server.actions.tableactions import DROP, PAUSE, TableChange
from mqspark_server.settings.serverconfig import is_loopback
from mqspark_server.survey.brokersurvey import masters_of
from mqspark_server.web.callers import keys_of
from mqspark_server.web.problems import Problem

if TYPE_CHECKING:
    from mqspark_jobs.tables.tabledefs import TableDefinition, TableDirectory

TABLE_CHANGE_TIMEOUT_MS = 5_000


def defined(directory: TableDirectory, name: str) -> TableDefinition:
    """Raises Problem."""
    if name not in directory.names():
        raise Problem(404, "there is no such table")
    try:
        return directory.load(name)
    except ConfigError:
        raise Problem(404, "there is no such table") from None
    except MQError as error:
        raise Problem(500, str(error)) from None


async def check_may_change(request: Request, nameserver: str) -> None:
    """Ask the cluster for a change of its settings that changes none. Raises Problem."""
    options = ClientOptions(credentials=_credentials(request) or False)
    try:
        async with AdminClient(nameserver, timeout_ms=TABLE_CHANGE_TIMEOUT_MS, options=options) as admin:
            masters = list((await masters_of(admin)).values())
            if not masters:
                raise Problem(
                    503, f"the cluster at {nameserver} has no broker that could say who may change tables"
                )
            await admin.update_broker_config(masters[0], {})
    except BrokerError as error:
        status = 403 if error.code == ResponseCode.NO_PERMISSION else 502
        raise Problem(status, str(error), code=error.code) from None
    except MQError as error:
        raise Problem(
            502, f"the cluster at {nameserver} cannot be asked who may change tables: {error}"
        ) from None


def change(directory: TableDirectory, name: str, wanted: TableChange) -> TableDefinition:
    """Blocking. Raises Problem."""
    defined(directory, name)
    try:
        if wanted is DROP:
            return directory.remove(name)
        return directory.change(name, is_paused=wanted is PAUSE)
    except ConfigError:
        raise Problem(404, "there is no such table") from None
    except (MQError, OSError) as error:
        raise Problem(500, str(error)) from None


def _credentials(request: Request) -> Credentials | None:
    """The keys that came with the request, as Basic credentials. Raises Problem."""
    keys = keys_of(request)
    host = "" if request.client is None else request.client.host
    if keys is not None and not is_loopback(host):
        raise Problem(403, "a job server takes secrets from this host only")
    return keys
