"""RocketMQ's gRPC service, ``apache.rocketmq.v2.MessagingService``: what its clients call, as requests of remoting.

    grpcserver      the engine: HTTP/2, bounds
    grpcservice     which function answers which method, and what a caller gets when one fails
    grpcrouting, grpcsending, telemetry    one group of methods each
    grpcclients     the clients that are connected; grpccalls: one call; grpcmetadata: who calls
    backend         how a request reaches a broker: ``brokerbackend``, in the broker's own process; ``clusterbackend``,
                    before a cluster, for ``proxyapp``

Must not know what a broker decides. Imported from outside: ``brokerbackend``, ``grpcserver``, ``proxyapp``.
"""
