"""A consumer in a process of its own, to be killed:
``python -m tests.integration.consumers.chaos_member NAMESRV GROUP TOPIC FILE [ordered]``.

Appends a line ``broker queue-id offset`` to FILE for each message, before the message counts as consumed; every line
is one write, so many members may share a file, and its order is the order of consumption. Prints READY when it has
started. Stops cleanly when its standard input ends.
"""

from __future__ import annotations

import asyncio
import os
import sys

from mqspark.aio import ClientOptions, ConsumeFromWhere, MessageExt, PushConsumer


async def consume(namesrv: str, group: str, topic: str, file: int, *, ordered: bool) -> None:
    async def listen(message: MessageExt) -> None:
        await asyncio.sleep(0.001)
        os.write(file, f"{message.queue.broker_name} {message.queue_id} {message.queue_offset}\n".encode())

    consumer = PushConsumer(
        namesrv,
        group=group,
        listener=listen,
        ordered=ordered,
        consume_from=ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET,
        persist_interval_ms=200,
        rebalance_interval_ms=1_000,
        lock_interval_ms=500,
        options=ClientOptions(route_interval_ms=1_000, heartbeat_interval_ms=1_000),
    )
    consumer.subscribe(topic)
    async with consumer:
        print("READY", flush=True)
        await asyncio.to_thread(sys.stdin.read)


def main() -> None:
    namesrv, group, topic, path, *more = sys.argv[1:]
    file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    try:
        asyncio.run(consume(namesrv, group, topic, file, ordered=bool(more)))
    finally:
        os.close(file)


if __name__ == "__main__":
    main()
