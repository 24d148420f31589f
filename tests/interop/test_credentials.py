"""Our clients on an unmodified RocketMQ 5.5.0 that asks for credentials and permissions (ACL 2.0)."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from mqspark import (
    AdminClient,
    ConsumeFromWhere,
    Credentials,
    LitePullConsumer,
    Message,
    PopConsumer,
    Producer,
    PushConsumer,
    TransactionProducer,
    TransactionState,
)
from mqspark.client.blocking import BlockingClient
from mqspark.errors import BrokerError
from mqspark.message import MessageQueue
from tests.interop.jars import Jars
from tests.interop.rocketmq import rocketmq_broker, rocketmq_namesrv
from tests.support.clusters import Cluster
from tests.support.inbox import Inbox
from tests.support.waiting import eventually

pytestmark = pytest.mark.slow("a RocketMQ of its own takes half a minute to start")

NO_PERMISSION = 16
FIRST = ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET
SUPER = Credentials("canary-super", "canary-secret-ü")


@pytest.fixture(scope="module")
def guarded(jars: Jars, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A broker with one super user."""
    folder = tmp_path_factory.mktemp("guarded")
    settings = with_users(folder / "auth", (SUPER.access_key, SUPER.secret_key))
    with rocketmq_namesrv(jars, folder / "namesrv") as namesrv:
        with rocketmq_broker(jars, folder / "broker", namesrv, settings=settings) as cluster:
            yield cluster


def with_users(place: Path, user: tuple[str, str]) -> dict[str, object]:
    """Settings of a RocketMQ broker with this super user."""
    of_authentication = "org.apache.rocketmq.auth.authentication.provider"
    of_authorization = "org.apache.rocketmq.auth.authorization.provider"
    return {
        "authenticationEnabled": True,
        "authorizationEnabled": True,
        "authenticationProvider": f"{of_authentication}.DefaultAuthenticationProvider",
        "authorizationProvider": f"{of_authorization}.DefaultAuthorizationProvider",
        "authenticationMetadataProvider": f"{of_authentication}.LocalAuthenticationMetadataProvider",
        "authorizationMetadataProvider": f"{of_authorization}.LocalAuthorizationMetadataProvider",
        "authConfigPath": place,
        "initAuthenticationUser": escaped(json.dumps({"username": user[0], "password": user[1]})),
        "innerClientAuthenticationCredentials": escaped(
            json.dumps({"accessKey": user[0], "secretKey": user[1]})
        ),
    }


def escaped(text: str) -> str:
    """For a Java properties file."""
    return text.replace("\\", "\\\\")


def test_every_client_is_let_in(guarded: Cluster, name: Callable[[str], str]) -> None:
    topic, namesrv = name("Signed"), guarded.namesrv
    bodies = {b"one", b"two", b"b1", b"b2", b"committed"}
    with AdminClient(namesrv, credentials=SUPER) as admin:
        admin.create_topic(topic, queues=2)
        for group in (name("push"), name("pull"), name("pop")):
            admin.create_group(group)
        admin.set_consume_mode(topic, name("pop"), "POP")
        with Producer(namesrv, group=name("p"), credentials=SUPER) as producer:
            producer.send(Message.of(topic, b"one", keys="ключ", tags="A"))
            producer.send_oneway(Message.of(topic, b"two", properties={"größe": "1"}))
            producer.send_batch([Message.of(topic, b"b1"), Message.of(topic, b"b2")])
            producer.send(Message.of(topic, b"large" * 10_000))
        with TransactionProducer(
            namesrv,
            group=name("tx"),
            execute=lambda _: TransactionState.COMMIT,
            check=lambda _: TransactionState.COMMIT,
            credentials=SUPER,
        ) as transactions:
            transactions.send_in_transaction(Message.of(topic, b"committed"))
        pushed, popped = Inbox(), Inbox()
        push = PushConsumer(
            namesrv, group=name("push"), listener=pushed, consume_from=FIRST, credentials=SUPER
        )
        pop = PopConsumer(namesrv, group=name("pop"), listener=popped, consume_from=FIRST, credentials=SUPER)
        for consumer in (push, pop):
            consumer.subscribe(topic)
        with push, pop:
            eventually(lambda: bodies <= {*pushed.bodies()} & {*popped.bodies()}, "all messages", 60)
        lite = LitePullConsumer(namesrv, group=name("pull"), consume_from=FIRST, credentials=SUPER)
        lite.subscribe(topic)
        got: set[bytes] = set()
        with lite:
            eventually(lambda: got.update(m.body for m in lite.poll(500)) or bodies <= got, "a pull", 60)
        assert admin.group_lag(name("push"), topic) == 0
    spark = BlockingClient(namesrv, credentials=SUPER)
    queues = [MessageQueue(topic, guarded.broker_name, number) for number in range(2)]
    assert sum(spark.max_offsets(guarded.broker, queues)) == len(bodies) + 1
    spark.close()


@pytest.mark.parametrize(
    "keys",
    [None, Credentials("nobody", "canary-secret"), Credentials(SUPER.access_key, "canary-wrong")],
    ids=["none", "an unknown user", "a wrong key"],
)
def test_who_is_refused_hears_why_and_shows_no_key(
    guarded: Cluster, name: Callable[[str], str], keys: Credentials | None, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("DEBUG")
    with Producer(guarded.namesrv, group=name("p"), credentials=keys) as producer:
        with pytest.raises(BrokerError) as caught:
            producer.send(Message.of("TBW102x", b"x"))
    assert caught.value.code == NO_PERMISSION
    assert "canary-secret" not in f"{caught.value}{caplog.text}"
    assert "canary-wrong" not in f"{caught.value}{caplog.text}"
