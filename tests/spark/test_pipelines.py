"""Declarative Pipelines: the files that datasource/README.md shows read a topic into tables and write another one."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pyspark
import pytest

from mqspark.message import Message
from tests.spark.test_connect import missing
from tests.support.dev import DevCluster
from tests.support.jvm import spark_options
from tests.support.pages import ADDRESS, blocks
from tests.support.processes import run_to_end
from tests.support.warm_python import warm_python

pytestmark = [
    pytest.mark.spark,
    pytest.mark.skipif(bool(missing()), reason="needs mqspark[connect], as Spark Connect does"),
]


def shown(begin: str) -> str:
    (found,) = [each.text for each in blocks("text") if each.text.startswith(begin)]
    return found


def run(folder: Path) -> None:
    """With little: most of such a run is the starts of Python and Java."""
    (folder / "python").mkdir()
    with warm_python(folder / "python") as environment:
        environment |= {
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
            "JAVA_TOOL_OPTIONS": spark_options(),
        }
        settings = ("spark.ui.enabled=false", "spark.sql.shuffle.partitions=2")
        options = [word for each in settings for word in ("--conf", each)]
        done = run_to_end(
            [f"{Path(pyspark.__file__).parent}/bin/spark-pipelines", *options, "run"],
            env=os.environ | environment,
            cwd=folder,
        )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]


@pytest.mark.slow("a minute: a Spark Connect of its own; test_stream.py and test_write.py are the fast twins")
@pytest.mark.timeout(720)
def test_a_pipeline_reads_and_writes_topics(cluster: DevCluster, topic: str, tmp_path: Path) -> None:
    invoices = cluster.create_topic(f"{topic}-out", 1)
    own = {
        ADDRESS: cluster.nameserver,
        "Orders": topic,
        "Invoices": invoices,
        "/tmp/billing": str(tmp_path / "s"),
    }
    (tmp_path / "transformations").mkdir()
    for name, begin in {
        "spark-pipeline.yml": "name: ",
        "transformations/billing.py": "from pyspark import pip",
    }.items():
        text = shown(begin)
        for word, mine in own.items():
            text = text.replace(word, mine)
        (tmp_path / name).write_text(text)
    cluster.send(topic, 0, [Message.of(topic, str(n), keys=f"k{n}", tags=f"t{n % 2}") for n in range(20)])
    run(tmp_path)
    assert sorted(int(body) for body in cluster.queue_bodies(invoices)[0]) == list(range(20))
    assert sum(offset or 0 for offset in cluster.group_offsets("billing", topic).values()) == 20
    assert {path.name for path in (tmp_path / "spark-warehouse").iterdir()} == {"orders", "orders_by_tag"}
