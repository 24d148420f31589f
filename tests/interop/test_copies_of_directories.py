"""Our tools on the directory of a real broker: ``fsck`` finds it sound, and a backup beside the running broker has
all of it, for either broker."""

import json
import signal
from pathlib import Path

import pytest

from tests.interop.directories import SETTINGS, Mover, make_directory
from tests.interop.jars import Jars
from tests.interop.rocketmq import rocketmq_broker
from tests.support.clusters import mqspark_broker
from tests.support.commands import mqspark
from tests.support.processes import free_port


def store(*arguments: object) -> str:
    done = mqspark("store", *map(str, arguments))
    assert done.code == 0, (arguments, done)
    return done.out


@pytest.mark.slow("a real broker starts twice")
@pytest.mark.parametrize("kill", [False, True], ids=["clean stop", "kill"])
def test_a_backup_beside_a_rocketmq_broker(jars: Jars, tmp_path: Path, kill: bool) -> None:
    folder, namesrv, mover = tmp_path / "first", f"127.0.0.1:{free_port()}", Mover()
    root = make_directory(folder)
    stop = signal.SIGKILL if kill else signal.SIGTERM
    with rocketmq_broker(
        jars, folder, namesrv, settings=SETTINGS, registered=False, stop_signal=stop
    ) as broker:
        mover.write(broker, 12, commit=True)
        store("backup", root, "--to", tmp_path / "backup", "-c", folder / "broker.conf")
        mover.write(broker, 12, commit=True)
        view = mover.view(broker)
        store("backup", root, "--to", tmp_path / "backup", "-c", folder / "broker.conf")
    found = json.loads(store("fsck", root, "-c", folder / "broker.conf", "-o", "json"))["findings"]
    assert [one for one in found if one["severity"] != "note"] == []
    store("verify", tmp_path / "backup")
    for kind in ("mqspark", "rocketmq"):
        copy = tmp_path / kind
        store("restore", tmp_path / "backup", "--to", copy / "store")
        with (
            mqspark_broker(copy, namesrv, SETTINGS)
            if kind == "mqspark"
            else rocketmq_broker(jars, copy, namesrv, settings=SETTINGS, registered=False)
        ) as broker:
            assert mover.view(broker).differences(view) == {}, kind
