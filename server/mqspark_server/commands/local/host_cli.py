"""``mqspark host``: several brokers on this host."""

from __future__ import annotations

from mqspark_server.commands.clustercommand import noun

host = noun(
    "host",
    "Several brokers on this host, as processes of one command.",
    {"run": ("local.servers_cli:host_run", "Run several brokers until SIGTERM or SIGINT.")},
)
