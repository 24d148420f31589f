"""An archive without Spark: the files and manifests come from the job's own tasks, Delta's log is written by hand."""

from __future__ import annotations

import json
import urllib.parse
from pathlib import Path

from mqspark.arrow.cluster.archives import application
from mqspark.arrow.files.locations import join, read_bytes, write_bytes
from mqspark.arrow.files.logfiles import find_log
from mqspark.store.disk.files import OsFiles
from mqspark.store.disk.notes.archivednote import ARCHIVED, decode_archived
from mqspark_jobs.archive import UnitTask, archive_unit, plan_units

PROTOCOL = {"protocol": {"minReaderVersion": 1, "minWriterVersion": 2}}


def archived_mark(store: str) -> int:
    """The position up to which a local store is archived; 0 if it is not."""
    return decode_archived(OsFiles().read(Path(store) / ARCHIVED))


def archive_log(store: Path, url: str, broker: str = "dev", *, low: int = 0, end: int | None = None) -> int:
    """Archive the log from ``low`` on; ``end``: a position at which a record begins. Returns where the archive ends."""
    log = find_log(str(store / "commitlog"))
    adds, manifests, high = [], [], low
    for unit in plan_units(log, low, end, cut_at=[]):
        done = archive_unit(UnitTask(unit, broker, None, url))
        if done.manifest.high <= done.manifest.low:
            continue
        manifests.append(done.manifest)
        high = done.manifest.high
        adds += [
            {
                "add": {
                    "path": urllib.parse.quote(file.path, safe="/="),
                    "partitionValues": {"topic": file.topic, "date": file.date},
                    "size": file.size_bytes,
                    "modificationTime": 0,
                    "dataChange": True,
                    "stats": json.dumps(
                        {"numRecords": file.rows, "minValues": file.lowest, "maxValues": file.highest}
                    ),
                }
            }
            for file in done.files
        ]
    version = 0
    while True:
        name = join(url, "_delta_log", f"{version:020d}.json")
        try:
            read_bytes(name)
        except FileNotFoundError:
            break
        version += 1
    transaction = {"txn": {"appId": application(broker), "version": high, "lastUpdated": 0}}
    actions = [*([] if version else [PROTOCOL]), transaction, *adds]
    write_bytes(name, "\n".join(map(json.dumps, actions)).encode() + b"\n")
    for manifest in manifests:  # last, as in the job: a broker may read the archive meanwhile
        manifest.save(url)
    return high
