"""RocketMQ's gRPC service, ``apache.rocketmq.v2.MessagingService``: what its clients call, as requests of remoting.

    grpcdoor                  a broker's port, before the rest is loaded
    grpcserver                the port, by ``net/grpc``, and its bounds
    grpcservice               which function answers which method, and what a caller gets when one fails
    methods/                  one group of methods each
    clients/                  who calls, what they hold, one call
    content/                  names, messages and receipt handles, as clients write them
    backend, backends/        how a request reaches a broker: in its own process, or before a cluster, for ``proxyapp``

Must not know what a broker decides.
"""
