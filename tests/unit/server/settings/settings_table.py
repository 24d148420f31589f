"""The page about all settings, and the commented settings files, from the declarations of the settings:

python -m tests.unit.server.settings.settings_table > docs/settings.md
python -m tests.unit.server.settings.settings_table broker > conf/broker.toml
"""

from __future__ import annotations

import json
import sys
import textwrap
from collections.abc import Iterator
from typing import Any

from mqspark_server.settings.declarations import DeclaredSetting, settings_of, text_of
from mqspark_server.settings.rocketmq_keys import HONOURED, REFUSED, WITHOUT_EFFECT
from mqspark_server.settings.settings import (
    broker_settings,
    controller_settings,
    namesrv_settings,
    production,
)

MODULE = "tests.unit.server.settings.settings_table"
TITLES = {"broker": "Brokers", "namesrv": "Name servers", "controller": "Controllers"}
WIDTH = 120


# --- docs/settings.md ---------------------------------------------------------------------------------------------


def markdown() -> str:
    lines = [
        "# Settings",
        "",
        "Settings are given in a file (`-c FILE`, `broker.conf` syntax or TOML) or with `--set key=value`, by the name",
        "in RocketMQ (`flushDiskType`) or in snake case (`flush_disk_type`).",
        "",
        f"{len(HONOURED)} of RocketMQ 5.5's settings are honoured. {len(WITHOUT_EFFECT)} have no effect here; "
        "one line of the log names those that are",
        f"given. {len(REFUSED)} promise what this version does not keep; a start with such a value fails. "
        "An unknown name is an error.",
        "",
        "`live`: requests may change it while the server runs. `own`: RocketMQ has no such setting. The files in",
        f"`conf/` have the same settings. They and this page are generated: `python -m {MODULE}`.",
        "",
        "## Refused",
        "",
        "| setting | accepted values | because |",
        "|---|---|---|",
    ]
    for key in sorted(REFUSED, key=str.lower):
        accepted = ", ".join(f"`{value}`" if value else "empty" for value in sorted(REFUSED[key].harmless))
        lines.append(f"| `{key}` | {accepted} | {REFUSED[key].reason} |")
    told: set[tuple[str, type[Any]]] = set()
    for server, title in TITLES.items():
        section = None
        for each in settings_of(server):
            if (each.key, each.owner) in told:
                continue
            told.add((each.key, each.owner))
            if each.section != section:
                section = each.section
                lines += ["", f"## {title}: {section}", ""]
                lines += ["| setting | default | range | | meaning |", "|---|---|---|---|---|"]
            lines.append(_row(each))
    lines += [
        "",
        "## Without an effect here",
        "",
        "A broker and a name server show these as RocketMQ does: with RocketMQ's default, or with `false` or `1` where",
        "the default would claim something that is not so.",
        "",
    ]
    for reason in dict.fromkeys(WITHOUT_EFFECT.values()):
        names = sorted((key for key, why in WITHOUT_EFFECT.items() if why == reason), key=str.lower)
        words = f"**{reason[0].upper()}{reason[1:]}.** " + " ".join(f"`{name}`" for name in names)
        lines += [*textwrap.wrap(words, 140, break_long_words=False, break_on_hyphens=False), ""]
    return "\n".join(lines)


def _row(each: DeclaredSetting) -> str:
    declared, default = each.field.metadata, each.default
    notes = " ".join(word for word, is_so in (("live", "live"), ("own", "ours")) if declared.get(is_so))
    others = [TITLES[server].lower() for server in declared.get("of", ()) if server in TITLES]
    only = f" Only for {' and '.join(others)}." if others else ""
    cells = (f"`{each.key}`", f"`{default}`" if default else "", each.bounds, notes, each.meaning + only)
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


# --- conf/*.toml --------------------------------------------------------------------------------------------------

_MORE = "Spelling and precedence as in broker.toml."
HEADERS = {
    "broker": """\
# Settings of `mqspark broker run -c conf/broker.toml`.
#
# Every key, its default and its unit. A key may be spelled as here, which is RocketMQ's way, or in snake case
# (flush_disk_type). The table headers only group. `--set key=value` on the command line wins over this file.
# Lines that are commented out show the default.
#
# These seven settings matter; everything else can wait:
#   brokerName         who this broker is: never change it, queues are named after it. Each master has its own.
#   brokerIP1          where clients reach it. What it finds by itself is wrong behind NAT and in containers.
#   namesrvAddr        the name servers. Without them nobody finds its topics.
#   storePathRootDir   where the messages are: a disk of its own, with room for fileReservedTime hours of them.
#   flushDiskType      what an acknowledgement means. SYNC_FLUSH: on the disk; ASYNC_FLUSH: a power cut may take 500 ms.
#   fileReservedTime   how many hours messages stay. A full disk deletes them earlier (diskSpaceCleanForciblyRatio).
#   authenticationEnabled  who may come in. Without users, a broker that other hosts reach does not start.
# With replicas an eighth: inSyncReplicas (docs/replication.md).
""",
    "namesrv": f"# Settings of `mqspark namesrv run -c conf/namesrv.toml`. {_MORE}\n",
    "controller": f"# Settings of `mqspark controller run -c conf/controller.toml`. {_MORE}\n",
}
SECTIONS = {
    "tls.server": "TLS for clients, beside or instead of plain connections; files are PEM",
    "tls.client": "connections to other servers, with useTLS = true",
    "extensions": "docs/extensions.md",
}
SAMPLES = {"namesrv": {"httpPort": 9879}}
"""Where a sample of the declaration is another server's."""


def resolved(server: str) -> list[Any]:
    """The settings objects of a server of which nothing is set."""
    if server == "broker":
        broker = broker_settings(production(), use_environment=False)
        return [broker.server, broker.broker, broker.store, broker.auth]
    if server == "namesrv":
        namesrv = namesrv_settings({})
        return [namesrv.server, namesrv.namesrv, namesrv.auth]
    controller = controller_settings({})
    return [controller.server, controller.controller, controller.auth]


def conf(server: str) -> str:
    parts = {type(part): part for part in resolved(server)}
    profile = production() if server == "broker" else {}
    lines = [HEADERS[server].rstrip()]
    section = None
    for each in settings_of(server):
        if each.section != section:
            section = each.section
            note = SECTIONS.get(section)
            lines += ["", f"{f'[{section}]':<38} # {note}" if note else f"[{section}]"]
        value = getattr(parts[each.owner], each.field.name)
        sample = SAMPLES.get(server, {}).get(each.key, each.field.metadata.get("sample"))
        mark = "" if each.key in profile and sample is None else "# "
        key = each.key.removeprefix(f"{section}.")
        lines += _entry(f"{mark}{key} = {_toml(value if sample is None else sample)}", each.meaning)
    return "\n".join(lines) + "\n"


def _entry(assignment: str, note: str) -> Iterator[str]:
    """The note stands beside the setting, or above it when it is long."""
    note = note.replace("`", "")
    beside = f"{assignment:<38} # {note}" if note else assignment
    if len(beside) <= WIDTH:
        yield beside
    else:
        yield from textwrap.wrap(note, WIDTH - 4, initial_indent="#   ", subsequent_indent="#   ")
        yield assignment


def _toml(value: Any) -> str:
    return text_of(value) if isinstance(value, bool | int) else json.dumps(text_of(value))


if __name__ == "__main__":
    print(conf(sys.argv[1]) if sys.argv[1:] else markdown(), end="")
