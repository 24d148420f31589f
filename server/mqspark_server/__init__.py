"""The shells that make mqspark run: settings, sockets, threads, HTTP, command line.

Everything that a broker or a name server *decides* lives in ``mqspark.broker`` and ``mqspark.namesrv``,
which know no socket and no clock. This package gives them both, and only this package wires parts together:

    settings, properties   broker.conf, TOML and --set become settings objects
    tcp                    asyncio.Protocol -> Connection -> core, one turn and one write per loop iteration
    flush                  write and fdatasync in a worker thread: group commit
    outbound, registrar    requests of a server to name servers: registration
    lifecycle              the forward-only start-up state that /health shows
    app                    composition: name server, broker, development cluster
    http, metrics          FastAPI and Prometheus beside the broker, loaded on the first HTTP connection
    cli                    ``mqspark namesrv run``, ``mqspark broker run``, ``mqspark dev``

``mqspark.testing`` imports ``app`` and ``settings``, the command line imports ``cli``. Must not know Spark.
"""
