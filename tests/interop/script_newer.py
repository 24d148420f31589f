"""Chapters about what 5.4 and 5.5 added to one broker: priorities, the index of tags; and about cold reads."""

import json
import time
from collections.abc import Callable

from tests.interop.differential import Play
from tests.interop.script_messages import (
    CREATE_GROUP,
    create_group,
    create_topic,
    properties,
    read_back,
    send,
    settled,
)
from tests.interop.script_pop import POP, pop_fields

GROUP_CONFIG = 352
UPDATE_COLD, REMOVE_COLD, COLD_INFO, READ_MODE = 2001, 2002, 2003, 2004

PRIORITY = "_SYS_MSG_PRIORITY_"
QUEUES = 8


def priorities(play: Play) -> None:
    topic = create_topic(play, "Priority", QUEUES, attributes="+message.type=PRIORITY")
    plain = create_topic(play, "NoPriority", QUEUES)
    values = (
        "0", "3", "7", "8", "99", "2147483647", "2147483648", "-1", "-0", "+2", "007", "1.0", "x", " 1",
    )  # fmt: skip
    for number, value in enumerate(values):
        text = properties(UNIQ_KEY=f"P-{number}", **{PRIORITY: value})
        send(play, f"priority {value!r}", topic, props=text)
    send(play, "in another topic", plain, props=properties(UNIQ_KEY="P-a", **{PRIORITY: "5"}))
    others = {
        "a sharding key": {"__SHARDINGKEY": "k"},
        "a prepared message that is none": {"TRAN_MSG": "false"},
        "a delay of 0": {"DELAY": "0"},
    }
    for number, (label, more) in enumerate(others.items()):
        text = properties(UNIQ_KEY=f"P-b{number}", **{PRIORITY: "5"}, **more)
        send(play, f"beside {label}", plain, props=text, queueId=2)
    send(play, "queue 9", topic, props=properties(**{PRIORITY: "5"}), queueId=9)
    read_back(play, "priorities", topic, QUEUES)
    read_back(play, "plain", plain, QUEUES)


def priority_pops(play: Play) -> None:
    topic = create_topic(play, "Priority", QUEUES, attributes="+message.type=PRIORITY")
    group = create_group(play, "poppers")
    for priority in (0, 5, 7, 3):
        for number in range(2):
            text = properties(UNIQ_KEY=f"Q-{priority}-{number}", **{PRIORITY: str(priority)})
            send(play, f"{priority}, {number}", topic, props=text)
    for queue_id in (0, 5, 7, 3):
        settled(play, topic, queue_id)
    for turn in range(9):
        time.sleep(0.05)  # RocketMQ's broker may answer a pop before it lets go of the queue
        reply = play.in_time(POP, **pop_fields(group, topic, maxMsgNums=1))
        popped = [(record["properties"]["UNIQ_KEY"], record["queue"]) for record in play.records(reply)]
        play.fact(f"pop {turn}", [reply.code, reply.ext["restNum"], popped])


def priority_factors(play: Play) -> None:
    def change(label: str, attributes: dict[str, str], group: str = "factored") -> None:
        body = json.dumps({"groupName": play.name(group), "attributes": attributes}).encode()
        play.ask(f"change: {label}", CREATE_GROUP, body)
        play.ask(f"after {label}", GROUP_CONFIG, group=play.name(group))

    for value in ("50", "0", "100", "101", "-1", "+7", "007", "x", "", "1.0", "99999999999999999999"):
        change(f"factor {value!r}", {"+priority.factor": value})
    change("removed", {"-priority.factor": ""})
    change("removed again", {"-priority.factor": ""})
    change("removed of a new group", {"-priority.factor": ""}, "newest")
    change("without a sign", {"priority.factor": "1"})
    change("of a new group", {"+priority.factor": "1"}, "newer")
    change("wrong for a new group", {"+priority.factor": "101"}, "newest")


def cold_reads(play: Play) -> None:
    play.ask("nothing", COLD_INFO)
    play.ask("set", UPDATE_COLD, b"cold-a=1000\ncold-b=2000\n")
    play.ask("two are set", COLD_INFO)
    play.ask("set again", UPDATE_COLD, b"# a comment\n\ncold-a = 3000")
    play.ask("changed", COLD_INFO)
    play.ask("set nothing", UPDATE_COLD, b"")
    play.ask("remove", REMOVE_COLD, b"cold-a")
    play.ask("remove what is not there", REMOVE_COLD, b"nobody")
    play.ask("remove nothing", REMOVE_COLD, b"")
    play.ask("one is left", COLD_INFO)
    play.ask("remove the other", REMOVE_COLD, b"cold-b")
    for mode in ("1", "0", "2", "-1", "x", "", "1.0"):
        play.ask(f"read mode {mode!r}", READ_MODE, READ_AHEAD_MODE=mode)
    play.ask("no read mode", READ_MODE, something="1")
    play.ask("no field", READ_MODE)


CHAPTERS: dict[str, Callable[[Play], None]] = {
    "priorities": priorities,
    "priority pops": priority_pops,
    "priority factors": priority_factors,
    "cold reads": cold_reads,
}
