"""What RocketMQ's tools of gRPC ask a server itself (Admin)."""

from __future__ import annotations

import logging

from mqspark_server.proxy import messaging_pb2 as pb
from mqspark_server.proxy.clients.grpccalls import GrpcCall
from mqspark_server.proxy.grpcstatus import GrpcRefusal

_LEVELS = {
    pb.ChangeLogLevelRequest.TRACE: logging.DEBUG,
    pb.ChangeLogLevelRequest.DEBUG: logging.DEBUG,
    pb.ChangeLogLevelRequest.INFO: logging.INFO,
    pb.ChangeLogLevelRequest.WARN: logging.WARNING,
    pb.ChangeLogLevelRequest.ERROR: logging.ERROR,
}


async def change_log_level(call: GrpcCall, request: pb.ChangeLogLevelRequest) -> pb.ChangeLogLevelResponse:
    """For the whole process, until it is started again. Raises GrpcRefusal."""
    call.client.link.rights.change_server()
    level = _LEVELS.get(request.level)
    if level is None:
        raise GrpcRefusal(pb.BAD_REQUEST, f"{request.level} is no log level")
    logging.getLogger().setLevel(level)
    name = logging.getLevelName(level)
    return pb.ChangeLogLevelResponse(remark=f"this server logs from {name} on")
