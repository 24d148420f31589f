"""``mqspark config check``: whether a server would start with a settings file, and what the file changes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from mqspark.errors import ConfigError
from mqspark_server.commands.administration.config_cli import config
from tests.support.extension_examples import install_examples


def check(*arguments: str) -> tuple[dict[str, tuple[str, str]], str]:
    """Key → value and default of what differs; standard error."""
    done = CliRunner().invoke(config, ["check", *arguments, "-o", "json"], catch_exceptions=False)
    rows = json.loads(done.stdout)
    return {row["key"]: (row["value"], row["default"]) for row in rows}, done.stderr


@pytest.mark.parametrize("kind", ["broker", "namesrv", "controller"])
def test_the_files_of_the_project_change_nothing(kind: str) -> None:
    found, told = check(f"conf/{kind}.toml", "--set", "allowAnonymous=true")
    assert found == {"allowAnonymous": ("true", "false")}
    assert "NO AUTHENTICATION" in told


@pytest.mark.parametrize("kind", ["broker", "namesrv", "controller"])
def test_a_server_open_to_strangers_would_not_start(kind: str) -> None:
    with pytest.raises(ConfigError, match="may read, write and delete everything"):
        check(f"conf/{kind}.toml")


def test_a_file_of_jobs_is_for_another_command() -> None:
    done = CliRunner().invoke(config, ["check", "conf/jobs.toml"])
    assert (done.exit_code, "mqspark job list -c conf/jobs.toml" in done.stderr) == (2, True)


def test_what_differs_and_what_has_no_effect(tmp_path: Path) -> None:
    file = tmp_path / "mine.conf"
    file.write_text(
        "bindAddress=127.0.0.1\nflushDiskType=ASYNC_FLUSH\nlistenPort=10911\nosPageCacheBusyTimeOutMills=5\n"
        "tls.client.keyPassword=hush\n"
    )
    found, told = check(str(file))
    # That follows bindAddress. It is the default of a machine without a network.
    assert found.pop("brokerIP1", ("127.0.0.1",))[0] == "127.0.0.1"
    assert found == {
        "bindAddress": ("127.0.0.1", "0.0.0.0"),  # noqa: S104 - a default that is shown
        "flushDiskType": ("ASYNC_FLUSH", "SYNC_FLUSH"),
        "tls.client.keyPassword": ("(set)", ""),
    }
    assert told == "without effect: osPageCacheBusyTimeOutMills\n"


def test_whose_settings_they_are(tmp_path: Path) -> None:
    file = tmp_path / "namesrv.toml"
    file.write_text('bindAddress = "127.0.0.1"\nstorePathRootDir = "/x"\n')
    with pytest.raises(ConfigError, match="storePathRootDir"):
        check(str(file))
    assert check(str(file), "--of", "broker")[0]["storePathRootDir"][0] == "/x"


@pytest.mark.parametrize("line", ["listenPort=many", "flushDiskTyp=ASYNC_FLUSH", "listenPort"])
def test_a_wrong_file_is_refused_with_its_name(tmp_path: Path, line: str) -> None:
    file = tmp_path / "mine.conf"
    file.write_text(line)
    with pytest.raises(ConfigError, match=r"mine\.conf"):
        check(str(file), "--set", "allowAnonymous=true")


@pytest.mark.parametrize("key", ["extensions", "messageStorePlugIn"])
def test_an_extension_that_is_not_installed_is_named_and_none_is_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, key: str
) -> None:
    install_examples(tmp_path, "unasked = no_such_module:Unasked\n")
    monkeypatch.syspath_prepend(tmp_path)
    given = ("conf/broker.toml", "--set", "allowAnonymous=true", "--set")
    assert check(*given, f"{key}=unasked")[0][key] == ("unasked", "")
    with pytest.raises(ConfigError, match=f"{key}=mispelt: no installed package"):
        check(*given, f"{key}=mispelt")
