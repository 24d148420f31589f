"""``mqspark controller``: controllers."""

from __future__ import annotations

from mqspark_server.commands.loading import noun

controller = noun(
    "controller",
    "Controllers: which replica of each broker is master.",
    {"run": ("local.servers_cli:controller_run", "Run a controller until SIGTERM or SIGINT.")},
)
