"""The settings file of the job server: the jobs, their options and their schedules.

The top level has the settings of the server, ``[jobs.NAME]`` those of one job, and ``[jobs.NAME.options]`` the options
of the job's own command line: a list repeats an option, ``true`` is an option without a value.
"""

from __future__ import annotations

import dataclasses
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, tzinfo
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from mqspark.base.config import (
    check_settings,
    did_you_mean,
    known_keys,
    parse_settings,
    rocketmq_key,
    setting,
)
from mqspark.base.textfile import read_text
from mqspark.errors import ConfigError
from mqspark_server.scheduler.schedule import check_expression
from mqspark_server.settings.serverconfig import is_loopback

MAX_JOBS = 1_000
MAX_JOBS_FILE_BYTES = 1 << 20
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")
_OPTION = re.compile(r"[a-z][a-z0-9-]{0,63}")
_ALIASES = {"@hourly", "@daily", "@midnight", "@weekly", "@monthly", "@yearly", "@annually"}


@dataclass(slots=True)
class JobServerConfig:
    """Settings of the server itself."""

    state_directory: str = "~/mqspark-jobs"
    tables_directory: str = "~/mqspark-tables"
    """It has the definitions of live tables, which are shown."""
    http_enable: bool = True
    http_bind_address: str = "127.0.0.1"
    http_port: int = setting(8687, least=0, most=65535)
    http_allowed_hosts: str = ""
    http_max_connections: int = setting(64, least=1)
    allow_anonymous: bool = False
    max_running: int = setting(1, least=1)
    history_max_bytes: int = setting(4 << 20, unit="bytes", least=1)
    log_max_bytes: int = setting(8 << 20, unit="bytes", least=1)
    stop_timeout_seconds: int = setting(20, unit="s", least=1)
    log_level: str = "INFO"
    log_format: str = "text"

    def __post_init__(self) -> None:
        check_settings(self)
        if self.log_format not in ("text", "json"):
            raise ConfigError(f"setting logFormat={self.log_format!r} is not text or json", key="logFormat")
        if self.http_enable and not is_loopback(self.http_bind_address) and not self.allow_anonymous:
            raise ConfigError(
                f"anyone who reaches {self.http_bind_address}:{self.http_port} can read names and results of jobs,"
                " and drop live tables of clusters without users:"
                " set httpBindAddress=127.0.0.1, or consent with allowAnonymous=true",
                key="httpBindAddress",
            )

    @property
    def state_path(self) -> Path:
        return Path(self.state_directory).expanduser()


@dataclass(slots=True)
class ScheduledJob:
    """One job of the file. ``schedule`` is a cron expression of five fields in ``timezone``."""

    run: str = ""
    schedule: str = ""
    timezone: str = "UTC"
    enabled: bool = True
    catch_up: bool = True
    """Whether scheduled times missed while no server ran are made up for by one run."""
    retries: int = setting(3, least=0, most=100)
    retry_delay_seconds: int = setting(60, unit="s", least=1, most=86_400)
    """Pause before the first retry; it doubles with each further retry."""
    timeout_seconds: int = setting(6 * 3600, unit="s", least=1, most=30 * 86_400)
    name: str = field(default="", metadata={"key": "[name]"})
    arguments: tuple[str, ...] = field(default=(), metadata={"key": "[arguments]"})
    """The options as words of a command line."""

    @property
    def zone(self) -> tzinfo:
        return UTC if self.timezone == "UTC" else ZoneInfo(self.timezone)


@dataclass(frozen=True, slots=True)
class JobsFile:
    server: JobServerConfig
    jobs: Mapping[str, ScheduledJob]


def read_jobs_file(path: Path) -> JobsFile:
    """Raises ConfigError, which names the job."""
    text = read_text(path, MAX_JOBS_FILE_BYTES)
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{path} is not TOML: {error}") from None
    return parse_jobs(document)


def parse_jobs(document: Mapping[str, Any]) -> JobsFile:
    """Raises ConfigError."""
    values = dict(document)
    tables = values.pop("jobs", {})
    if not isinstance(tables, dict) or not all(isinstance(table, dict) for table in tables.values()):
        raise ConfigError.of("jobs", "each job is a table, [jobs.NAME]")
    if len(tables) > MAX_JOBS:
        raise ConfigError.of("jobs", f"{len(tables)} jobs; {MAX_JOBS} at most")
    server, unknown = parse_settings(JobServerConfig, values)
    _refuse_unknown("", unknown, JobServerConfig)
    return JobsFile(server, {name: _job(name, table) for name, table in tables.items()})


def _job(name: str, table: Mapping[str, Any]) -> ScheduledJob:
    if not _NAME.fullmatch(name):
        raise ConfigError.of(
            "jobs", f"{name[:80]!r} is not a valid name: letters, digits, - and _, 64 at most"
        )
    values = dict(table)
    options = values.pop("options", {})
    try:
        job, unknown = parse_settings(ScheduledJob, values)
        _refuse_unknown(f"jobs.{name}.", unknown, ScheduledJob)
        _check(job)
        arguments = _words(options)
        _check_arguments(job.run, arguments)
    except ConfigError as error:
        text = str(error)
        raise ConfigError(
            text if text.startswith(f"jobs.{name}.") else f"jobs.{name}: {text}", key=error.key
        ) from None
    return dataclasses.replace(job, name=name, arguments=arguments)


def _check(job: ScheduledJob) -> None:
    for key in ("run", "schedule"):
        if not getattr(job, key):
            raise ConfigError(f"{key} is missing", key=key)
    check_settings(job)
    try:
        zone = job.zone
    except (ZoneInfoNotFoundError, ValueError, OSError):
        raise ConfigError.of(
            "timezone", f"{job.timezone[:80]!r} is not a time zone such as Europe/Berlin"
        ) from None
    if job.schedule not in _ALIASES and len(job.schedule.split()) != 5:
        raise ConfigError.of(
            "schedule",
            f"{job.schedule[:80]!r} is not a cron expression of five fields"
            " (minute hour day month weekday), nor one of " + ", ".join(sorted(_ALIASES)),
        )
    check_expression(job.schedule, zone)


def _words(options: Any) -> tuple[str, ...]:
    if not isinstance(options, dict):
        raise ConfigError.of("options", "must be a table with one key per option of the job")
    words = []
    for name, value in options.items():
        option = name.replace("_", "-")
        if not _OPTION.fullmatch(option):
            raise ConfigError.of("options", f"{name[:80]!r} is not the name of an option")
        for each in value if isinstance(value, list) else [value]:
            if each is False:
                continue
            if each is True:
                words.append(f"--{option}")
            elif isinstance(each, str | int | float):
                words.append(f"--{option}={each}")
            else:
                raise ConfigError.of(
                    "options", f"{name}: must be a text, a number, true or false, or a list of these"
                )
    return tuple(words)


def _check_arguments(run: str, arguments: tuple[str, ...]) -> None:
    from mqspark_jobs.commandline import JOBS, check_arguments

    if run not in JOBS:
        advice = did_you_mean(run, JOBS) or f"; there are {', '.join(JOBS)}"
        raise ConfigError.of("run", f"there is no job {run[:80]!r}{advice}")
    check_arguments([run, *arguments])


def _refuse_unknown(where: str, unknown: Mapping[str, Any], kind: type[Any]) -> None:
    own = ("name", "arguments", "[name]", "[arguments]")
    for key in unknown:
        known = [rocketmq_key(each) for name, each in known_keys(kind).items() if name not in own]
        raise ConfigError(f"{where}{key[:80]}: there is no such setting{did_you_mean(key, known)}", key=key)
