"""What a broker says of itself in its log, and how often."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.broker_kit import SEND, Bench, send_ext


def test_positions_are_printed_every_minute_while_something_happens(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    bench = Bench(tmp_path, sync=True)
    caplog.set_level("INFO", "mqspark.broker.prints")

    def printed() -> list[str]:
        bench.broker.tick()
        lines = [record.getMessage() for record in caplog.records if record.name == "mqspark.broker.prints"]
        caplog.clear()
        return lines

    bench.peer().ask(SEND, send_ext(), b"x")
    assert printed() == []
    bench.clock.advance(10_000)
    end = bench.store.log.position
    settled = f"the log ends at {end}: 0 bytes are not synced, the queues are 0 bytes behind it"
    assert printed() == [settled]
    bench.clock.advance(60_000)
    assert printed() == []  # nothing has happened
    bench.peer().give(SEND, send_ext(), b"x")
    bench.broker.turn()  # written, not synced
    bench.clock.advance(60_000)
    behind = bench.store.log.position - end
    assert printed() == [
        f"the log ends at {end + behind}: {behind} bytes are not synced, the queues are {behind} bytes behind it"
    ]


def test_a_slave_that_is_behind_is_printed(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "mqspark.broker.prints")
    bench.peer().ask(SEND, send_ext(), b"x")
    replica = bench.broker.role.replicas.connect("10.0.0.2:1")
    replica.received(bytes(8))
    bench.later(10_000)
    end = bench.store.log.position
    assert f"the slave that is farthest behind lacks {end} bytes of the log" in caplog.text


def test_watermarks_are_printed_every_second_for_those_who_debug(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    bench = Bench(tmp_path, sync=True)
    caplog.set_level("INFO", "mqspark.watermark")
    bench.later(10_000)
    assert "[WATERMARK]" not in caplog.text
    caplog.set_level("DEBUG", "mqspark.watermark")
    bench.peer().give(SEND, send_ext(), b"x")
    bench.broker.turn()
    bench.later(1_000)
    assert "[WATERMARK] sends: 1 wait, the first one for 1000 ms" in caplog.text
    caplog.clear()
    bench.broker.tick()
    assert "[WATERMARK]" not in caplog.text
