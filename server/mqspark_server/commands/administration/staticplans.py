"""Plans for static topics as files, from which a command that failed half-way can be completed.

The format is that of RocketMQ's tools: TopicRemappingDetailWrapper as JSON.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import click

from mqspark.errors import ProtocolError
from mqspark.protocol.bodies.body import decode_body, encode_body
from mqspark.protocol.bodies.topic_bodies import TopicRemappingDetailWrapper

MAX_PLAN_BYTES = 64 << 20


class KeptPlan:
    """The file of a plan that is being executed: ``file``, or a temporary file in a directory of its own that only this
    user can read."""

    def __init__(self, plan: TopicRemappingDetailWrapper, file: str | None) -> None:
        self._plan = plan
        self._directory: Path | None = None
        if file is None:
            self._directory = Path(tempfile.mkdtemp(prefix="mqspark-plan-"))
            file = str(self._directory / f"{plan.epoch}.after")
        self.path = Path(file)
        self.write()

    def write(self) -> None:
        """Write the current plan to disk; a new file replaces the old one."""
        new = self.path.with_name(f"{self.path.name}.new")
        with open(new, "wb") as out:
            out.write(encode_body(self._plan))
            out.flush()
            os.fsync(out.fileno())
        os.replace(new, self.path)

    def remove(self) -> None:
        """The plan is complete: remove its file. The user's own file stays."""
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
        raise click.UsageError(f"{file} is not a plan: {error}") from None
    if plan.topic != topic or not plan.broker_config_map:
        raise click.UsageError(f"{file} is a plan for {plan.topic[:80]!r}, not for {topic}")
    return plan
