"""Plans for static topics, and their files, from which a command that failed half-way can be completed.

The format is that of RocketMQ's tools: TopicRemappingDetailWrapper as JSON.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Self

import click

from mqspark.base.textfile import read_text
from mqspark.base.wholefile import replace_file
from mqspark.client.staticplan import StaticTopicProblem
from mqspark.client.statictopics import StaticTopics
from mqspark.errors import MQError, ProtocolError
from mqspark.protocol.bodies.body import decode_body, encode_body
from mqspark.protocol.bodies.topic_bodies import TopicConfigAndQueueMapping, TopicRemappingDetailWrapper
from mqspark_server.commands.clustercommand import ClusterShell
from mqspark_server.commands.refusals import CommandFailed, describe

MAX_PLAN_BYTES = 64 << 20


class KeptPlan:
    """The file of a plan while it is executed: ``file``, or a temporary file in a directory of its own that only this
    user can read, and that stays if the plan fails. The user's own file always stays."""

    def __init__(self, plan: TopicRemappingDetailWrapper, file: str | None) -> None:
        self._plan = plan
        self._directory: Path | None = None
        if file is None:
            self._directory = Path(tempfile.mkdtemp(prefix="mqspark-plan-"))
            file = str(self._directory / f"{plan.epoch}.after")
        self.path = Path(file)
        self.write()

    def write(self) -> None:
        """Write the current plan to disk, durably; a new file replaces the old one."""
        replace_file(self.path, encode_body(self._plan))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, _: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, MQError | OSError):
            raise CommandFailed(
                f"{describe(error)}; the brokers may disagree about {self._plan.topic} now: complete it with --plan"
                f" {self.path}"
            ) from error
        if error is None and self._directory is not None:
            self.path.unlink()
            self._directory.rmdir()


def read_plan(file: str, topic: str) -> TopicRemappingDetailWrapper:
    """Raises ConfigError, click.UsageError."""
    text = read_text(file, MAX_PLAN_BYTES)
    try:
        plan = decode_body(TopicRemappingDetailWrapper, text.encode())
    except ProtocolError as error:
        raise click.UsageError(f"{file} is not a plan: {error}") from None
    if plan.topic != topic or not plan.broker_config_map:
        raise click.UsageError(f"{file} is a plan for {plan.topic[:80]!r}, not for {topic}")
    return plan


async def carry_out(
    shell: ClusterShell, topic: str, file: str | None, brokers: Iterable[str], queues: int | None = None
) -> dict[str, TopicConfigAndQueueMapping]:
    """The plan of a file, or a new one: to have so many queues, or to move them."""
    statics = StaticTopics(shell.admin)
    if file is not None:
        plan = read_plan(file, topic)
    else:
        await _finish(statics, topic)
        masters = await shell.masters(brokers)
        if queues is None:
            plan = await statics.plan_move(topic, masters)
        else:
            plan = await statics.plan_growth(topic, queues, masters)
    with KeptPlan(plan, file) as kept:
        await statics.carry_out(plan, kept.write)
    return plan.broker_config_map


async def _finish(statics: StaticTopics, topic: str) -> None:
    """Complete an earlier command, as far as the brokers agree about it."""
    try:
        rest = await statics.plan_rest(topic)
    except StaticTopicProblem as error:
        raise CommandFailed(
            f"{describe(error)}: the brokers disagree about {topic}, as after two concurrent commands;"
            f" `mqspark topic repair-static {topic}` repairs it"
        ) from error
    if rest is not None:
        with KeptPlan(rest, None) as kept:
            await statics.carry_out(rest, kept.write)
