"""The settings that a process shows beside those of its core, so that it shows all that RocketMQ 5.5.1 shows.

A key without an effect here is shown with RocketMQ's default, unless that would be untrue: unavailable features are
shown as off, and thread pools with one thread. A refused key is shown with the value that is accepted. Secrets are not
shown.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path

from mqspark.base.config import to_properties
from mqspark_server.settings.rocketmq_keys import SHOWN
from mqspark_server.settings.serverconfig import ServerConfig

_OF_NAME_SERVERS_ONLY = [
    "clientRequestThreadPoolNums",
    "clientRequestThreadPoolQueueCapacity",
    "clusterTest",
    "configStorePath",
    "defaultThreadPoolNums",
    "defaultThreadPoolQueueCapacity",
    "needWaitForService",
    "productEnvName",
    "unRegisterBrokerQueueCapacity",
    "waitSecondsForService",
]
_OF_BOTH = [
    "enableShutdownGracefully",
    "rocketmqHome",
    "serverAsyncSemaphoreValue",
    "serverCallbackExecutorThreads",
    "serverNettyWorkerGroupEnable",
    "serverOnewaySemaphoreValue",
    "serverPooledByteBufAllocatorEnable",
    "serverSelectorThreads",
    "serverSocketRcvBufSize",
    "serverSocketSndBufSize",
    "serverWorkerThreads",
    "shutdownWaitTimeSeconds",
    "useEpollNativeSelector",
    "writeBufferLowWaterMark",
]
_OF_SHELLS = (
    "bindAddress",
    "listenPort",
    "serverChannelMaxIdleTimeSeconds",
    "serverSocketBacklog",
    "writeBufferHighWaterMark",
)


def more_of_broker(server: ServerConfig, http_address: tuple[str, int] | None) -> dict[str, str]:
    """``http_address``: where the metrics are."""
    shown = {key: value for key, value in SHOWN.items() if key not in _OF_NAME_SERVERS_ONLY}
    shown |= _shell_values(server)
    shown["useTLS"] = str(server.use_tls).lower()
    if http_address is not None:
        shown["metricsExporterType"] = "PROM"
        shown["metricsPromExporterHost"], shown["metricsPromExporterPort"] = map(str, http_address)
    return shown


def more_of_namesrv(server: ServerConfig, port: int, file: Path | None) -> dict[str, str]:
    """``port``: the one that is bound. ``file``: where the settings come from."""
    shown = {key: SHOWN[key] for key in (*_OF_NAME_SERVERS_ONLY, *_OF_BOTH)}
    shown |= _shell_values(dataclasses.replace(server, listen_port=port))
    shown["configStorePath"] = "" if file is None else str(file)
    return shown


def _shell_values(server: ServerConfig) -> dict[str, str]:
    values = to_properties(server)
    return {key: values[key] for key in _OF_SHELLS}
