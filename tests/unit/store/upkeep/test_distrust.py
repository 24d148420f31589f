"""What a start does before it repairs queues."""

from __future__ import annotations

from os import PathLike, fspath
from pathlib import Path

from mqspark.store.disk.files import OsFiles
from tests.support.store_tools import checkpoint, make_store, put_synced


class Noting(OsFiles):
    def __init__(self) -> None:
        super().__init__()
        self.touched: list[Path] = []

    def open(self, path: str | PathLike[str], *, create: bool = False) -> int:
        self.touched.append(Path(fspath(path)))
        return super().open(path, create=create)

    def remove(self, path: str | PathLike[str]) -> None:
        self.touched.append(Path(fspath(path)))
        super().remove(path)


def test_a_kill_leaves_either_what_led_to_the_repair_or_no_trust_in_the_checkpoint(tmp_path: Path) -> None:
    files = Noting()
    store = make_store(tmp_path, files=files)
    store.open()
    put_synced(store, "T", 0, b"x")
    checkpoint(store)
    assert store.paths.ends.exists()
    files.touched.clear()
    store.upkeep.checkpoints.distrust()
    assert not store.paths.ends.exists()
    assert files.touched[-1] == store.paths.ends
    assert store.paths.checkpoint in files.touched
    assert store.upkeep.checkpoints.load().position == -1
    store.close()
