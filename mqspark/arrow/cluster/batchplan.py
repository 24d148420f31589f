"""What a bounded read of a cluster is: ranges of queues, and the tasks for them. Must not know who runs a task."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from mqspark.arrow.cluster.cluster_queues import ClusterQueues
from mqspark.arrow.cluster.queuechoice import QueueChoice
from mqspark.arrow.cluster.queueranges import QueueRange
from mqspark.arrow.cluster.readtasks import ReadTask
from mqspark.errors import ConfigError


def bounded_ranges(cluster: ClusterQueues, choice: QueueChoice) -> list[QueueRange]:
    """The ranges from start to end, without expired messages. Raises ConfigError, DataLoss."""
    queues = cluster.queues()
    start, end = cluster.starting(queues), cluster.ending(queues)
    if choice.starting.offsets is not None and choice.ending.offsets is not None:
        option = choice.ending.option
        for queue in queues:
            if end[queue] < start[queue]:
                raise ConfigError.of(
                    option,
                    f"queue {queue.queue_id} of {queue.topic} would end at {end[queue]}, before its "
                    f"start {start[queue]}",
                )
    ranges = [QueueRange(queue, start[queue], end[queue]) for queue in queues if end[queue] > start[queue]]
    return cluster.check_not_expired(ranges)


def read_tasks(
    cluster: ClusterQueues,
    parts: Iterable[Sequence[QueueRange]],
    choice: QueueChoice,
    columns: tuple[str, ...],
    *,
    group: str,
    has_spans: bool = False,
) -> list[ReadTask]:
    """One task for each part, with everything that reading it needs."""
    return [
        ReadTask(
            ranges=tuple(part),
            places={each.queue.broker_name: cluster.place(cluster.address(each.queue)) for each in part},
            columns=columns,
            tags=choice.tags,
            sql_filter=choice.sql_filter,
            group=choice.group or group,
            fail_on_data_loss=choice.fail_on_data_loss,
            limits=choice.limits,
            retry_timeout_ms=choice.retry_timeout_ms,
            signing=choice.signing,
            logic=cluster.logic_places(each.queue for each in part),
            has_spans=has_spans,
            nameserver=choice.nameserver,
        )
        for part in parts
    ]
