"""``mqspark mqadmin VERB``: the commands as spelled in RocketMQ's mqadmin, for people and scripts that use it.

A verb is translated to commands of this project and has their output. Unsupported options are refused, so that none is
silently ignored. A destructive verb asks for confirmation, like all commands here, unless ``--yes`` is given.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple, cast

import click

from mqspark.message import NEW_TOPIC_QUEUES
from mqspark_server.commands.lazycommands import HELP, LazyCommands
from mqspark_server.commands.times import parse_time_ms

Given = Mapping[str, str]
"""Letter of an option → its value."""


class Verb(NamedTuple):
    options: str
    """``letter/longName``, and for some ``=a,b``, the values that exist. Then ``!`` marks a flag, ``*`` a must. At
    least one of those with ``|`` must be given, and exactly one of those with ``^``."""
    commands: Sequence[str]
    """The same in words of this command line: ``{a}`` is the value of -a, ``{a@}`` a time as RocketMQ's tools read it.
    ``[a: words]`` stay if -a is given, ``[a=x|y: words]`` if it is x or y, ``[!…: words]`` if it is not; several
    conditions must all hold. ``[a,: words]`` are repeated for each part of -a between commas."""


_WORDS = {
    "$UPDATE": "$PERM $AT [a,: --attribute {a}]",
    "$PERM": "[p=2: --perm w] [p=4: --perm r] [p=6: --perm rw]",
    "$READ": f"[r: --read-queues {{r}}] [!r: --read-queues {NEW_TOPIC_QUEUES}]",
    "$WRITE": f"[w: --write-queues {{w}}] [!w: --write-queues {NEW_TOPIC_QUEUES}]",
    "$NEW": f"[w: --queues {{w}}] [!w: --queues {NEW_TOPIC_QUEUES}]",
    "$ON": "[b,: --broker {b}] $IN [mf: --plan {mf}]",
    "$AT": "[b: --broker {b}] $IN",
    "$IN": "[c: --cluster {c}]",
    "$END": "s=now|currentTimeMillis|-1",
    "$PRINT": "consume {t} [s: --tag {s}] [b: --from {b@}] [a: --queue {a}:{i}] [e: --until {e@}]",
}
"""What several verbs say. One may have others that come after it."""

_TABLE = """
clusterList m/moreStats! c/clusterName => cluster list [m: -o wide] $IN
brokerStatus b/brokerAddr* => broker describe {b}
haStatus b/brokerAddr* => broker replicas {b}
getBrokerConfig b/brokerAddr| c/clusterName| => config get $AT
updateBrokerConfig b/brokerAddr| c/clusterName| k/key* v/value* => config set {k}={v} $AT
getNamesrvConfig => namesrv config
updateNamesrvConfig k/key* v/value* => namesrv set {k}={v}
getControllerMetaData a/controllerAddress* => controller list --controller {a}
getSyncStateSet a/controllerAddress* b/brokerName c/clusterName => controller replicas [b: {b}] --controller {a} $IN
electMaster a/controllerAddress* b/brokerId* bn/brokerName* c/clusterName* \
 => controller elect {bn} {b} --controller {a} $IN
wipeWritePerm b/brokerName* => broker drain {b}
addWritePerm b/brokerName* => broker undrain {b}
cleanExpiredCQ b/brokerAddr c/cluster => broker clean queues $AT
cleanUnusedTopic b/brokerAddr c/cluster => broker clean topics $AT
deleteExpiredCommitLog b/brokerAddr c/cluster => broker clean log $AT
producer b/broker* => broker producers {b}
producerConnection g/producerGroup* t/topic* => topic producers {t} {g}
topicList c/clusterModel! => topic list --all [c: -o wide]
topicStatus t/topic* => topic describe {t}
topicRoute t/topic* l/list! => topic describe {t}
topicClusterList t/topic* => topic describe {t}
statsAll t/topic => topic stats [t: {t}]
updateTopic b/brokerAddr| c/clusterName| t/topic* r/readQueueNums w/writeQueueNums p/perm=2,4,6 o/order a/attributes \
 => topic create {t} $NEW --exist-ok $UPDATE \
 => topic update {t} $READ $WRITE [o=true: --order] [o !o=true: --no-order] $UPDATE
updateTopicPerm b/brokerAddr| c/clusterName| t/topic* p/perm=2,4,6* => topic update {t} $PERM $AT
updateStaticTopic b/brokers^ c/clusters^ t/topic* qn/totalQueueNum* mf/mapFile \
 => topic create-static {t} --queues {qn} $ON
remappingStaticTopic b/brokers^ c/clusters^ t/topic* mf/mapFile => topic remap {t} $ON
deleteTopic t/topic* c/clusterName => topic delete {t} $IN
updateSubGroup c/clusterName g/groupName* s/consumeEnable d/consumeBroadcastEnable o/consumeMessageOrderly \
 q/retryQueueNums r/retryMaxTimes \
 => group create {g} $IN [s=true: --enabled] [s !s=true: --disabled] [d=true: --broadcast] [d !d=true: --no-broadcast] \
 [o=true: --ordered] [o !o=true: --unordered] [q: --retry-queues {q}] [r: --retries {r}]
deleteSubGroup c/clusterName g/groupName* r/removeOffset => group delete {g} $IN [r !r=true: --keep-offsets]
getConsumerConfig g/groupName* => group describe {g}
consumerProgress g/groupName t/topicName => group [g: lag {g}] [g t: --topic {t}] [!g: list -o wide]
consumerConnection g/consumerGroup* => group members {g}
consumerStatus g/consumerGroup* => group members {g} -o wide
brokerConsumeStats b/brokerAddr => group lag [b: --broker {b}]
setConsumeMode c/clusterName t/topicName* g/groupName* m/mode* q/popShareQueueNum \
 => group mode {g} {t} {m} [q: --share {q}] $IN
resetOffsetByTime g/group* t/topic* s/timestamp* f/force=true b/broker q/queue o/offset c/cluster \
 => group reset {g} {t} $IN [q: --queue {b}:{q}] [o: --to-offset {o}] [!o $END: --latest] [!o !$END: --to-time {s@}]
skipAccumulatedMessage g/group* t/topic* f/force=true c/cluster => group reset {g} {t} --latest $IN
cloneGroupOffset s/srcGroup* d/destGroup* t/topic* o/offline => group clone {s} {d} {t}
queryMsgById i/msgId* t/topic => message id {i} [t: --topic {t}]
queryMsgByUniqueKey i/msgId* t/topic* a/showAll! => message id {i} --topic {t}
queryMsgByKey t/topic* k/msgKey* p/keyType=K,T b/beginTimestamp e/endTimestamp m/maxNum \
 => message [p=T: tag] [!p=T: key] {t} {k} [b: --from {b@}] [e: --until {e@}] [m: --count {m}]
queryMsgByOffset t/topic* b/brokerName* i/queueId* o/offset* => message offset {t} {b}:{i} {o}
queryMsgTraceById i/msgId* t/traceTopic => message trace {i} [t: --trace-topic {t}]
printMsg t/topic* s/subExpression b/beginTimestamp e/endTimestamp d/printBody => $PRINT
printMsgByQueue t/topic* a/brokerName* i/queueId* s/subExpression b/beginTimestamp e/endTimestamp p/print d/printBody \
 => $PRINT
consumeMessage t/topic* b/brokerName i/queueId o/offset s/beginTimestamp e/endTimestamp c/MessageNumber \
 => consume {t} [c: --count {c}] [i: --queue {b}:{i}] [o: --from offset:{o}] [!o s: --from {s@}] [e: --until {e@}]
sendMessage t/topic* p/body* k/key c/tags b/broker i/qid m/msgTraceEnable \
 => produce {t} --body {p} [k: --key {k}] [c: --tag {c}] [i: --queue {b}:{i}] [m=true: --trace]
checkMsgSendRT t/topic* a/amount s/size \
 => bench send {t} [a: --count {a}] [!a: --count 100] [s: --size {s}] [!s: --size 128]
"""
"""A verb a line: its name, its options, and after each => a command."""


def _verbs(table: str) -> Iterator[tuple[str, Verb]]:
    for name, words in _WORDS.items():
        table = table.replace(name, words)
    for line in table.strip().splitlines():
        head, *commands = line.split(" => ")
        name, _, options = head.partition(" ")
        yield name, Verb(options, commands)


VERBS: Mapping[str, Verb] = dict(_verbs(_TABLE))
"""RocketMQ's name → verb."""


_PART = re.compile(r"\[([^]:]+): ([^]]+)\]|(\S+)")


def words_of(command: str, given: Given) -> Iterator[str]:
    """Raises click.UsageError when a value is missing."""
    for conditions, words, word in _PART.findall(command):
        if word:
            yield _filled(word, given)
        elif conditions.endswith(","):
            letter = conditions.removesuffix(",")
            for value in filter(None, map(str.strip, given.get(letter, "").split(","))):
                yield from (_filled(each, {letter: value}) for each in words.split())
        elif all(_holds(each, given) for each in conditions.split()):
            yield from (_filled(each, given) for each in words.split())


def _holds(condition: str, given: Given) -> bool:
    letter, equals, values = condition.removeprefix("!").partition("=")
    value = given.get(letter)
    holds = value is not None and (not equals or value.lower() in values.lower().split("|"))
    return holds != condition.startswith("!")


def _filled(word: str, given: Given) -> str:
    def value(named: re.Match[str]) -> str:
        letter = named[1]
        if letter not in given:
            raise click.UsageError(f"give -{letter}, too")
        return _time(letter, given[letter]) if named[2] else given[letter]

    return re.sub(r"\{(\w+)(@?)\}", value, word)


def _time(letter: str, text: str) -> str:
    """A time of RocketMQ's tools, where every number is in ms since the epoch. Raises click.UsageError."""
    if re.fullmatch(r"\d{1,18}", text, re.ASCII):
        return f"{text}ms"
    if text.lower() in ("now", "currenttimemillis"):
        return "now"
    try:
        parse_time_ms("" if re.fullmatch(r"-\d+", text) else text)
    except click.UsageError:
        raise click.UsageError(
            f"-{letter} {text[:80]!r} is not a time: now, ms since the epoch, or 2026-01-31#12:00:00:000"
        ) from None
    return text


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
    alternatives: dict[str, list[str]] = {"|": [], "^": []}
    for text in verb.options.split():
        letter, _, long = text.rstrip("!*|^").partition("/")
        long, _, values = long.partition("=")
        names = [f"-{letter}", f"--{long}", f"option_{letter}"]
        if text.endswith("!"):
            options.append(click.Option(names, is_flag=True))
        else:
            kind = click.Choice(values.split(",")) if values else None
            options.append(click.Option(names, required=text.endswith("*"), type=kind))
        if text[-1] in alternatives:
            alternatives[text[-1]].append(letter)

    def run(namesrv: str | None, yes: bool, **given: object) -> None:
        context = click.get_current_context().find_root()
        root = cast("click.Group", context.command)
        plain = {
            key.removeprefix("option_"): str(value).strip()
            for key, value in given.items()
            if value is not None and value is not False
        }
        for mark, letters in alternatives.items():
            count = sum(letter in plain for letter in letters)
            if letters and (not count or (mark == "^" and count > 1)):
                raise click.UsageError(f"give {' or '.join(f'-{letter}' for letter in letters)}")
        for command in verb.commands:
            words = list(words_of(command, plain))
            words += ["--nameserver", namesrv] if namesrv is not None else []
            # The second word of a command without verbs is a name, which must not become the default of an option.
            is_noun = isinstance(root.get_command(context, words[0]), click.Group)
            confirmed = {words[0]: {words[1]: {"yes": yes}}} if is_noun else {}
            code = root.main(words, "mqspark", standalone_mode=False, default_map=confirmed)
            if isinstance(code, int) and code:
                click.get_current_context().exit(code)

    return click.Command(
        name, params=options, callback=run, context_settings=HELP, help=f"RocketMQ's {name}."
    )


mqadmin = _Verbs(
    "mqadmin",
    help="Commands as in RocketMQ's mqadmin: mqspark mqadmin topicStatus -t T.",
    context_settings=HELP,
)
