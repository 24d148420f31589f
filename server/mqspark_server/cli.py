"""``mqspark``: the command line.

    mqspark <noun> <verb> ...            cluster, broker, topic, group, message and so on: mqspark -h
    mqspark namesrv run, broker run, dev servers
    mqspark store, job                   store directories and Spark jobs
    mqspark mqadmin VERB ...             the spelling of RocketMQ's tools

Every command is imported when it is called. Exit codes: ``mqspark_server.commands.refusals``.
"""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Sequence
from typing import Any

import click

from mqspark.base.logs import printable
from mqspark.errors import MQError
from mqspark_server.commands.lazycommands import HELP, LazyCommands
from mqspark_server.commands.refusals import FAILED, INTERRUPTED, MAX_TEXT, WRONG, describe, exit_code_of

_NOUNS = {
    "cluster": (
        "administration.cluster_cli:cluster",
        "Clusters: brokers, versions, rates.",
    ),
    "broker": (
        "administration.broker_cli:broker",
        "Brokers: run, list, describe, drain, clean.",
    ),
    "namesrv": (
        "administration.namesrv_cli:namesrv",
        "Name servers: run, list, settings.",
    ),
    "controller": (
        "administration.controller_cli:controller",
        "Controllers: run, list; replicas and their master.",
    ),
    "topic": (
        "administration.topic_cli:topic",
        "Topics: list, create, describe, update, delete, stats.",
    ),
    "group": (
        "administration.group_cli:group",
        "Consumer groups: list, lag, reset, members, mode.",
    ),
    "schema": (
        "administration.schema_cli:schema",
        "Schemas of topics: list, describe, register, check, diff.",
    ),
    "config": (
        "administration.config_cli:config",
        "Settings of running brokers: get, set, diff; of a file: check.",
    ),
    "produce": ("messages.produce_cli:produce", "Send lines, files or JSON lines."),
    "consume": ("messages.consume_cli:consume", "Print the messages of a topic."),
    "message": ("messages.message_cli:message", "Find messages: by key, id, offset or time, and trace them."),
    "dlq": ("messages.dlq_cli:dlq", "Dead letters: list, show, resend."),
    "bench": ("messages.bench_cli:bench", "Measure a cluster: rates and percentiles."),
    "context": ("local.context_cli:context", "Named clusters: add, list, use, show, remove."),
    "completion": (
        "local.completion_cli:completion",
        "Completion for bash, zsh and fish.",
    ),
    "console": (
        "local.servers_cli:console",
        "Serve pages about a cluster for a browser, on loopback.",
    ),
    "host": (
        "local.host_cli:host",
        "Several brokers on this host: run.",
    ),
    "proxy": (
        "local.servers_cli:proxy",
        "Serve RocketMQ's gRPC clients before a cluster: run.",
    ),
    "dev": (
        "local.servers_cli:dev",
        "Run a name server and a broker in one process, for development.",
    ),
    "store": (
        "local.store_cli:store",
        "Store directories: check, repair, rebuild, dump, statistics.",
    ),
    "user": ("local.user_cli:user", "Users and their rules: list, add, password, remove, allow, deny."),
    "job": ("local.job_cli:job", "Spark jobs that maintain a store: run, serve, list, history."),
    "table": ("local.table_cli:table", "Delta tables that follow topics: create, list, run, verify."),
    "doctor": ("local.doctor_cli:doctor", "Find problems between this machine and a cluster, or Spark."),
    "top": ("administration.top_cli:top", "Show current rates and lag of a cluster."),
    "mqadmin": ("administration.mqadmin_cli:mqadmin", "The same commands, spelled as in RocketMQ's mqadmin."),
}


class _Commands(LazyCommands):
    def invoke(self, ctx: click.Context) -> Any:
        try:
            found = super().invoke(ctx)
            sys.stdout.flush()
        except BrokenPipeError:
            # The reader has closed the pipe (as head does). The interpreter must not flush into it again.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            ctx.exit(0)
        return found


@click.group(cls=_Commands, lazy=_NOUNS, context_settings=HELP)
@click.version_option(package_name="mqspark")
def cli() -> None:
    """RocketMQ's architecture in Python, native to Spark.

    A command finds its cluster by --nameserver, --context, NAMESRV_ADDR or the current context (mqspark context),
    in this order. Commands work on RocketMQ's clusters, too.
    """


def main(arguments: Sequence[str] | None = None) -> None:
    """The console script. Errors that a user can fix are one line on standard error."""
    # numpy's linear algebra is not used here, and each of its threads would keep memory.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    given = None if arguments is None else list(arguments)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(
            errors="backslashreplace"
        )  # as standard error: a terminal may lack a character
    try:
        code = cli.main(args=given, prog_name="mqspark", standalone_mode=False)
    except click.UsageError as error:
        if type(error) is click.UsageError:  # one of ours, which may quote a file of somebody else
            error = click.UsageError(printable(error.message, MAX_TEXT), error.ctx)
        error.show()
        sys.exit(error.exit_code)
    except click.Abort as error:
        if isinstance(error.__cause__, KeyboardInterrupt):
            sys.exit(INTERRUPTED)
        _exit_with("cancelled: nothing was changed", FAILED)
    except (click.ClickException, MQError, OSError) as error:
        _exit_with(describe(error), exit_code_of(error))
    except UnicodeEncodeError as error:
        # The interpreter keeps the bytes of an argument that is not UTF-8 as halves of characters.
        _exit_with(f"{error.object!a:.200} is not UTF-8 text", WRONG)
    sys.exit(code if isinstance(code, int) else 0)


def _exit_with(message: str, code: int) -> None:
    click.echo(f"mqspark: error: {message}", err=True)
    sys.exit(code)


if __name__ == "__main__":
    main()
