"""``mqspark mqadmin VERB``: the commands as spelled in RocketMQ's mqadmin, for people and scripts that use it.

A verb is translated to commands of this project and has their output. Unsupported options are refused, so that none is
silently ignored. A destructive verb asks for confirmation, like all commands here, unless ``--yes`` is given.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import click

from mqspark_server.commands.loading import HELP, LazyCommands

Given = Mapping[str, str]
_PERMS = {"2": "w", "4": "r", "6": "rw"}
_NOW = ("now", "currentTimeMillis")


class Verb(NamedTuple):
    options: str
    """``letter/longName``; ``!`` marks a flag, ``*`` a required option."""
    commands: Callable[[Given], Sequence[Sequence[str]]]
    """The equivalent commands, as words."""


def _one(*words: str) -> list[list[str]]:
    return [list(words)]


def _option(name: str, value: str | None) -> list[str]:
    return [] if value is None else [name, value]


def _key_type(given: str | None) -> str:
    """The command for -p of queryMsgByKey."""
    if given not in (None, "K", "T"):
        raise click.UsageError("index type error, just support K for keys or T for tags")
    return "tag" if given == "T" else "key"


def _where(given: Given) -> list[str]:
    """-b and -c of the verbs that change brokers."""
    if "b" not in given and "c" not in given:
        raise click.UsageError("give -b BROKER or -c CLUSTER")
    return [*_option("--broker", given.get("b")), *_option("--cluster", given.get("c"))]


def _static_where(given: Given) -> list[str]:
    """-b or -c, and -mf, of the verbs for static topics."""
    if ("b" in given) == ("c" in given):
        raise click.UsageError("give either -b BROKER,BROKER or -c CLUSTER")
    if "," in given.get("c", ""):
        raise click.UsageError("-c names several clusters: name their brokers with -b")
    brokers = [name.strip() for name in given.get("b", "").split(",") if name.strip()]
    words = [word for name in brokers for word in ("--broker", name)]
    return [*words, *_option("--cluster", given.get("c")), *_option("--plan", given.get("mf"))]


def _perm(given: Given) -> list[str]:
    text = given.get("p")
    if text is not None and text not in _PERMS:
        raise click.UsageError(f"-p {text[:20]!r}: a permission is 2 (write), 4 (read) or 6 (both)")
    return _option("--perm", None if text is None else _PERMS[text])


def _flag(given: Given, letter: str, yes: str, no: str) -> list[str]:
    text = given.get(letter, "").lower()
    return [] if not text else [yes if text == "true" else no]


def _update_topic(given: Given) -> list[list[str]]:
    read, write = given.get("r", "8"), given.get("w", "8")
    attributes: list[str] = []
    for text in filter(None, given.get("a", "").split(",")):
        if not text.startswith("+"):
            raise click.UsageError(f"-a {text[:40]!r}: only +key=value is supported")
        attributes += ["--attribute", text[1:]]
    more = [*_perm(given), *_where(given), *attributes]
    order = _flag(given, "o", "--order", "--no-order")
    return [
        ["topic", "create", given["t"], "--queues", write, "--exist-ok", *more],
        ["topic", "update", given["t"], "--read-queues", read, "--write-queues", write, *order, *more],
    ]


def _reset(given: Given) -> list[list[str]]:
    words = ["group", "reset", given["g"], given["t"], *_option("--cluster", given.get("c"))]
    if "q" in given:
        if "b" not in given:
            raise click.UsageError("-q QUEUE needs -b BROKER")
        words += ["--queue", f"{given['b']}:{given['q']}"]
    if "o" in given:
        return [[*words, "--to-offset", given["o"]]]
    stamp = given["s"]
    return [[*words, *(["--latest"] if stamp in (*_NOW, "-1") else ["--to-time", stamp])]]


def _consume(given: Given) -> list[list[str]]:
    words = ["consume", given["t"], *_option("--count", given.get("c"))]
    if "i" in given:
        if "b" not in given:
            raise click.UsageError("-i QUEUE needs -b BROKER")
        words += ["--queue", f"{given['b']}:{given['i']}"]
    return [
        [*words, *_option("--from", given.get("o") or given.get("s")), *_option("--until", given.get("e"))]
    ]


def _print(given: Given) -> list[list[str]]:
    words = ["consume", given["t"], *_option("--tag", given.get("s")), *_option("--from", given.get("b"))]
    if "a" in given:
        words += ["--queue", f"{given['a']}:{given['i']}"]
    return [[*words, *_option("--until", given.get("e"))]]


def _send(given: Given) -> list[list[str]]:
    words = ["produce", given["t"], "--body", given["p"], *_option("--key", given.get("k"))]
    words += _option("--tag", given.get("c"))
    if "i" in given:
        if "b" not in given:
            raise click.UsageError("-i QUEUE needs -b BROKER")
        words += ["--queue", f"{given['b']}:{given['i']}"]
    return [[*words, *(["--trace"] if given.get("m", "").lower() == "true" else [])]]


def _update_group(given: Given) -> list[list[str]]:
    return [
        [
            *("group", "create", given["g"], *_option("--cluster", given.get("c"))),
            *_flag(given, "s", "--enabled", "--disabled"),
            *_flag(given, "d", "--broadcast", "--no-broadcast"),
            *_flag(given, "o", "--ordered", "--unordered"),
            *_option("--retry-queues", given.get("q")),
            *_option("--retries", given.get("r")),
        ]
    ]


def _clean(what: str) -> Verb:
    return Verb(
        "b/brokerAddr c/cluster",
        lambda given: _one(
            "broker",
            "clean",
            what,
            *_option("--broker", given.get("b")),
            *_option("--cluster", given.get("c")),
        ),
    )


def _bench(given: Given) -> list[list[str]]:
    return _one(
        "bench", "send", given["t"], "--count", given.get("a", "100"), "--size", given.get("s", "128")
    )


VERBS: Mapping[str, Verb] = {
    "clusterList": Verb(
        "m/moreStats! c/clusterName",
        lambda given: _one(
            "cluster",
            "list",
            *(["-o", "wide"] if "m" in given else []),
            *_option("--cluster", given.get("c")),
        ),
    ),
    "brokerStatus": Verb("b/brokerAddr*", lambda given: _one("broker", "describe", given["b"])),
    "haStatus": Verb("b/brokerAddr*", lambda given: _one("broker", "replicas", given["b"])),
    "getBrokerConfig": Verb(
        "b/brokerAddr c/clusterName", lambda given: _one("config", "get", *_where(given))
    ),
    "updateBrokerConfig": Verb(
        "b/brokerAddr c/clusterName k/key* v/value*",
        lambda given: _one("config", "set", f"{given['k']}={given['v']}", *_where(given)),
    ),
    "getNamesrvConfig": Verb("", lambda given: _one("namesrv", "config")),
    "updateNamesrvConfig": Verb(
        "k/key* v/value*", lambda given: _one("namesrv", "set", f"{given['k']}={given['v']}")
    ),
    "wipeWritePerm": Verb("b/brokerName*", lambda given: _one("broker", "drain", given["b"])),
    "addWritePerm": Verb("b/brokerName*", lambda given: _one("broker", "undrain", given["b"])),
    "cleanExpiredCQ": _clean("queues"),
    "cleanUnusedTopic": _clean("topics"),
    "deleteExpiredCommitLog": _clean("log"),
    "producer": Verb("b/broker*", lambda given: _one("broker", "producers", given["b"])),
    "producerConnection": Verb(
        "g/producerGroup* t/topic*", lambda given: _one("topic", "producers", given["t"], given["g"])
    ),
    "topicList": Verb(
        "c/clusterModel!",
        lambda given: _one("topic", "list", "--all", *(["-o", "wide"] if "c" in given else [])),
    ),
    "topicStatus": Verb("t/topic*", lambda given: _one("topic", "describe", given["t"])),
    "topicRoute": Verb("t/topic* l/list!", lambda given: _one("topic", "describe", given["t"])),
    "topicClusterList": Verb("t/topic*", lambda given: _one("topic", "describe", given["t"])),
    "statsAll": Verb(
        "t/topic", lambda given: _one("topic", "stats", *([given["t"]] if "t" in given else []))
    ),
    "updateTopic": Verb(
        "b/brokerAddr c/clusterName t/topic* r/readQueueNums w/writeQueueNums p/perm o/order a/attributes",
        _update_topic,
    ),
    "updateTopicPerm": Verb(
        "b/brokerAddr c/clusterName t/topic* p/perm*",
        lambda given: _one("topic", "update", given["t"], *_perm(given), *_where(given)),
    ),
    "updateStaticTopic": Verb(
        "b/brokers c/clusters t/topic* qn/totalQueueNum* mf/mapFile",
        lambda given: _one(
            "topic", "create-static", given["t"], "--queues", given["qn"], *_static_where(given)
        ),
    ),
    "remappingStaticTopic": Verb(
        "b/brokers c/clusters t/topic* mf/mapFile",
        lambda given: _one("topic", "remap", given["t"], *_static_where(given)),
    ),
    "deleteTopic": Verb(
        "t/topic* c/clusterName",
        lambda given: _one("topic", "delete", given["t"], *_option("--cluster", given.get("c"))),
    ),
    "updateSubGroup": Verb(
        "c/clusterName g/groupName* s/consumeEnable d/consumeBroadcastEnable o/consumeMessageOrderly"
        " q/retryQueueNums r/retryMaxTimes",
        _update_group,
    ),
    "deleteSubGroup": Verb(
        "c/clusterName g/groupName* r/removeOffset",
        lambda given: _one(
            "group",
            "delete",
            given["g"],
            *_option("--cluster", given.get("c")),
            *([] if given.get("r", "true").lower() == "true" else ["--keep-offsets"]),
        ),
    ),
    "getConsumerConfig": Verb("g/groupName*", lambda given: _one("group", "describe", given["g"])),
    "consumerProgress": Verb(
        "g/groupName t/topicName",
        lambda given: (
            _one("group", "lag", given["g"], *_option("--topic", given.get("t")))
            if "g" in given
            else _one("group", "list", "-o", "wide")
        ),
    ),
    "consumerConnection": Verb("g/consumerGroup*", lambda given: _one("group", "members", given["g"])),
    "consumerStatus": Verb(
        "g/consumerGroup*", lambda given: _one("group", "members", given["g"], "-o", "wide")
    ),
    "brokerConsumeStats": Verb(
        "b/brokerAddr", lambda given: _one("group", "lag", *_option("--broker", given.get("b")))
    ),
    "setConsumeMode": Verb(
        "c/clusterName t/topicName* g/groupName* m/mode* q/popShareQueueNum",
        lambda given: _one(
            "group",
            "mode",
            given["g"],
            given["t"],
            given["m"],
            *_option("--share", given.get("q")),
            *_option("--cluster", given.get("c")),
        ),
    ),
    "resetOffsetByTime": Verb(
        "g/group* t/topic* s/timestamp* f/force b/broker q/queue o/offset c/cluster", _reset
    ),
    "skipAccumulatedMessage": Verb(
        "g/group* t/topic* f/force c/cluster",
        lambda given: _one(
            "group", "reset", given["g"], given["t"], "--latest", *_option("--cluster", given.get("c"))
        ),
    ),
    "cloneGroupOffset": Verb(
        "s/srcGroup* d/destGroup* t/topic* o/offline",
        lambda given: _one("group", "clone", given["s"], given["d"], given["t"]),
    ),
    "queryMsgById": Verb(
        "i/msgId* t/topic",
        lambda given: _one("message", "id", given["i"], *_option("--topic", given.get("t"))),
    ),
    "queryMsgByUniqueKey": Verb(
        "i/msgId* t/topic* a/showAll!", lambda given: _one("message", "id", given["i"], "--topic", given["t"])
    ),
    "queryMsgByKey": Verb(
        "t/topic* k/msgKey* p/keyType m/maxNum",
        lambda given: _one(
            "message", _key_type(given.get("p")), given["t"], given["k"], *_option("--count", given.get("m"))
        ),
    ),
    "queryMsgByOffset": Verb(
        "t/topic* b/brokerName* i/queueId* o/offset*",
        lambda given: _one("message", "offset", given["t"], f"{given['b']}:{given['i']}", given["o"]),
    ),
    "queryMsgTraceById": Verb(
        "i/msgId* t/traceTopic",
        lambda given: _one("message", "trace", given["i"], *_option("--trace-topic", given.get("t"))),
    ),
    "printMsg": Verb("t/topic* s/subExpression b/beginTimestamp e/endTimestamp d/printBody", _print),
    "printMsgByQueue": Verb(
        "t/topic* a/brokerName* i/queueId* s/subExpression b/beginTimestamp e/endTimestamp p/print d/printBody",
        _print,
    ),
    "consumeMessage": Verb(
        "t/topic* b/brokerName i/queueId o/offset s/beginTimestamp e/endTimestamp c/MessageNumber", _consume
    ),
    "sendMessage": Verb("t/topic* p/body* k/key c/tags b/broker i/qid m/msgTraceEnable", _send),
    "checkMsgSendRT": Verb("t/topic* a/amount s/size", _bench),
}
"""RocketMQ's name → verb."""


class _Verbs(LazyCommands):
    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(VERBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        verb = VERBS.get(cmd_name)
        return None if verb is None else _command(cmd_name, verb)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Verbs"):
            formatter.write_text(", ".join(self.list_commands(ctx)))


def _command(name: str, verb: Verb) -> click.Command:
    options: list[click.Parameter] = [
        click.Option(["-n", "--namesrvAddr", "namesrv"], metavar="HOST:PORT", help="Name servers."),
        click.Option(["-y", "--yes", "yes"], is_flag=True, help="Do not ask for confirmation."),
    ]
    for text in verb.options.split():
        letter, _, long = text.rstrip("!*").partition("/")
        # is_flag=False would make click take "-1" for an option instead of a value.
        more: dict[str, Any] = {"is_flag": True} if text.endswith("!") else {}
        names = [f"-{letter}", f"--{long}", f"option_{letter}"]
        options.append(click.Option(names, required=text.endswith("*"), **more))

    def run(namesrv: str | None, yes: bool, **given: Any) -> None:
        root = click.get_current_context().find_root().command
        plain = {
            key.removeprefix("option_"): str(value).strip()
            for key, value in given.items()
            if value is not None and value is not False
        }
        for words in verb.commands(plain):
            more = [*_option("--nameserver", namesrv), *(["--yes"] if yes and _asks(words) else [])]
            code = root.main(args=[*words, *more], prog_name="mqspark", standalone_mode=False)
            if isinstance(code, int) and code:
                click.get_current_context().exit(code)

    return click.Command(
        name, params=options, callback=run, context_settings=HELP, help=f"RocketMQ's {name}."
    )


_ASKING = {
    "topic": ("update", "delete"),
    "group": ("delete", "reset", "clone"),
    "broker": ("drain", "undrain", "clean"),
    "config": ("set",),
    "namesrv": ("set",),
}


def _asks(words: Sequence[str]) -> bool:
    return words[1] in _ASKING.get(words[0], ())


mqadmin = _Verbs(
    "mqadmin",
    help="Commands as in RocketMQ's mqadmin: mqspark mqadmin topicStatus -t T.",
    context_settings=HELP,
)
