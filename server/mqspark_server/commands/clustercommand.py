"""What all commands on a cluster share: options, admin client, output, confirmation."""

from __future__ import annotations

import asyncio
import contextlib
import fnmatch
import functools
import inspect
import os
import signal
import sys
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import click

from mqspark.errors import BrokerError, ConfigError, NoRoute
from mqspark.message import MASTER_ID
from mqspark.protocol.codes import ResponseCode
from mqspark_server.commands.lazycommands import HELP, LazyCommands
from mqspark_server.commands.output import Column, Output, OutputFormat, remark
from mqspark_server.commands.parameters import DeclaredCommand, Option, declared_by
from mqspark_server.commands.refusals import CommandFailed, Missing, MissingGroup, MissingTopic

if TYPE_CHECKING:
    from mqspark.client.admin import AdminClient
    from mqspark.client.producer.producer import Producer
    from mqspark.client.remoting.client_options import ClientOptions
    from mqspark.protocol.bodies.topic_bodies import SubscriptionGroupConfig
    from mqspark_server.actions.operating import Act
    from mqspark_server.commands.contexts import ClusterContext
    from mqspark_server.shown.nouns import Setting

DEFAULT_NAMESRV = "127.0.0.1:9876"
DELETED_AT_ONCE = 32


def setting_options(settings: Sequence[Setting]) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """The settings as options of a command, whose values ``given_settings`` reads."""

    def declared(function: Callable[..., Any]) -> Callable[..., Any]:
        for setting in reversed(settings):
            kind: click.Choice[str] | click.IntRange | None = None
            if setting.words is not None:
                kind = click.Choice(setting.words)
            elif setting.span is not None:
                kind = click.IntRange(*setting.span)
            option = click.option(setting.option, setting.field, type=kind, default=None, help=setting.text)
            function = option(function)
        return function

    return declared


def given_settings(settings: Sequence[Setting], values: Mapping[str, Any]) -> dict[str, Any]:
    """Those that were given, by their fields."""
    return {
        each.field: values[each.field] if each.words is None else each.words[values[each.field]]
        for each in settings
        if values[each.field] is not None
    }


def _complete_contexts(ctx: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:
    from mqspark.errors import ConfigError
    from mqspark_server.commands.contexts import load_contexts

    try:
        names = load_contexts().contexts
    except ConfigError:
        return []  # a completion cannot show an error
    return [name for name in sorted(names) if name.startswith(incomplete)]


class Connecting:
    """How a command reaches a cluster."""

    nameserver: Annotated[
        str | None,
        Option("Name servers, separated by semicolons.", "-n", "--nameserver", metavar="HOST:PORT"),
    ]
    context_name: Annotated[
        str | None,
        Option(
            "A cluster saved with mqspark context.",
            "--context",
            metavar="NAME",
            shell_complete=_complete_contexts,
        ),
    ]
    credentials_file: Annotated[
        str | None,
        Option(
            "A file with accessKey: and secretKey:, like RocketMQ's tools.yml.",
            "--credentials",
            metavar="FILE",
        ),
    ]
    cluster: Annotated[
        str | None, Option("Only this cluster, if the name servers know several.", metavar="NAME")
    ]
    tls: Annotated[bool | None, Option("Use TLS.  [default: as in the context]", "--tls/--no-tls")]
    tls_ca: Annotated[str | None, Option("Trusted authorities, PEM.", metavar="FILE")]
    tls_cert: Annotated[str | None, Option("Client certificate, PEM.", metavar="FILE")]
    tls_key: Annotated[str | None, Option("Its key, PEM.", metavar="FILE")]
    tls_verify: Annotated[
        bool | None, Option("Accept certificates for any host name.", "--tls-any-name", flag_value=False)
    ]
    timeout_s: Annotated[
        float, click.FloatRange(0.05, 3600), Option("Timeout of each request in seconds.", "--timeout")
    ] = 5.0


class Printing:
    """How a command prints."""

    output: OutputFormat


COMMON = (*declared_by(Printing), *declared_by(Connecting))
"""The parameters of all commands on a cluster."""


@dataclass(slots=True)
class ClusterShell:
    """Everything that a command on a cluster needs."""

    admin: AdminClient
    output: Output
    namesrv: str
    options: ClientOptions
    cluster: str | None
    timeout_ms: int

    async def known_topics(self) -> list[str]:
        """Raises Missing for an unknown --cluster."""
        if self.cluster is not None:
            await self.brokers()
        return await self.admin.topic_list(cluster=self.cluster)

    async def topic_rows(self, *, every: bool = False) -> list[dict[str, Any]]:
        """``known_topics`` with their kinds, or only normal ones."""
        from mqspark_server.survey.topicsurvey import topic_rows

        if self.cluster is not None:
            await self.brokers()
        return await topic_rows(self.admin, self.cluster, every=every)

    async def brokers(self, names: Iterable[str] = ()) -> dict[str, dict[int, str]]:
        """Broker name → id → address, of all brokers of the cluster, or only of ``names``. Raises Missing."""
        info = await self.admin.cluster_info()
        table = {
            name: dict(sorted(data.broker_addrs.items())) for name, data in info.broker_addr_table.items()
        }
        asked = list(names)
        for place, name in enumerate(asked):
            if ":" in name:  # an address
                asked[place] = name = next((each for each in table if name in table[each].values()), name)
            if name not in table:
                raise Missing("broker", name, table, f"the cluster has {', '.join(sorted(table)) or 'none'}")
        if not asked and self.cluster is not None:
            if self.cluster not in info.cluster_addr_table:
                raise Missing("cluster", self.cluster, info.cluster_addr_table)
            asked = info.cluster_addr_table[self.cluster]
        return {name: table[name] for name in sorted(asked or table) if name in table}

    async def masters(self, names: Iterable[str] = ()) -> list[str]:
        """Names of ``brokers`` that have a master. Raises Missing."""
        return [name for name, each in (await self.brokers(names)).items() if MASTER_ID in each]

    async def must_be_topics(self, *names: str) -> None:
        """Raises Missing."""
        known = await self.known_topics()
        for name in names:
            if name not in known:
                raise Missing("topic", name, known, "mqspark topic list shows all")

    async def must_be_group(self, name: str) -> SubscriptionGroupConfig:
        """Raises Missing."""
        known = await self.admin.groups([name])
        if name not in known:
            raise MissingGroup(name, await self.admin.group_names())
        return known[name]

    async def broker_address(self, broker: str) -> str:
        """The master's address of a broker name; ``host:port`` is returned unchanged. Raises Missing."""
        if ":" in broker:
            return broker
        addresses = (await self.brokers([broker]))[broker]
        return addresses[min(addresses)]

    def producer(self) -> Producer:
        from mqspark.client.producer.producer import Producer

        return Producer(
            self.namesrv, group="mqspark_resend", send_timeout_ms=self.timeout_ms, options=self.options
        )

    async def show_matching(
        self,
        columns: Sequence[Column],
        rows: Iterable[dict[str, Any]],
        pattern: str | None,
        fill: Callable[[dict[str, Any]], Awaitable[None]] | None = None,
    ) -> None:
        """Rows whose first column matches. ``fill`` adds what a table shows only if it is wide."""
        from mqspark_server.survey.surveying import each_of

        key = columns[0].key
        found = [row for row in rows if pattern is None or fnmatch.fnmatchcase(row[key], pattern)]
        if fill is not None and self.output.format != "table":
            await each_of(found, fill)
        self.output.rows(
            columns, found, empty=f"no {key}" if pattern is None else f"no {key} matches {pattern}"
        )

    async def carry_out(self, action: Act, yes: bool | None = None) -> None:
        """``yes``: whether a dangerous action is not asked for; None: it is never."""
        await self._ask_for([action], yes)
        done = await action.apply(self)
        self.output.done(done.text, done.row)

    async def carry_out_all(self, actions: Sequence[Act], yes: bool, at_once: int = 1) -> None:
        """As a list, whose rows are printed as the actions are done. ``at_once``: so many begin together, for a broker
        that saves a table once for all changes that wait. After an error no more of them begin; the first is raised,
        and others are told."""
        await self._ask_for(actions, yes)
        with self.output.listing() as listing:
            for first in range(0, len(actions), at_once):
                begun = actions[first : first + at_once]
                results = await asyncio.gather(*(each.apply(self) for each in begun), return_exceptions=True)
                failure: BaseException | None = None
                for action, done in zip(begun, results, strict=True):
                    if not isinstance(done, BaseException):
                        listing.add(done.row, done.text)
                    elif failure is None:
                        failure = done
                    else:
                        remark(f"{action.title.format(action)} {done}")
                if failure is not None:
                    raise failure

    async def carry_out_shown(
        self,
        action: Act,
        columns: Sequence[Column],
        yes: bool,
        *,
        dry_run: bool,
        empty: str = "nothing",
    ) -> None:
        """Shows what it would change, first or alone."""
        preview = await action.preview(self)
        self.output.rows(columns, preview.rows, empty=empty)
        if dry_run or not preview.rows:
            return
        confirm(preview.question, yes)
        done = await action.apply(self)
        self.output.lines([done.text])
        if done.left:
            raise CommandFailed(done.left)

    async def _ask_for(self, actions: Sequence[Act], yes: bool | None) -> None:
        previews = [] if yes is None else [await action.preview(self) for action in actions]
        if asked := [each.question for each in previews if each.is_dangerous]:
            confirm(" ".join(asked), yes=bool(yes))


def connection_of(given: dict[str, Any]) -> tuple[str, ClientOptions, str | None, int]:
    """Name servers, client options, cluster and timeout, from the command's options, the environment and the context.
    Raises ConfigError."""
    from mqspark_server.commands.contexts import ClusterContext, load_contexts

    if given.get("nameserver") == "":
        # An unset shell variable must not lead to another cluster.
        raise ConfigError("the name server is empty; give --nameserver HOST:PORT", key="nameserver")
    context = ClusterContext(DEFAULT_NAMESRV)
    name = given.get("context_name") or os.environ.get("MQSPARK_CONTEXT")
    nameserver = given.get("nameserver") or (None if name else os.environ.get("NAMESRV_ADDR"))
    if nameserver is None or name:
        contexts = load_contexts()
        if chosen := name or contexts.current:
            context = contexts.get(chosen)
    timeout_ms = int((given.get("timeout_s") or 5.0) * 1000)
    options = cluster_options(given, context, timeout_ms)
    return nameserver or context.nameserver, options, given.get("cluster") or context.cluster, timeout_ms


def cluster_options(given: dict[str, Any], context: ClusterContext, timeout_ms: int) -> ClientOptions:
    """Raises ConfigError, also for a file of credentials that cannot be used."""
    from mqspark.client.remoting.client_options import ClientOptions
    from mqspark.client.remoting.credentials import Credentials

    credentials_file = given.get("credentials_file") or context.credentials_file
    return ClientOptions(
        connect_timeout_ms=timeout_ms,
        request_timeout_ms=timeout_ms,
        credentials=Credentials.from_file(os.path.expanduser(credentials_file)) if credentials_file else None,
        tls=_tls(given, context),
    )


def _tls(given: dict[str, Any], context: ClusterContext) -> Any:
    from mqspark.client.remoting.tls import TlsSettings

    def chosen(option: str, field: str) -> Any:
        value = given.get(option)
        return getattr(context, field) if value is None else value

    files = {f"{kind}_file": chosen(f"tls_{kind}", f"tls_{kind}_file") for kind in ("ca", "cert", "key")}
    verify = chosen("tls_verify", "tls_verify_host_name") is not False
    wanted = chosen("tls", "tls")
    if wanted is None:
        wanted = True if any(files.values()) or not verify else None
    return TlsSettings(**files, verify_host_name=verify) if wanted else wanted


def clustered(function: Callable[..., Awaitable[Any]]) -> Callable[..., Any]:
    """Make a command on a cluster: ``function`` is awaited with a ClusterShell and its own options."""

    @functools.wraps(function)
    def run(**given: Any) -> None:
        common = {name: given.pop(name) for name in Connecting.__annotations__}
        output = Output(given.pop("output"))
        namesrv, options, cluster, timeout_ms = connection_of(common)

        async def work() -> None:
            from mqspark.client.admin import AdminClient

            async with AdminClient(namesrv, timeout_ms=timeout_ms, options=options) as admin:
                shell = ClusterShell(admin, output, namesrv, options, cluster, timeout_ms)
                try:
                    await function(shell, **given)
                except (NoRoute, BrokerError) as error:
                    refusal = await _with_similar_names(shell, error, given)
                    if refusal is None:
                        raise
                    raise refusal from error

        asyncio.run(work())

    return run


class ClusterCommand(DeclaredCommand):
    """A command that is async is one on a cluster."""

    def __init__(self, name: str | None, *, callback: Callable[..., Any], **more: Any) -> None:
        if inspect.iscoroutinefunction(callback):
            callback, more["params"] = clustered(callback), [*(more.get("params") or ()), *COMMON]
        super().__init__(name, callback=callback, **more)


class Nouns(LazyCommands):
    command_class = ClusterCommand


def noun(name: str, text: str, lazy: Mapping[str, tuple[str, str]] | None = None) -> LazyCommands:
    """A command group for a noun; its commands are verbs."""
    return Nouns(name, help=text, lazy=lazy, context_settings=HELP)


async def _with_similar_names(
    shell: ClusterShell, error: Exception, given: dict[str, Any]
) -> CommandFailed | None:
    """A better error for a missing topic or group, with similar names."""
    if isinstance(error, NoRoute) or (
        isinstance(error, BrokerError) and error.code == ResponseCode.TOPIC_NOT_EXIST
    ):
        topic = getattr(error, "topic", None) or given.get("topic")
        if isinstance(topic, str):
            known = await shell.known_topics()
            if topic not in known:
                return MissingTopic(topic, known)
    if isinstance(error, BrokerError) and error.code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST:
        group = given.get("group")
        if isinstance(group, str):
            return MissingGroup(group, await shell.admin.group_names())
    return None


def confirm(question: str, yes: bool) -> None:
    """Ask for confirmation of a destructive change. Raises click.Abort, or UsageError without a terminal."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise click.UsageError(f"{question} There is no terminal to ask: add --yes to confirm.")
    with interruptible():
        click.confirm(question, abort=True, err=True)


@contextlib.contextmanager
def interruptible() -> Iterator[None]:
    """Ctrl-C ends a question: the handler of an event loop would only cancel the task that waits for the answer."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
