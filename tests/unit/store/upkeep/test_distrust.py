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


def test_a_kill_leaves_no_trust_in_the_checkpoint_of_a_store_that_is_repaired(tmp_path: Path) -> None:
    files = Noting()
    store = make_store(tmp_path, files=files)
    store.open()
    put_synced(store, "T", 0, b"x")
    checkpoint(store)
    assert store.paths.mark.exists()
    files.touched.clear()
    store.upkeep.checkpoints.distrust()
    assert store.paths.ends.exists(), "no offset before these is assigned again"
    assert not store.paths.mark.exists()
    assert files.touched == [store.paths.abort, store.paths.checkpoint, store.paths.mark]
    found = store.upkeep.checkpoints.load()
    assert (found.position, found.is_distrusted) == (-1, True)
    store.close()
