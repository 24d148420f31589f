"""docs/production.md: its commands work, one after the other, as an operator runs them in one shell."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

import pytest

from tests.support.pages import ROOT, Block, blocks
from tests.support.processes import free_port, run_to_end

SYSTEMD = r"""
# The units' own commands, in the background; what stop waits for.
unit_command() { sed -n "s/^ExecStart=//p" "$ROOT/etc/systemd/system/$1.service"; }
systemctl() {
    action=$1; shift
    [ "$1" != --now ] || shift
    for unit in "$@"; do
        case $action:$unit in
            *.timer) test -f "$ROOT/etc/systemd/system/$unit" ;;
            start:mqspark-backup)
                mkdir -p "$ROOT/var/lib/mqspark-backup"
                $(unit_command "$unit") ;;
            start:* | enable:*)
                : > "$ROOT/$unit.out"  # what an earlier start said must not be taken for this one
                $(unit_command "$unit") > "$ROOT/$unit.out" 2>> "$ROOT/$unit.err" &
                echo $! > "$ROOT/$unit.pid"
                for _ in $(seq 900); do
                    ! grep -q READY "$ROOT/$unit.out" || break
                    kill -0 "$(cat "$ROOT/$unit.pid")" || { cat "$ROOT/$unit.err"; exit 1; }
                    sleep 0.1
                done
                grep READY "$ROOT/$unit.out" ;;
            stop:*)
                kill "$(cat "$ROOT/$unit.pid")"
                wait "$(cat "$ROOT/$unit.pid")" ;;
        esac
    done
}
runuser() { shift 3; "$@"; }
chgrp() { :; }
install() { while [ $# -gt 1 ] && [ "${1#/}" = "$1" ]; do shift; done; mkdir -p "$@"; }
trap 'kill $(jobs -p) 2> /dev/null || :; wait' EXIT
"""
"""What a host has and this test has not: systemd, the user mqspark, and the right to give files to it."""


def commands_of(page: str) -> list[Block]:
    """The blocks of commands, without those that show a file."""
    return [
        each
        for each in blocks("text")
        if each.page == ROOT / page and not each.text.startswith(("rule_files:",))
    ]


@pytest.mark.slow("starts two servers, and some thirty commands")
def test_its_commands_work_in_their_order(tmp_path: Path) -> None:
    script = "".join(f"echo '== {block.name}'\n{block.text}" for block in commands_of("docs/production.md"))
    broker = free_port(neighbours=2)
    for shown, here in (
        ("conf/install.sh\n", f"sh {ROOT}/conf/install.sh --files-only --destdir {tmp_path}\n"),
        ("mq1.example.com", "localhost"),
        ("/etc/mqspark", f"{tmp_path}/etc/mqspark"),
        ("/var/lib/mqspark", f"{tmp_path}/var/lib/mqspark"),
        ("/opt/mqspark/bin", str(Path(sys.executable).parent)),
        ('"0.0.0.0"', '"127.0.0.1"'),
        ("\nlistenPort", '\nbindAddress = "127.0.0.1"\nlistenPort'),
        ("9876", str(free_port())),
        ("10911", str(broker)),
        ("10914", str(free_port())),
    ):
        assert shown in script, f"the page says nothing of {shown}"
        script = script.replace(shown, here)
    # The units name the real directories.
    paths = f"s#/(etc|var/lib)/mqspark#{tmp_path}/\\1/mqspark#g; s#/opt/mqspark/bin#{Path(sys.executable).parent}#g"
    script = script.replace(
        f"--destdir {tmp_path}\n",
        f"--destdir {tmp_path}\nsed -E -i '{paths}' {tmp_path}/etc/systemd/system/*\n",
        1,
    )
    done = run_to_end(
        ["bash", "-euo", "pipefail", "-c", SYSTEMD + script],
        env={
            **{name: value for name, value in os.environ.items() if name != "NAMESRV_ADDR"},
            "ROOT": str(tmp_path),
            "MQSPARK_CONTEXTS": str(tmp_path / "contexts.toml"),
        },
        cwd=tmp_path,
        timeout_s=500,
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    parts = re.split(r"^== .*$", done.stdout, flags=re.MULTILINE)
    assert parts[-1].splitlines()[-1] == "order 1", (
        "what was sent before the backup is there after the restore"
    )
    assert "nothing is wrong" in done.stdout
    assert "WARN" not in done.stdout
