"""The client's Python in the README works as written."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from mqspark.testing import Broker, Clients, FakeClock

README = Path(__file__).parents[2] / "README.md"
BLOCKS = re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)
CLIENT_BLOCKS = [block for block in BLOCKS if "SparkSession" not in block]


def run_as_test(test: object) -> None:
    assert callable(test)
    clock = FakeClock()
    with Broker(clock=clock) as broker, Clients(broker.namesrv) as clients:
        test(clients, clock)


def test_the_client_blocks(capsys: pytest.CaptureFixture[str]) -> None:
    assert len(CLIENT_BLOCKS) >= 3
    with Broker() as broker:
        names: dict[str, object] = {"__name__": "readme"}
        for block in CLIENT_BLOCKS:
            code = block.replace("127.0.0.1:9876", broker.namesrv)
            exec(compile(code, str(README), "exec"), names)  # noqa: S102 - our own README
    run_as_test(names["test_a_late_order"])
    printed = capsys.readouterr().out
    assert "SEND_OK" in printed
    assert "order-1 b'book'" in printed
