"""``mqspark produce``: sends lines, files or JSON lines as messages."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Annotated, Any, BinaryIO

import click

from mqspark.errors import MQError
from mqspark.message import Message, MessageQueue
from mqspark_server.commands.administration.config_cli import assignments
from mqspark_server.commands.administration.group_cli import chosen_queues
from mqspark_server.commands.clustercommand import ClusterCommand, ClusterShell
from mqspark_server.commands.completing import TopicName
from mqspark_server.commands.messages.rows import parse_row
from mqspark_server.commands.output import counted
from mqspark_server.commands.parameters import Argument, Option
from mqspark_server.commands.refusals import CommandFailed, describe
from mqspark_server.commands.times import DURATION, FORMS, TIME

if TYPE_CHECKING:
    from mqspark.client.delivery.results import SendResult

GROUP = "mqspark_cli"
_BLOCK_BYTES = 1 << 16
_OF_LINES = (
    "key_delimiter",
    "keys",
    "tag",
    "properties",
    "delay_ms",
    "delay_level",
    "deliver_at_ms",
    "priority",
    "whole",
)
"""Parameters that describe one message."""
_MAX_BODY_BYTES = 64 << 20
"""Limit of a line or file; brokers accept 4 MiB."""


@click.command(short_help="Send lines, files or JSON lines.", cls=ClusterCommand)
async def produce(
    shell: ClusterShell,
    *,
    topic: TopicName,
    files: Annotated[
        tuple[str, ...], click.Path(exists=True, dir_okay=False, allow_dash=True), Argument(required=False)
    ],
    body: Annotated[str | None, Option("Send this text instead of files.", "-b")],
    jsonl: Annotated[bool, Option("Every line is a JSON object: body, keys, tags, properties, delay.")],
    whole: Annotated[bool, Option("Every file is one message.")],
    delimiter: Annotated[str, Option("The end of a message.", "-D")] = "\\n",
    key_delimiter: Annotated[
        str | None,
        Option("The text before it in a line is the message's key. Escapes as \\t are known.", "-K"),
    ],
    keys: Annotated[tuple[str, ...], Option("A key of every message. Repeatable.", "-k", "--key")],
    tag: Annotated[str | None, Option("The tag of every message.", "-t")],
    properties: Annotated[tuple[str, ...], Option("Repeatable.", "-P", "--property", metavar="KEY=VALUE")],
    delay_ms: Annotated[int | None, DURATION, Option("Deliver after this time: 30s, 15m.", "--delay")],
    delay_level: Annotated[
        int | None, click.IntRange(1, 100), Option("Deliver after this delay level of the broker.")
    ],
    deliver_at_ms: Annotated[int | None, TIME, Option(f"Deliver at this time: {FORMS}", "--deliver-at")],
    priority: Annotated[int | None, click.IntRange(min=0), Option("The priority of every message.")],
    queue: Annotated[str | None, Option("To this queue.", metavar="BROKER:ID")],
    ordered: Annotated[bool, Option("Send one after the other, so that each queue keeps the order.")],
    rate: Annotated[float | None, click.FloatRange(min=0.001), Option("Messages per second.")],
    count: Annotated[
        int | None,
        click.IntRange(min=1),
        Option("Maximum number of messages; with --body: repetitions.", "-c"),
    ],
    trace: Annotated[bool, Option("Record each send for mqspark message trace.")],
) -> None:
    """Send each line of FILES, or of standard input, to TOPIC.

    \b
    echo hello | mqspark produce Orders -k order-1 -t paid
    mqspark produce Orders --jsonl < orders.jsonl
    mqspark consume A -o jsonl | mqspark produce B --jsonl
    """
    if body is not None and files:
        raise click.UsageError("give --body or files")
    if jsonl:
        _refuse_beside_jsonl()
    if (wrong := next((key for key in keys if not key or " " in key), None)) is not None:
        raise click.UsageError(
            f"--key {wrong[:80]!r} is not one key: a space separates several, repeat --key for each"
        )
    between = None if key_delimiter is None else _ending(key_delimiter, "--key-delimiter is empty")
    common: dict[str, Any] = {
        "tags": tag,
        "properties": assignments(properties),
        "delay_ms": delay_ms,
        "delay_level": delay_level,
        "deliver_at_ms": deliver_at_ms,
        "priority": priority,
    }

    def message_of(content: bytes, number: int) -> Message:
        if jsonl:
            return parse_row(content, topic, number)
        given = list(keys)
        if between is not None:
            head, separator, rest = content.partition(between)
            if separator:
                given += [_one_key(head, number)] if head else []
                content = rest
        return Message.of(topic, content, keys=given or None, **common)

    target = (await chosen_queues(shell, topic, (queue,)))[0] if queue is not None else None
    if body is not None:
        contents = _repeated(body.encode(), count or 1)
    else:
        end = _ending(delimiter, "--delimiter is empty; --whole sends a file as one message")
        contents = _contents(files, end, whole)
    sending = _Producing(shell, target, ordered=ordered, rate=rate)
    with sending.listing:
        await sending.run(contents, message_of, count, trace=trace)


class _Producing:
    def __init__(
        self, shell: ClusterShell, queue: MessageQueue | None, *, ordered: bool, rate: float | None
    ) -> None:
        self._shell = shell
        self._queue = queue
        self._ordered = ordered
        self._rate = rate
        self._sent = 0
        self._failures: list[BaseException] = []
        self.listing = shell.output.listing()

    async def run(
        self, contents: AsyncIterator[bytes], message_of: Any, count: int | None, *, trace: bool
    ) -> None:
        from mqspark.client.producer.producer import Producer

        shell, loop = self._shell, asyncio.get_running_loop()
        pending: set[asyncio.Future[SendResult]] = set()
        read = 0
        refused: Exception | None = None
        began = loop.time()
        async with (
            self._counting(),
            Producer(
                shell.namesrv,
                group=GROUP,
                send_timeout_ms=shell.timeout_ms,
                options=shell.options,
                trace=trace,
            ) as producer,
        ):
            try:
                async for content in contents:
                    message = message_of(content, read + 1)
                    if self._rate is not None:
                        await asyncio.sleep(max(0.0, began + read / self._rate - loop.time()))
                    future = await producer.send_async(message, queue=self._queue)
                    read += 1
                    pending.add(future)
                    future.add_done_callback(lambda done: self._collect_results(done, pending))
                    if self._ordered:
                        await asyncio.wait((future,))
                    if self._failures or read == count:
                        break
            except (MQError, click.UsageError) as error:
                refused = error
            if pending:
                await asyncio.wait(pending)
        if shell.output.is_table:
            click.echo(f"sent {counted(self._sent, 'message')}", err=True)
        if refused is not None:
            if isinstance(refused, MQError) and not self._sent and not self._failures:
                raise refused
            if isinstance(refused, click.UsageError):
                raise refused
            raise CommandFailed(f"message {read + 1} was refused: {describe(refused)}")
        if self._failures:
            first = self._failures[0]
            if not self._sent and isinstance(first, MQError):
                raise first
            text = describe(first) if isinstance(first, Exception) else str(first)
            raise CommandFailed(f"{counted(len(self._failures), 'message')} failed: {text}")

    @contextlib.asynccontextmanager
    async def _counting(self) -> AsyncIterator[None]:
        """Say how many were sent when Ctrl-C ends the command."""
        try:
            yield
        except asyncio.CancelledError:
            click.echo(f"interrupted: sent {counted(self._sent, 'message')}", err=True)
            raise

    def _collect_results(
        self, done: asyncio.Future[SendResult], pending: set[asyncio.Future[SendResult]]
    ) -> None:
        pending.discard(done)
        if done.cancelled():
            return
        error = done.exception()
        if error is not None:
            self._failures.append(error)
            return
        self._sent += 1
        if not self._shell.output.is_table:
            result = done.result()
            self.listing.add(
                {
                    "message_id": result.message_id,
                    "offset_id": result.offset_message_id,
                    "broker": result.queue.broker_name,
                    "queue": result.queue.queue_id,
                    "offset": int(result.queue_offset),
                    "status": result.status.name,
                    "recall_handle": result.recall_handle,
                }
            )


def _one_key(head: bytes, number: int) -> str:
    """Raises click.UsageError for what would be several keys, or other bytes in the message."""
    try:
        key = head.decode()
    except UnicodeDecodeError:
        raise click.UsageError(f"line {number}: the key is not UTF-8: {head[:80]!r}") from None
    if " " in key:
        raise click.UsageError(f"line {number}: {key[:80]!r} would be several keys, which a space separates")
    return key


def _refuse_beside_jsonl() -> None:
    """Raises click.UsageError for options whose values each line of JSON has itself."""
    context = click.get_current_context()
    for option in _OF_LINES:
        if context.get_parameter_source(option) is not click.core.ParameterSource.DEFAULT:
            name = next(each.opts[-1] for each in context.command.params if each.name == option)
            raise click.UsageError(f"--jsonl: each line says this of its message itself, give no {name}")


def _ending(text: str, if_empty: str) -> bytes:
    """A delimiter, with escapes decoded. Raises click.UsageError."""
    try:
        found = text.encode("latin-1", "backslashreplace").decode("unicode_escape").encode()
    except UnicodeDecodeError:
        raise click.UsageError(f"the delimiter {text[:20]!r} has an invalid escape") from None
    if not found:
        raise click.UsageError(if_empty)
    return found


async def _repeated(body: bytes, count: int) -> AsyncIterator[bytes]:
    for _ in range(count):
        yield body


async def _contents(files: tuple[str, ...], ending: bytes, whole: bool) -> AsyncIterator[bytes]:
    """The messages of the files, read in another thread, so that a slow pipe does not delay the answers of brokers."""
    for name in files or ("-",):
        file: BinaryIO = sys.stdin.buffer if name == "-" else await asyncio.to_thread(open, name, "rb")
        try:
            async for content in _parts(file, None if whole else ending):
                yield content
        finally:
            if name != "-":
                file.close()


async def _parts(file: BinaryIO, ending: bytes | None) -> AsyncIterator[bytes]:
    rest = b""
    read = getattr(file, "read1", file.read)
    while block := await asyncio.to_thread(read, _BLOCK_BYTES):
        rest += block
        if ending is not None:
            *parts, rest = rest.split(ending)
            for part in parts:
                if part:
                    yield part
        if len(rest) > _MAX_BODY_BYTES:
            raise click.UsageError(
                f"a message has more than {_MAX_BODY_BYTES} bytes; --delimiter sets the end of a message"
            )
    if rest:
        yield rest
