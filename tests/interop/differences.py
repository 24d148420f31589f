"""Where mqspark answers otherwise than RocketMQ on purpose, and why."""

import re
from dataclasses import dataclass

from tests.interop.differential import Finding


@dataclass(frozen=True, slots=True)
class Difference:
    """Regular expressions for whole chapters, labels and paths, and for a part of the text of our value."""

    reason: str
    chapter: str = ".*"
    label: str = ".*"
    path: str = "code"
    ours: str = ""
    theirs: str = ""

    def covers(self, chapter: str, finding: Finding) -> bool:
        return bool(
            re.fullmatch(self.chapter, chapter)
            and re.fullmatch(self.label, finding.label, re.DOTALL)
            and re.fullmatch(self.path, finding.path)
            and re.search(self.ours, str(finding.ours))
            and re.search(self.theirs, str(finding.theirs))
        )


KEPT = [
    Difference(
        "RocketMQ passes over some of its own not-null marks or falls over them; no client leaves these fields out",
        path="code|remark",
        ours="mandatory field",
    ),
    Difference(
        "RocketMQ acknowledges these and stores what no consumer will ever see",
        chapter="sends",
        label="system flag 0x(4|c)",
    ),
    Difference(
        "that a message was committed is for the broker to say",
        chapter="sends",
        path=r".*sysFlag",
        ours="^0$",
        theirs="^8$",
    ),
    Difference(
        "what a broker believes only it writes; RocketMQ lets clients write into its timer and into POP's revive log",
        chapter="wrong sends",
        label=".*rmq_sys_.*",
        path=".*",
    ),
    Difference("only a broker makes inner batches", chapter="sends", label="system flag 0x40"),
    Difference(
        "a batch whose lengths are wrong is the sender's fault (13); RocketMQ falls over it (1) or stores what it"
        " makes of it",
        chapter="batches|batch queues",
        label="cut|trailing bytes|wrong inner length|negative length|not a batch",
    ),
    Difference(
        "after the last message is the end, as of ordinary queues; RocketMQ names its last batch again",
        chapter="batch queues",
        label="search .*",
        path=r"ext\.offset",
    ),
    Difference(
        "RocketMQ would deliver a prepared batch before its commit",
        chapter="batches",
        label="prepared batch",
    ),
    Difference(
        "a filter that the broker cannot apply is an error; at RocketMQ it lets everything through",
        chapter="pulls",
        label="tag in lower case|unknown expression type|sql .*",
    ),
    Difference(
        "a property string is stored as it was sent; every reader makes the same map of it",
        chapter="sends",
        path=r"body\[[89]\]\.(size|properties\.[ab])",
    ),
    Difference(
        "RocketMQ forgets to set its outcome and says so",
        path="remark",
        theirs="not set any response code",
    ),
    Difference(
        "what cannot match is passed over at once, up to what the next pull or pop would give",
        label=r"\d with tag A|tag A",
        path=r"ext\.(nextBeginOffset|restNum)",
    ),
    Difference(
        "an error says why", chapter="pops", label="batch ack of (nothing|an empty list)", path="remark"
    ),
    Difference(
        "nothing was looked at",
        chapter="pops",
        label="polling too old",
        path=r"ext\.(invisibleTime|popTime|restNum)",
    ),
    Difference("a pop of nothing is an error", chapter="pops", label="(0|-1) messages|invisible 0"),
    Difference(
        "a number is written as a number", chapter="delays", label="delivered: level plus", path=r"fact\..*"
    ),
    Difference(
        "RocketMQ keeps a mode that does not exist",
        chapter="assignments",
        label="(set|after) unknown mode",
        path=".*",
    ),
    Difference(
        "no progress is kept of a queue that there is not: anybody could fill the memory with them",
        chapter="offsets",
        label="update queue 9",
        ours=r"^\(29,",
    ),
    Difference(
        "RocketMQ does not look at the group of an acknowledgement, be it longer than any can be",
        chapter="mutations",
        label="2000(51|53) consumerGroup='a+",
        path="fact",
        ours="^26$",
    ),
    Difference("a negative offset is no progress", chapter="offsets", label="update (to|queue) -1"),
    Difference(
        "RocketMQ keeps numbers of queues and permissions that mean nothing",
        chapter="topics",
        label="(create|config): (negative queues|permission .*)",
    ),
    Difference("RocketMQ keeps numbers that mean nothing", chapter="topics", label="all topics", path="fact"),
    Difference("a group needs a name", chapter="consumer groups", label="create: nothing"),
    Difference(
        "times are numbers; RocketMQ writes them as text, too",
        chapter="consumer groups",
        label="time span",
        path=r"body\..*Str",
    ),
    Difference(
        "nothing is a list without entries",
        chapter="consumer groups",
        label="queue entries beyond",
        path="body|remark",
    ),
    Difference("there is no such queue", chapter="consumer groups", label="reset queue 9"),
    Difference(
        "a setting that is not taken over is an error",
        chapter="consumer groups",
        label="change settings (no number|unknown key)",
    ),
    Difference(
        "no controller, RocksDB, lite topics or static topics: said plainly",
        chapter="codes",
        label="code (354|355|513|90[0-9]|10[01][0-9]|200[1-4]|2000[78][0-9])",
        path="fact.*",
    ),
    Difference("nothing is asked without a body", chapter="codes", label="code (35|46|200)", path="fact.*"),
    Difference(
        "what cannot be a frame ends its connection at once; RocketMQ is silent",
        chapter="frames",
        label="(no json|a list as header|header type 9|too large)/0",
        path="outcome",
    ),
    Difference("no topics of RocksDB's", chapter="frames", label="no fields/0", path="body.topicList"),
    Difference(
        "a number that is none is an error, also where RocketMQ does not look at it",
        chapter="mutations",
        label=r".*=(?!None).*",
        path="fact",
        ours="^(1|29|19)$",
    ),
    Difference(
        "what is no batch is the sender's fault", chapter="mutations", label="10 batch='TRUE'", path="fact"
    ),
    Difference("nothing is found", chapter="mutations", label="12 maxNum='-1'", path="fact", ours="22"),
    Difference(
        "the invisible time of a message that is visible again cannot be changed",
        chapter="mutations",
        label="200053 .*=.*",
        path="fact",
        ours="208",
    ),
    Difference(
        "RocketMQ passes over some of its own not-null marks or falls over them; no client leaves these fields out",
        chapter="mutations",
        label=r"(10 (producerGroup|defaultTopic|defaultTopicQueueNums)|11 .*|12 (topic|key)|1[45] .*|303 group"
        r"|308 compareGroup|314 destGroup|370 recallHandle|20005. .*)=None",
        path="fact",
        ours="^(1|29)$",
    ),
    Difference(
        "a route of a topic whose broker is unknown is none", chapter="name server", label="route of it"
    ),
    Difference("a setting that there is not is an error", chapter="name server", label="settings"),
    Difference("RocketMQ falls over a negative count", chapter="finding", label="at most -1"),
    Difference(
        "a client without an id cannot be found again",
        chapter="groups",
        label="heartbeat: (empty object|no client)",
    ),
    Difference(
        "RocketMQ falls over what is missing here; the rest of the heartbeat counts",
        chapter="groups",
        label="heartbeat: (no group name|producer without name|null sets)",
    ),
    Difference("RocketMQ falls over what is missing", chapter="locks", label="queues are null|unlock: empty"),
    Difference("a check of nothing finds nothing right", chapter="groups", label="check of nothing"),
]


def excused(chapter: str, finding: Finding) -> Difference | None:
    """The entry of the table that says why."""
    return next((each for each in KEPT if each.covers(chapter, finding)), None)
