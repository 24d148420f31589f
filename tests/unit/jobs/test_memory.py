"""What a task of a job needs does not grow with the log: run in a process that may not have as much memory as the log.

The limit is on anonymous memory (RLIMIT_DATA), so mapped segments do not count.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from mqspark.store import MessageStore
from tests.support.processes import run_to_end
from tests.support.store_tools import make_store, put

LOG_BYTES = 384 << 20
ROOM_BYTES = 256 << 20

LIMITED = """
import resource, sys
from pathlib import Path
import numpy, pyarrow, pyarrow.compute, pyarrow.parquet
import mqspark_jobs.archive, mqspark_jobs.compact, mqspark_jobs.rebuild_index, pyspark_pymq.reading.storeread
pyarrow.set_cpu_count(1)
pyarrow.set_memory_pool(pyarrow.system_memory_pool())
root, room = Path(sys.argv[1]), int(sys.argv[2])
status = Path("/proc/self/status").read_text()
used = next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmData")) * 1024
resource.setrlimit(resource.RLIMIT_DATA, (used + room, used + room))
"""

ARCHIVE = """
from mqspark_jobs.archive import UnitTask, archive_unit, plan_units
from mqspark.arrow.files.logfiles import list_log
(unit,) = plan_units(list_log(str(root / "commitlog")), 0, None)
done = archive_unit(UnitTask(unit, "b", None, str(root / "table")))
print(done.manifest.rows, sum(file.rows for file in done.files))
"""

REBUILD = """
from mqspark_jobs.job import ProgressLine
from mqspark_jobs.rebuild_index import RebuildOptions, run
from tests.support.jobs_tools import InProcessSpark
print(run(RebuildOptions(root), InProcessSpark(), ProgressLine("rebuild-index"))["records"])
"""

COMPACT = """
from mqspark_jobs.compact import CompactOptions, _plans, read_keys, write_generations
import pyarrow as pa
plans = _plans(CompactOptions(root), ["T"])
rows = sum(
    batch.num_rows
    for number, plan in enumerate(plans)
    for low, high in plan.pieces
    for batch in read_keys(str(root), None, plan, number, low, high)
)
def asked():
    for number, plan in enumerate(plans):
        for low in range(0, plan.end, 10_000):
            offsets = list(range(low, min(low + 10_000, plan.end)))
            yield pa.RecordBatch.from_pydict({"queue": [number] * len(offsets), "offset": offsets})
written = pa.Table.from_batches(list(write_generations(str(root), None, plans, asked()))).to_pylist()
print(rows, sum(row["messages"] for row in written))
"""


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, int]:
    """One segment of 384 MiB, with bodies of 4 KiB and some of 2 MiB; how many messages."""
    root = tmp_path_factory.mktemp("large")
    own: MessageStore = make_store(
        root, mapped_file_size_commit_log=LOG_BYTES + (16 << 20), mapped_file_size_consume_queue=6_000_000
    )
    own.open()
    count = 0
    while own.log.position < LOG_BYTES:
        body = bytes(2 << 20) if count % 1000 == 999 else b"x" * 4096
        properties = b"KEYS\x01k%d\x02UNIQ_KEY\x01u%032d\x02" % (count % 5000, count)
        put(own, "T", count % 2, body, properties, born_timestamp_ms=1_700_000_000_000)
        count += 1
        if count % 64 == 0:
            own.pipeline.commit()
    own.pipeline.commit()
    own.close()
    return root, count


@pytest.mark.slow("needs a store larger than memory may be")
@pytest.mark.parametrize(
    ("code", "counts"),
    [(ARCHIVE, 2), (REBUILD, 1), (COMPACT, 2)],
    ids=["archive", "rebuild-index", "compact"],
)
def test_a_task_needs_less_than_its_log(store: tuple[Path, int], code: str, counts: int) -> None:
    root, count = store
    command = [sys.executable, "-c", LIMITED + code, str(root), str(ROOM_BYTES)]
    done = run_to_end(command)
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.split() == [str(count)] * counts


@pytest.mark.slow("needs a store larger than memory may be")
def test_the_limit_is_one(store: tuple[Path, int]) -> None:
    root, _ = store
    command = [sys.executable, "-c", LIMITED + "bytearray(300 << 20)", str(root), str(ROOM_BYTES)]
    done = run_to_end(command)
    assert "MemoryError" in done.stderr
