"""The records of a CommitLog as rows, without a broker.

Every valid record is a row, in the log's order within a segment: records of all topics, including delayed and
half messages (distinguished by ``sysFlag`` and ``topic``). With fail_on_data_loss damage is an error; otherwise it is
skipped, as in the store's recovery. Must not need the store's lock: a segment that grows meanwhile is read as far as
it is valid then.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from mqspark.arrow.cluster.queuechoice import StoreChoice
from mqspark.arrow.cluster.readtasks import LOG_BYTES
from mqspark.arrow.files.logfiles import LogFile, list_log, local_copy, segment_bytes_of
from mqspark.errors import ConfigError, StoreCorrupt

if TYPE_CHECKING:
    import pyarrow as pa

    from mqspark.arrow.records.records import Ints


@dataclass(frozen=True, slots=True)
class SegmentRange:
    """The range [low, high) of the log, within one segment."""

    file: LogFile
    segment_bytes: int
    low: int
    high: int


def plan_segments(log: list[LogFile], low: int, high: int | None) -> list[SegmentRange]:
    """The segments that overlap [low, high). Raises ConfigError if the log starts after ``low``."""
    size = segment_bytes_of(log)
    if log and 0 < low < log[0].start:
        raise ConfigError.of("startingPosition", f"the log begins at {log[0].start}, behind {low}")
    end = log[-1].start + size if log and high is None else high or 0
    return [
        SegmentRange(file, size, max(low, file.start), min(end, file.start + size))
        for file in log
        if file.start + size > low and file.start < end
    ]


def segments_of(choice: StoreChoice) -> list[SegmentRange]:
    """Raises ConfigError, StoreCorrupt."""
    try:
        log = list_log(choice.log)
    except FileNotFoundError:
        raise ConfigError.of(
            "store",
            f"{choice.log} does not exist; give storePathRootDir, or the segments' directory as commitLog",
        ) from None
    ranges = plan_segments(log, choice.starting_position, choice.ending_position)
    if choice.fail_on_data_loss:
        _check_whole(ranges)
    return ranges


def _check_whole(ranges: list[SegmentRange]) -> None:
    """Raises StoreCorrupt if a segment between others is missing or too short, as in a copy that is not complete."""
    for each, following in itertools.pairwise(ranges):
        end = each.file.start + each.file.length
        if end < following.file.start:
            raise StoreCorrupt(
                f"the log has nothing from {end} to {following.file.start}; failOnDataLoss=false steps over it",
                path=each.file.url,
                offset=end,
            )


def _pieces(positions: Ints) -> Iterator[Ints]:
    """Positions split into pieces of about one batch's bytes of log."""
    first = 0
    while first < len(positions):
        last = max(first + 1, int(positions.searchsorted(positions[first] + LOG_BYTES)))
        yield positions[first:last]
        first = last


def read_segment(
    partition: SegmentRange, options: StoreChoice, columns: tuple[str, ...]
) -> Iterator[pa.RecordBatch]:
    """Runs in a worker. Raises StoreCorrupt for damage under fail_on_data_loss."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.compute as pc

    from mqspark.arrow.records.decode import Decoder
    from mqspark.arrow.records.records import Records, unwrap_inner_batches
    from mqspark.store.recovery.rebuild import SegmentRecords

    strict = options.fail_on_data_loss
    limits = options.limits
    decoder = Decoder(columns, topic=None, broker=options.broker, queue_id=None, strict=strict, limits=limits)
    topics_of = Decoder(("topic",), topic=None, broker="", queue_id=None)
    wanted = pa.array(options.topics, pa.string())
    with local_copy(partition.file) as path:
        runs = SegmentRecords(path, partition.file.start, partition.segment_bytes, guarded=True)
        records = Records(runs.view)
        for run in runs.between(partition.low, partition.high):
            for positions in _pieces(run):
                for here, at in unwrap_inner_batches(records, positions, strict=strict, limits=limits):
                    if options.topics:
                        names = topics_of(here, at).column(0)
                        at = at[pc.is_in(names, value_set=wanted).to_numpy(zero_copy_only=False)]
                    if len(at):
                        for batch in decoder.batches(here, np.ascontiguousarray(at)):
                            runs.check()
                            yield batch
        runs.check()
        if runs.damaged and strict:
            low, high = runs.damaged[0]
            raise StoreCorrupt(
                f"the log is damaged from {low} to {high}; failOnDataLoss=false steps over it",
                path=partition.file.url,
                offset=low,
            )
