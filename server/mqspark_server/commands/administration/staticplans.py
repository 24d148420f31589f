"""Plans for static topics as files, with which a command that failed half-way can be finished.

A plan is what RocketMQ's tools write to their files, TopicRemappingDetailWrapper as JSON.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import click

from mqspark.errors import ProtocolError
from mqspark.protocol.bodies.body import decode_body, encode_body
from mqspark.protocol.bodies.topic_bodies import TopicRemappingDetailWrapper

__all__ = ["KeptPlan", "read_plan"]

MAX_PLAN_BYTES = 64 << 20


class KeptPlan:
    """The file of a plan that is being carried out: ``file``, or a temporary one in a directory of its own, which only
    this user can read."""

    def __init__(self, plan: TopicRemappingDetailWrapper, file: str | None) -> None:
        self._plan = plan
        self._directory: Path | None = None
        if file is None:
            self._directory = Path(tempfile.mkdtemp(prefix="mqspark-plan-"))
            file = str(self._directory / f"{plan.epoch}.after")
        self.path = Path(file)
        self.write()

    def write(self) -> None:
        """The plan as it is now, on the disk: a new file takes the place of the old one."""
        new = self.path.with_name(f"{self.path.name}.new")
        with open(new, "wb") as out:
            out.write(encode_body(self._plan))
            out.flush()
            os.fsync(out.fileno())
        os.replace(new, self.path)

    def remove(self) -> None:
        """The plan is carried out. The user's own file stays."""
        if self._directory is not None:
            self.path.unlink()
            self._directory.rmdir()


def read_plan(file: str, topic: str) -> TopicRemappingDetailWrapper:
    """Raises click.UsageError."""
    try:
        with open(file, "rb") as source:
            plan = decode_body(TopicRemappingDetailWrapper, source.read(MAX_PLAN_BYTES))
    except OSError as error:
        raise click.UsageError(f"cannot read {file}: {error.strerror}") from None
    except ProtocolError as error:
        raise click.UsageError(f"{file} is no plan: {error}") from None
    if plan.topic != topic or not plan.broker_config_map:
        raise click.UsageError(f"{file} is a plan for {plan.topic[:80]!r}, not for {topic}")
    return plan
