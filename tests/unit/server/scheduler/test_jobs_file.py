"""The settings file of the job server."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from mqspark.errors import ConfigError
from mqspark_server.scheduler.jobsfile import JobServerConfig, ScheduledJob, parse_jobs, read_jobs_file

GOOD = """
maxRunning = 2
[jobs.a]
run = "compact"
schedule = "@hourly"
[jobs.a.options]
store = "/store"
topic = ["A", "B"]
min_dirty_ratio = 0.5
"""


def test_options_become_a_command_line() -> None:
    file = parse_jobs(tomllib.loads(GOOD))
    assert file.server.max_running == 2
    job = file.jobs["a"]
    assert job.arguments == ("--store=/store", "--topic=A", "--topic=B", "--min-dirty-ratio=0.5")
    assert (job.name, job.retries, job.enabled) == ("a", 3, True)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (('run = "compact"', 'run = "compcat"'), r"jobs\.a: run: there is no job 'compcat'; did you mean 'compact'"),
        (('run = "compact"', ""), r"jobs\.a: run is missing"),
        (('schedule = "@hourly"', ""), r"jobs\.a: schedule is missing"),
        (('schedule = "@hourly"', 'schedule = "@often"'), "not a cron expression of five fields"),
        (('store = "/store"', 'stroe = "/store"'), r"jobs\.a: options: .*(required|unrecognized)"),
        (('store = "/store"', 'store = {a = 1}'), "text, a number, true or false"),
        (("[jobs.a.options]", "[jobs.a.other]"), r"jobs\.a\.other: there is no such setting"),
        (("[jobs.a]", "retires = 1\n[jobs.a]"), "retires: there is no such setting"),
        (("@hourly\"", "@hourly\"\nretires = 1"), r"jobs\.a\.retires: .*did you mean 'retries'"),
        (("@hourly\"", "@hourly\"\ntimezone = \"Mars/Olympus\""), "is not a time zone"),
        (("@hourly\"", "@hourly\"\ntimezone = \"../../etc/passwd\""), "is not a time zone"),
        (("@hourly\"", "@hourly\"\nretries = -1"), r"jobs\.a: setting retries=-1"),
        (("[jobs.a]", "[jobs.\"../a\"]"), "is not a valid name"),
        (("maxRunning = 2", "maxRunning = 0"), "maxRunning=0 must be positive"),
        (("maxRunning = 2", 'httpBindAddress = "0.0.0.0"'), "consent with allowAnonymous=true"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_said(change: tuple[str, str], says: str) -> None:
    text = GOOD.replace(*change)
    if change[0] == "[jobs.a]" and "../a" in change[1]:
        text = text.replace("[jobs.a.options]", '[jobs."../a".options]')
    assert text != GOOD
    with pytest.raises(ConfigError, match=says):
        parse_jobs(tomllib.loads(text))


def test_a_file_that_is_none(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot read"):
        read_jobs_file(tmp_path / "none.toml")
    bad = tmp_path / "bad.toml"
    bad.write_text("= 1")
    with pytest.raises(ConfigError, match="is not TOML"):
        read_jobs_file(bad)
    bad.write_bytes(b"#" * ((1 << 20) + 1))
    with pytest.raises(ConfigError, match="is larger than"):
        read_jobs_file(bad)


def test_the_file_in_conf_shows_every_setting_with_its_default() -> None:
    """As it is: it starts nothing. With its comments taken away: the same settings."""
    path = Path("conf/jobs.toml")
    file = read_jobs_file(path)
    assert file.server == JobServerConfig()
    assert not any(job.enabled for job in file.jobs.values())
    lines = path.read_text().split("\n\n[jobs.NAME")[0].split("# [jobs.NAME")[0].splitlines()
    shown = tomllib.loads(
        "\n".join(line.removeprefix("# ") for line in lines if " = " in line and "each job" not in line)
    )
    assert parse_jobs(shown).server == JobServerConfig()
    assert len(shown) == len(JobServerConfig.__dataclass_fields__)
    defaults = ScheduledJob()
    commented = [line.removeprefix("# ") for line in path.read_text().splitlines() if line.startswith("# ")]
    found = tomllib.loads(
        "\n".join(
            line
            for line in commented
            if line.startswith(("timezone", "enabled", "catchUp", "retr", "timeout"))
        )
    )
    assert found == {
        "timezone": defaults.timezone,
        "enabled": defaults.enabled,
        "catchUp": defaults.catch_up,
        "retries": defaults.retries,
        "retryDelaySeconds": defaults.retry_delay_seconds,
        "timeoutSeconds": defaults.timeout_seconds,
    }
