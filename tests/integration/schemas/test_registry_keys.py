"""A registry with users: Spark's source and sink, live tables and Arrow ask it with the keys of a user."""

from __future__ import annotations

import pickle
import threading
from collections.abc import Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa
import pytest
from pyspark.sql.types import LongType, StringType, StructType

import mqspark.arrow
from mqspark import Credentials
from mqspark.arrow import FromRegistry
from mqspark.errors import ConfigError
from mqspark.testing import Cluster
from mqspark_jobs.tables.tabledefs import check_definition, new_definition
from mqspark_jobs.tables.tablerows import payload_options
from pyspark_pymq.options import ReadOptions, WriteOptions
from pyspark_pymq.payloadoptions import PayloadOptions
from pyspark_pymq.typed.typedbodies import TypedBodies
from pyspark_pymq.typed.typedcolumns import TypedRows, columns_of_source
from tests.support.users import add_user, with_users

KEYS = {"accessKey": "spark", "secretKey": "spark-secret"}
OWN = {"schemaAccessKey": "spark", "schemaSecretKey": "spark-secret"}
ROWS = [{"id": 7, "note": "x"}, {"id": 8, "note": None}]
ROOT = Credentials("root", "root-secret")


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster(1, http=True, settings=with_users()) as running:
        add_user(running.http_urls[0], "spark", "Topic:Orders", "Pub", "Sub")
        yield running


@pytest.fixture(scope="module")
def bodies(cluster: Cluster) -> list[bytes]:
    """What the sink makes of rows; it registers their schema."""
    made = written(options_of(cluster, KEYS, registerSchema="true"))
    assert written(options_of(cluster, OWN)) == made
    return made


def options_of(cluster: Cluster, keys: Mapping[str, str], **more: str) -> dict[str, str]:
    away = "http://127.0.0.1:9"
    place = {"nameserver": cluster.namesrv, "topic": "Orders", "payloadFormat": "avro"}
    return {**place, "schemaRegistry": f"{away}, {cluster.http_urls[0]}/", **keys, **more}


def written(options: Mapping[str, str]) -> list[bytes]:
    payload = WriteOptions.parse(options).payload
    assert payload is not None
    schema = StructType().add("id", LongType()).add("note", StringType())
    planned, _ = TypedBodies.planned(payload, schema, (), "Orders")
    columns = pa.schema([("id", pa.int64()), ("note", pa.string())])
    rows = planned.rows([pa.RecordBatch.from_pylist(ROWS, schema=columns)])
    return [each for batch in rows for each in batch["value"].to_pylist()]


def read(payload: PayloadOptions | None, bodies: list[bytes]) -> list[dict[str, Any]]:
    """In a worker, which gets the plan pickled."""
    assert payload is not None
    columns = columns_of_source(payload, ("offset",), "Orders")
    assert isinstance(columns, StructType)
    plan = pickle.dumps(TypedRows.planned(payload, ("offset",), columns, "Orders"))
    rows: TypedRows = pickle.loads(plan)  # noqa: S301 - as Spark hands it to a worker
    batch = pa.RecordBatch.from_pydict({"offset": range(len(bodies)), "value": bodies})
    found = list(rows.rows([batch.select(list(rows.columns))]))
    return [{"id": row["id"], "note": row["note"]} for each in found for row in each.to_pylist()]


@pytest.fixture
def keys_file(tmp_path: Path) -> str:
    file = tmp_path / "keys"
    file.write_text("accessKey: spark\nsecretKey: spark-secret\n")
    file.chmod(0o600)
    return str(file)


def test_a_source_gives_the_registry_the_keys_of_the_read_or_its_own(
    cluster: Cluster, bodies: list[bytes], keys_file: str
) -> None:
    of_files = ({"credentialsFile": keys_file}, {"schemaCredentialsFile": keys_file})
    for keys in (KEYS, OWN, *of_files, {**OWN, "accessKey": "other", "secretKey": "s"}):
        payload = ReadOptions.parse(options_of(cluster, keys), streaming=False).payload
        assert "secret" not in repr(payload)
        assert read(payload, bodies) == ROWS
    wrong = {**KEYS, "schemaAccessKey": "spark", "schemaSecretKey": "wrong-secret"}
    for keys, says in (
        ({}, "40101"),
        ({**KEYS, "schemaCredentials": "none"}, "40101"),
        (wrong, "40301|40101"),
    ):
        payload = ReadOptions.parse(options_of(cluster, keys), streaming=False).payload
        with pytest.raises(ConfigError, match=rf"^schemaRegistry: Orders-value: .*({says})") as refused:
            read(payload, bodies)
        assert "wrong-secret" not in str(refused.value)


def test_a_live_table_gives_them_from_a_file(cluster: Cluster, bodies: list[bytes], keys_file: str) -> None:
    options = options_of(cluster, {"credentialsFile": keys_file})
    own = {name: options[name] for name in ("payloadFormat", "schemaRegistry", "credentialsFile")}

    def defined(more: Mapping[str, str]) -> Any:
        return new_definition(
            "orders", "Orders", cluster.namesrv, "/t", starts={}, is_upsert=False, options={**own, **more}
        )

    check_definition(defined({}))
    assert read(payload_options(defined({})), bodies) == ROWS
    for name in OWN:
        with pytest.raises(ConfigError, match=f"^{name}: is not an option of a table"):
            check_definition(defined({name: "x"}))


def test_arrow_gives_them(
    cluster: Cluster, bodies: list[bytes], monkeypatch: pytest.MonkeyPatch, keys_file: str
) -> None:
    table = pa.table({"value": bodies})
    assert mqspark.arrow.write(cluster.namesrv, "Orders", table, credentials=ROOT) == 2
    keys = Credentials("spark", "spark-secret")
    given = FromRegistry(cluster.http_urls[0], credentials=keys)
    monkeypatch.setenv("MQSPARK_CREDENTIALS_FILE", keys_file)
    for schema in (given, FromRegistry(cluster.http_urls[0])):
        found = mqspark.arrow.read(cluster.namesrv, "Orders", schema=schema, columns=[], credentials=ROOT)
        assert sorted(found.read_all().to_pylist(), key=lambda row: int(row["id"])) == ROWS


def test_keys_do_not_follow_a_redirect() -> None:
    class Elsewhere(BaseHTTPRequestHandler):
        came: ClassVar[list[str]] = []

        def do_GET(self) -> None:
            self.came.append(self.path)
            self.send_response(302)
            self.send_header("Location", f"http://localhost:{self.server.server_address[1]}/stolen")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Elsewhere) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        place = {"nameserver": "127.0.0.1:9", "topic": "Orders", "payloadFormat": "avro", **KEYS}
        place["schemaRegistry"] = f"http://127.0.0.1:{server.server_address[1]}"
        payload = ReadOptions.parse(place, streaming=False).payload
        with pytest.raises(ConfigError, match=r"^schemaRegistry: Orders-value: .*302"):
            read(payload, [])
        server.shutdown()
        thread.join()
    assert Elsewhere.came == ["/subjects/Orders-value/versions/latest"]
