"""``mqspark job run NAME ...`` and ``mqspark doctor spark``: the Spark side of the command line.

Spark is imported only by these commands: without the extra ``mqspark[spark]`` they report that, and the other
commands work.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Sequence

import click

from mqspark.errors import ConfigError

__all__ = ["doctor_spark", "job"]


@click.group()
def job() -> None:
    """Spark jobs that keep a store: rebuild-index, archive, compact, redeliver."""


@job.command(
    "run", context_settings={"ignore_unknown_options": True, "help_option_names": []}, add_help_option=False
)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def job_run(arguments: Sequence[str]) -> None:
    """Run the job NAME; `mqspark job run NAME --help` shows its options."""
    _need_spark()
    from mqspark_jobs.commandline import main

    sys.exit(main(arguments))


@click.command("spark")
@click.option("--nameserver", metavar="HOST:PORT", help="Also ask this name server.")
def doctor_spark(nameserver: str | None) -> None:
    """Say what keeps format("pymq") from working here. Exit code 1 when something does."""
    _need_spark()
    from pyspark_pymq.doctor import report

    sys.exit(report(nameserver))


def _need_spark() -> None:
    if importlib.util.find_spec("pyspark") is None:
        raise ConfigError("this command needs pyspark: pip install 'mqspark[spark]'", key="pyspark")
