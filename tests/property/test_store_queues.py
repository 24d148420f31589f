"""Queues of every kind in one log: whatever is put and however the process ends, every message keeps its offset."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from mqspark.message import Message
from mqspark.record.batchitems import encode_batch
from tests.support.draws import draws
from tests.support.store_tools import QuickFiles, checkpoint, crash, drain, flush, opened, pending, put

SETTINGS = {
    "mapper_file_size_batch_consume_queue": 4 * 46,
    "mapped_file_size_consume_queue_ext": 100,
    "enable_lmq": True,
    "enable_multi_dispatch": True,
}
LIGHT = ("%LMQ%a", "%LMQ%b")

STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("plain"), st.integers(1, 3)),
        st.tuples(st.just("batch"), st.integers(1, 4)),
        st.tuples(st.just("single"), st.integers(1, 2)),
        st.tuples(st.just("light"), st.sampled_from([(LIGHT[0],), (LIGHT[1],), LIGHT])),
        st.tuples(st.sampled_from(["flush", "checkpoint", "close", "kill", "lose"]), st.just(0)),
    ),
    max_size=40,
)


@settings(max_examples=draws(60))
@given(steps=STEPS, ext=st.booleans(), sealed=st.booleans())
def test_every_kind_of_queue(steps: list[tuple[str, object]], ext: bool, sealed: bool) -> None:
    root = Path(tempfile.mkdtemp())
    more = {**SETTINGS, "enable_consume_queue_ext": ext, "enabled_append_prop_crc": sealed}
    expected: dict[str, list[bytes]] = {"T": [], "B": [], LIGHT[0]: [], LIGHT[1]: []}
    number = 0
    (root / "config").mkdir()
    (root / "config/topics.json").write_text(
        '{"topicConfigTable":{"B":{"attributes":{"queue.type":"BatchCQ"},"topicName":"B"}}}'
    )
    try:
        store = opened(root, None, QuickFiles(), **more)
        store.appender.use_batch_queues("B")
        put(store, "B", 0, b"first")
        expected["B"].append(b"first")
        for kind, argument in steps:
            if kind in ("plain", "single"):
                topic = "T" if kind == "plain" else "B"
                for _ in range(int(argument)):  # type: ignore[call-overload]
                    number += 1
                    body = b"%d" % number
                    assert put(store, topic, 0, body, b"TAGS\x01x\x02")[0] == len(expected[topic])
                    expected[topic].append(body)
            elif kind == "batch":
                bodies = [b"%d.%d" % (number, index) for index in range(int(argument))]  # type: ignore[call-overload]
                body = encode_batch([Message(topic="B", body=one) for one in bodies])
                base, _, _ = store.appender.put_inner_batch(pending("B", 0, body), len(bodies))
                assert base == len(expected["B"])
                expected["B"] += bodies
            elif kind == "light":
                number += 1
                names: tuple[str, ...] = argument  # type: ignore[assignment]
                properties = f"INNER_MULTI_DISPATCH\x01{','.join(names)}\x02".encode()
                store.appender.put_dispatched(
                    names,
                    pending("T", 0, b"l%d" % number, properties),
                )
                for topic in ("T", *names):
                    expected[topic].append(b"l%d" % number)
            elif kind == "flush":
                flush(store)
            elif kind == "checkpoint":
                flush(store)
                checkpoint(store)
            else:
                flush(store)
                if kind == "close":
                    store.close()
                else:
                    crash(store)
                if kind == "lose":
                    for name in ("consumequeue", "batchconsumequeue", "consumequeue_ext"):
                        shutil.rmtree(root / name, ignore_errors=True)
                store = opened(root, None, QuickFiles(), **more)
                store.appender.use_batch_queues("B")
                for topic, bodies in expected.items():
                    assert [message.body for message in drain(store, topic, 0)] == bodies, (kind, topic)
        flush(store)
        for topic, bodies in expected.items():
            assert [message.body for message in drain(store, topic, 0)] == bodies, topic
            assert store.offsets.max_offset(topic, 0) == len(bodies)
        store.close()
    finally:
        shutil.rmtree(root)
