"""What tools ask a consumer through its broker: to consume one message, to show its threads, to tell about itself."""

from __future__ import annotations

import queue
import subprocess
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest

from mqspark.client.sync import AdminClient
from mqspark.protocol.bodies.admin_bodies import ConsumeMessageDirectlyResult, ConsumerRunningInfo
from mqspark.protocol.bodies.body import decode_body
from mqspark.protocol.codes import RequestCode, ResponseCode
from mqspark.protocol.versions import version_number
from mqspark.testing import Broker
from mqspark_server.proxy import messaging_pb2 as pb
from tests.support.grpcclients import BareCaller, bare_caller, message, resource, stored_messages
from tests.support.processes import mqspark_command, process, ready_line, set_options
from tests.support.remoting import Reply, ask
from tests.support.waiting import eventually

Answer = Callable[[pb.TelemetryCommand], pb.TelemetryCommand]


@pytest.fixture(scope="module", params=["broker", "proxy"])
def served(
    request: pytest.FixtureRequest, broker: Broker, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[str | None]:
    """By the broker itself; by a proxy before it."""
    if request.param == "broker":
        yield broker.grpc_address
        return
    log = tmp_path_factory.mktemp("proxy") / "log"
    command = [*mqspark_command(), "proxy", "run", "-n", broker.namesrv]
    command += set_options({"listenPort": 0, "bindAddress": "127.0.0.1"})
    with process(command, log, stdout=subprocess.PIPE) as child:
        yield ready_line(child, log)["grpc"]


class Member:
    """A push consumer of a group that answers commands with ``answer``."""

    def __init__(self, caller: BareCaller, group: str, topic: str, answer: Answer) -> None:
        self.client_id, self._answer = caller.metadata["x-mq-client-id"], answer
        self._said: queue.Queue[pb.TelemetryCommand | None] = queue.Queue()
        self._said.put(pb.TelemetryCommand(settings=_settings(group, topic)))
        self.stream = caller.Telemetry(iter(self._said.get, None), timeout=60)
        assert next(self.stream).settings.subscription.group.name == group

    def answer_one(self) -> pb.TelemetryCommand:
        command: pb.TelemetryCommand = next(self.stream)
        self._said.put(self._answer(command))
        return command

    def leave(self) -> None:
        self._said.put(None)
        self.stream.cancel()


def _settings(group: str, topic: str) -> pb.Settings:
    entry = pb.SubscriptionEntry(
        topic=resource(topic), expression=pb.FilterExpression(type=pb.TAG, expression="A || B")
    )
    made = pb.Settings(
        client_type=pb.PUSH_CONSUMER,
        subscription=pb.Subscription(group=resource(group), subscriptions=[entry]),
        user_agent=pb.UA(language=pb.RUST, version="5.1.2", platform="a platform", hostname="a host"),
    )
    made.request_timeout.FromMilliseconds(3_500)
    return made


@contextmanager
def member(address: str | None, group: str, topic: str, answer: Answer, **metadata: str) -> Iterator[Member]:
    with bare_caller(address, **metadata) as caller:
        made = Member(caller, group, topic, answer)
        try:
            yield made
        finally:
            made.leave()


def relayed(one: Member, ask_broker: Callable[[], Reply]) -> tuple[Reply, pb.TelemetryCommand]:
    """What the tool got, and what the member was asked."""
    with ThreadPoolExecutor(1) as pool:
        reply = pool.submit(ask_broker)
        command = one.answer_one()
        return reply.result(20), command


def stored_message_id(broker: Broker, topic: str) -> str:
    with bare_caller(broker.grpc_address) as caller:
        sent = caller.SendMessage(
            pb.SendMessageRequest(messages=[message(topic, b"look at me", tag="A", keys=["k"])])
        )
    assert sent.status.code == pb.OK
    (stored,) = eventually(lambda: stored_messages(broker, topic))
    return stored.offset_message_id


def _verified(code: pb.Code) -> Answer:
    return lambda asked: pb.TelemetryCommand(
        status=pb.Status(code=code, message="the client's reason"),
        verify_message_result=pb.VerifyMessageResult(nonce=asked.verify_message_command.nonce),
    )


def test_a_message_is_consumed_directly(
    broker: Broker, served: str | None, topic_of_type: Callable[..., str], request: pytest.FixtureRequest
) -> None:
    where = request.node.callspec.id
    topic, group = topic_of_type(f"direct-{where}"), f"direct-readers-{where}"
    offset_id = stored_message_id(broker, topic)
    outcomes = {
        pb.OK: "CR_SUCCESS",
        pb.FAILED_TO_CONSUME_MESSAGE: "CR_LATER",
        pb.MESSAGE_CORRUPTED: "CR_RETURN_NULL",
        pb.VERIFY_FIFO_MESSAGE_UNSUPPORTED: ResponseCode.NO_PERMISSION,
        pb.UNSUPPORTED: ResponseCode.SYSTEM_ERROR,
    }
    for code, expected in outcomes.items():
        with member(served, group, topic, _verified(code)) as one:
            reply, asked = relayed(
                one,
                lambda client_id=one.client_id: ask(
                    broker.address, RequestCode.CONSUME_MESSAGE_DIRECTLY,
                    consumerGroup=group, clientId=client_id, msgId=offset_id, topic=topic,
                ),
            )  # fmt: skip
        given = asked.verify_message_command.message
        assert (given.body, given.system_properties.tag, list(given.system_properties.keys)) == (
            b"look at me", "A", ["k"],
        )  # fmt: skip
        if isinstance(expected, str):
            result = decode_body(ConsumeMessageDirectlyResult, reply.body)
            assert (reply.code, result.consume_result, result.remark) == (0, expected, "from gRPC client")
        else:
            assert reply.code == expected
            assert "verify" in (reply.remark or "")


def running_info(broker: Broker, group: str, client_id: str, *, stacks: bool) -> Reply:
    return ask(
        broker.address, RequestCode.GET_CONSUMER_RUNNING_INFO,
        consumerGroup=group, clientId=client_id, jstackEnable="true" if stacks else "false",
    )  # fmt: skip


def _stacks(asked: pb.TelemetryCommand) -> pb.TelemetryCommand:
    nonce = asked.print_thread_stack_trace_command.nonce
    return pb.TelemetryCommand(
        status=pb.Status(code=pb.OK),
        thread_stack_trace=pb.ThreadStackTrace(nonce=nonce, thread_stack_trace="main at line 1"),
    )


def test_a_consumer_tells_about_itself_and_shows_its_threads(
    broker: Broker, served: str | None, topic_of_type: Callable[..., str], request: pytest.FixtureRequest
) -> None:
    where = request.node.callspec.id
    topic, group = topic_of_type(f"told-{where}"), f"told-readers-{where}"
    with member(served, group, topic, _stacks, x_mq_language="RUST", x_mq_client_version="5.1.2") as one:
        reply = running_info(broker, group, one.client_id, stacks=False)
        assert reply.code == 0, reply
        told = decode_body(ConsumerRunningInfo, reply.body)
        shown, asked = relayed(one, lambda: running_info(broker, group, one.client_id, stacks=True))
        with AdminClient(broker.namesrv) as admin:
            (connection,) = admin.group_members(group).connection_set
    assert told.jstack is None
    assert [(each.topic, each.sub_string) for each in told.subscription_set] == [(topic, "A || B")]
    properties = told.properties
    assert {name: properties[name] for name in ("PROP_CONSUME_TYPE", "PROP_CONSUMEORDERLY")} == {
        "PROP_CONSUME_TYPE": "CONSUME_PASSIVELY",
        "PROP_CONSUMEORDERLY": "false",
    }
    assert int(properties["PROP_CONSUMER_START_TIMESTAMP"]) > 1_600_000_000_000
    assert (properties["clientType"], properties["language"], properties["PROP_CLIENT_VERSION"]) == (
        "PUSH_CONSUMER", "RUST", "5.1.2",
    )  # fmt: skip
    assert (properties["requestTimeout"], properties["hostname"]) == ("3.5 s", "a host")
    assert asked.WhichOneof("command") == "print_thread_stack_trace_command"
    assert decode_body(ConsumerRunningInfo, shown.body).jstack == "main at line 1"
    assert (connection.language, connection.version) == ("RUST", version_number("V5_1_2"))
