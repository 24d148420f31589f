"""RocketMQ's verbs are templates: options become words of this command line."""

from __future__ import annotations

import pytest
from click import UsageError

from mqspark_server.commands.administration.mqadmin_cli import VERBS, words_of


@pytest.mark.parametrize(
    ("command", "given", "words"),
    [
        ("a {x} [y: --y {y}]", {"x": "1 2"}, ["a", "1 2"]),
        ("a [y z: --y {y}:{z}]", {"y": "-1", "z": "2"}, ["a", "--y", "-1:2"]),
        ("a [y z: --y {y}:{z}]", {"y": "1"}, ["a"]),
        ("[x=p|q: yes] [x !x=p|q: no]", {"x": "Q"}, ["yes"]),
        ("[x=p|q: yes] [x !x=p|q: no]", {"x": "r"}, ["no"]),
        ("[x=p|q: yes] [x !x=p|q: no] [!x: none]", {}, ["none"]),
        ("[x,: --each {x}]", {"x": "1, 2,"}, ["--each", "1", "--each", "2"]),
        ("[x,: --each {x}]", {}, []),
        ("{x}", {"x": "{y} [z: w]"}, ["{y} [z: w]"]),
    ],
)
def test_a_command_has_the_words_of_what_is_given(
    command: str, given: dict[str, str], words: list[str]
) -> None:
    assert list(words_of(command, given)) == words


@pytest.mark.parametrize(
    ("verb", "given", "commands"),
    [
        (
            "updateTopic",
            {"t": "T", "c": "C", "r": "2", "p": "4", "o": "false", "a": "+k=v,+l=w"},
            [
                "topic create T --queues 8 --exist-ok --perm r --cluster C --attribute +k=v --attribute +l=w",
                "topic update T --read-queues 2 --write-queues 8 --no-order --perm r --cluster C"
                " --attribute +k=v --attribute +l=w",
            ],
        ),
        ("resetOffsetByTime", {"g": "G", "t": "T", "s": "now"}, ["group reset G T --latest"]),
        ("resetOffsetByTime", {"g": "G", "t": "T", "s": "99"}, ["group reset G T --to-time 99ms"]),
        ("resetOffsetByTime", {"g": "G", "t": "T", "s": "0"}, ["group reset G T --to-time 0ms"]),
        ("resetOffsetByTime", {"g": "G", "t": "T", "s": "-1"}, ["group reset G T --latest"]),
        (
            "resetOffsetByTime",
            {"g": "G", "t": "T", "s": "2026-01-31#12:00:00:000"},
            ["group reset G T --to-time 2026-01-31#12:00:00:000"],
        ),
        (
            "resetOffsetByTime",
            {"g": "G", "t": "T", "s": "-1", "b": "B", "q": "3", "o": "7"},
            ["group reset G T --queue B:3 --to-offset 7"],
        ),
        ("consumeMessage", {"t": "T", "o": "5", "s": "9"}, ["consume T --from offset:5"]),
        ("consumeMessage", {"t": "T", "s": "9", "e": "now"}, ["consume T --from 9ms --until now"]),
        (
            "printMsg",
            {"t": "T", "b": "1700000000", "e": "-1h"},
            ["consume T --from 1700000000ms --until -1h"],
        ),
        ("queryMsgByKey", {"t": "T", "k": "K", "b": "0"}, ["message key T K --from 0ms"]),
        ("getSyncStateSet", {"a": "h:1", "b": "B"}, ["controller replicas B --controller h:1"]),
        (
            "electMaster",
            {"a": "h:1", "b": "2", "bn": "B", "c": "C"},
            ["controller elect B 2 --controller h:1 --cluster C"],
        ),
        ("deleteSubGroup", {"g": "G", "r": "false"}, ["group delete G --keep-offsets"]),
        ("remappingStaticTopic", {"t": "T", "b": "a, b"}, ["topic remap T --broker a --broker b"]),
    ],
)
def test_verbs_say_the_same(verb: str, given: dict[str, str], commands: list[str]) -> None:
    assert [" ".join(words_of(each, given)) for each in VERBS[verb].commands] == commands


def test_a_value_that_needs_another_names_it() -> None:
    (command,) = VERBS["sendMessage"].commands
    with pytest.raises(UsageError, match="give -b, too"):
        list(words_of(command, {"t": "T", "p": "x", "i": "1"}))


@pytest.mark.parametrize(
    "text", ["", "yesterday", "-2", "1.5", "2026-13-01#00:00:00:000", "1" * 19, "\u0661\u0662"]
)
def test_what_is_no_time_of_rocketmq_names_the_option(text: str) -> None:
    (command,) = VERBS["resetOffsetByTime"].commands
    with pytest.raises(UsageError, match=r"-s .* is not a time: now, ms since the epoch"):
        list(words_of(command, {"g": "G", "t": "T", "s": text}))
