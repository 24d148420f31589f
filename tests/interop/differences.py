"""The intended differences between the answers of mqspark and RocketMQ, each below its reason."""

import re
from collections.abc import Iterator
from dataclasses import dataclass

from tests.interop.differential import Finding


@dataclass(frozen=True, slots=True)
class Difference:
    """Regular expressions: ``chapter``, ``label`` and ``path`` match whole, ``ours`` and ``theirs`` part of a value."""

    reason: str
    chapter: str = ".*"
    label: str = ".*"
    path: str = "code"
    ours: str = ""
    theirs: str = ""
    sometimes: str = ""
    """``yes``: it does not show in every run."""

    def covers(self, chapter: str, finding: Finding) -> bool:
        return bool(
            re.fullmatch(self.chapter, chapter)
            and re.fullmatch(self.label, finding.label, re.DOTALL)
            and re.fullmatch(self.path, finding.path)
            and re.search(self.ours, str(finding.ours))
            and re.search(self.theirs, str(finding.theirs))
        )


def _differences(text: str) -> Iterator[Difference]:
    reason = ""
    for line in text.strip().splitlines():
        if line.startswith(" "):
            yield Difference(reason, **dict(cell.split("=", 1) for cell in re.split("  +", line.strip())))
        else:
            reason = line


KEPT = list(
    _differences(r"""
RocketMQ ignores some of its own @CFNotNull fields, or throws on them; every client sends these fields
    path=code|remark  ours=mandatory field
    chapter=mutations  label=10 (producerGroup|defaultTopic|defaultTopicQueueNums)=None  path=fact  ours=^(1|29)$
    chapter=mutations  label=(11|1[45]|370|20005.) .*=None  path=fact  ours=^(1|29)$
    chapter=mutations  label=(12 (topic|key)|303 group|308 compareGroup|314 destGroup)=None  path=fact  ours=^(1|29)$
an answer names its reason beside the remark; clients pass over fields that they do not know
    path=ext\.mqsparkReason  theirs=None
RocketMQ acknowledges these messages but shows them to no consumer
    chapter=sends  label=system flag 0x(4|c)
only the broker marks a message as committed
    chapter=sends  path=.*sysFlag  ours=^0$  theirs=^8$
only the broker writes to its own topics; RocketMQ accepts client messages in its timer and revive topics
    chapter=wrong sends  label=.*rmq_sys_.*  path=.*
only a broker creates inner batches
    chapter=sends  label=system flag 0x40
each broker samples rates at times of its own
    label=stats  path=body\.topicPutTps  sometimes=yes
a batch with wrong lengths is an invalid message (13); RocketMQ throws (1) or stores a part of it
    chapter=batches|batch queues  label=cut|trailing bytes|wrong inner length|negative length|not a batch
a time after the last message gives the end of the queue, as for other queues; RocketMQ gives its last batch
    chapter=batch queues  label=search .*  path=ext\.offset
RocketMQ delivers a prepared batch before its commit
    chapter=batches  label=prepared batch
a filter that the broker cannot apply is an error; RocketMQ delivers every message
    chapter=pulls  label=tag in lower case|unknown expression type|sql .*
a property string is stored as it was sent; every reader parses it to the same map
    chapter=sends  path=body\[[89]\]\.(size|properties\.[ab])
RocketMQ sets no response code here and says so in the remark
    path=remark  theirs=not set any response code
messages that cannot match are skipped at once, up to the next match
    label=\d with tag A|tag A  path=ext\.(nextBeginOffset|restNum)
an error has a remark
    chapter=pops  label=batch ack of (nothing|an empty list)  path=remark
no queue was read, so no fields of a read are returned
    chapter=pops  label=polling too old  path=ext\.(invisibleTime|popTime|restNum)
a client whose clock is far behind is served; RocketMQ takes its request for one that is too late
    chapter=pops  label=a clock far behind  path=ext\.(invisibleTime|popTime|msgOffsetInfo|startOffsetInfo)
a pop without messages or time is an error
    chapter=pops  label=(0|-1) messages|invisible 0
a delay level with a plus sign is stored as a plain number
    chapter=delays  label=delivered: level plus  path=fact\..*
RocketMQ stores an unknown request mode
    chapter=assignments  label=(set|after) unknown mode  path=.*
no offset is stored for a missing queue: any client could fill the memory with offsets
    chapter=offsets  label=update queue 9  ours=^\(29,
RocketMQ does not check the group of an acknowledgement, not even its length
    chapter=mutations  label=2000(51|53) consumerGroup='a+  path=fact  ours=^26$
a negative offset is invalid
    chapter=offsets  label=update (to|queue) -1
RocketMQ stores invalid queue counts and permissions
    chapter=topics  label=(create|config): (negative queues|permission .*)
RocketMQ stores invalid numbers
    chapter=topics  label=all topics  path=fact
a group without a name is invalid
    chapter=consumer groups  label=create: nothing
times are numbers only; RocketMQ adds them as text
    chapter=consumer groups  label=time span.*  path=body\..*Str
no entries are an empty list
    chapter=consumer groups  label=queue entries beyond  path=body|remark
the queue does not exist
    chapter=consumer groups  label=reset queue 9
a setting that cannot be changed is an error
    chapter=consumer groups  label=change settings (no number|unknown key)
controller, RocksDB and lite topics are not supported, and the remark says so
    chapter=codes  label=code (354|355|90[0-9]|10[01][0-9]|200[1-4]|2000[78][0-9])  path=fact.*
a request without its body is invalid
    chapter=codes  label=code (35|46|200|513)  path=fact.*
an invalid frame closes its connection at once; RocketMQ does not answer
    chapter=frames  label=(no json|a list as header|header type 9|too large)/0  path=outcome
the list has no topics of the RocksDB store
    chapter=frames  label=no fields/0  path=body.topicList
an invalid number is an error, even where RocketMQ ignores it
    chapter=mutations  label=.*=(?!None).*  path=fact  ours=^(1|29|19)$
RocketMQ has no schema registry
    chapter=codes  label=code 2010[12]  path=fact
a body that is no batch is an invalid message
    chapter=mutations  label=10 batch='TRUE'  path=fact
no message is found for a negative count
    chapter=mutations  label=12 maxNum='-1'  path=fact  ours=22
the invisible time of a message that is visible again cannot be changed
    chapter=mutations  label=200053 .*=.*  path=fact  ours=208
a route that names only unknown brokers is no route
    chapter=name server  label=route of it
an unknown setting is an error
    chapter=name server  label=settings
RocketMQ throws on a negative count
    chapter=finding  label=at most -1
a client needs an id
    chapter=groups  label=heartbeat: (empty object|no client)
RocketMQ throws on the missing field; mqspark uses the rest of the heartbeat
    chapter=groups  label=heartbeat: (no group name|producer without name|null sets)
RocketMQ throws on the missing field
    chapter=locks  label=queues are null|unlock: empty
a check without a subscription is refused
    chapter=groups  label=check of nothing
""")
)


def excused(chapter: str, finding: Finding) -> Difference | None:
    """The entry that covers the finding, or None."""
    return next((each for each in KEPT if each.covers(chapter, finding)), None)
