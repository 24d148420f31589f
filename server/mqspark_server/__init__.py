"""The shells that make mqspark run: settings, sockets, threads, HTTP, command line.

Everything that a broker or a name server *decides* lives in ``mqspark.broker`` and ``mqspark.namesrv``,
which know no socket and no clock. This package gives them both, and only this package wires parts together:

    settings/                broker.conf, TOML and --set become settings objects
    net/                     sockets around a core: one turn and one write per loop iteration; slaves; name servers
    web/                     FastAPI and Prometheus beside the broker, loaded on the first HTTP connection
    process/                 the forward-only start-up state that /health shows, group commit in a thread, stalls
        peers/                   requests to other servers: registration, routes, a slave's master
    namesrv_app, broker_app  composition: a process each
    hosting/                 several brokers on a host: child processes and their supervisor
    dev_cluster              both in one process: ``mqspark dev``, ``mqspark.testing``
    cli, commands/           ``mqspark``: the command line, each command imported when it is called

``mqspark.testing`` imports ``broker_app``, ``dev_cluster`` and ``settings``, the command line imports ``cli``. Must not
know Spark.
"""
