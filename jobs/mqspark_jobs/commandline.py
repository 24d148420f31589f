"""The command line of the jobs: ``mqspark job run NAME ...`` and ``spark-submit jobs/run.py NAME ...``.

Standard output gets one line of JSON, the summary (with ``ok`` and, when it failed, ``error``); the exit code is
0 on success, 1 on failure, 2 for invalid arguments.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import io
import json
import os
import sys
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO, cast

from mqspark.base.config import parse_addresses
from mqspark.errors import ConfigError, MQError
from mqspark_jobs.job import ProgressLine, Summary, relevant_text, write_metrics

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from mqspark_jobs.tables.tabledefs import TableDirectory

JOBS = ("rebuild-index", "archive", "compact", "redeliver", "tables", "table-upkeep", "table-verify")

DELTA_VERSION = "4.4.0"
"""The version of delta-spark in pyproject.toml; its jars are on Maven Central."""

Run = Callable[["SparkSession", ProgressLine], Summary]


def main(arguments: Sequence[str], *, spark: SparkSession | None = None) -> int:
    """Run one job; returns the exit code. ``spark``: a session to use, which then stays open."""
    try:
        options = _parser().parse_args(list(arguments))
    except SystemExit as stop:
        return int(stop.code or 0)
    summary: Summary = {"job": options.job, "ok": False}
    code = 1
    session = spark
    errors: TextIO = sys.stderr
    try:
        if options.metrics is not None and not options.metrics.parent.is_dir():
            raise ConfigError(f"--metrics: {options.metrics.parent} is not a directory", key="metrics")
        job: Run = options.prepare(options)
        session = spark if spark is not None else _session(options)
        errors = _error_stream(session)
        summary = {"ok": True, **job(session, ProgressLine(options.job, errors))}
        code = 0
    except ConfigError as error:
        summary["error"], code = str(error), 2
    except (MQError, OSError) as error:
        summary["error"] = str(error)
    except Exception as error:
        summary["error"] = relevant_text(error)
        if not type(error).__module__.startswith(("pyspark.", "py4j.")):
            errors.write(traceback.format_exc())
            errors.flush()
    finally:
        if spark is None and session is not None:
            session.stop()
    if options.metrics is not None and options.metrics.parent.is_dir():
        write_metrics(options.metrics, summary)
    sys.stdout.write(json.dumps(summary, sort_keys=True) + "\n")
    sys.stdout.flush()
    return code


def check_arguments(arguments: Sequence[str]) -> None:
    """Raises ConfigError unless the arguments are a job and valid options of it. Reads no file."""
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said), contextlib.redirect_stdout(said):
            _parser().parse_args(list(arguments))
    except SystemExit:
        text = said.getvalue().strip().rpartition("\n")[2]
        raise ConfigError.of("options", f"{text.partition('error: ')[2] or text}") from None


class _JvmErrors:
    """The standard error of the JVM. spark-submit merges a Python program's standard output and standard error into its
    own standard output."""

    def __init__(self, session: SparkSession) -> None:
        jvm: Any = session._jvm
        self._stream = jvm.java.lang.System.err

    def write(self, text: str) -> int:
        self._stream.print(text)
        return len(text)

    def flush(self) -> None:
        self._stream.flush()


def _error_stream(session: SparkSession) -> TextIO:
    """Where progress goes: standard error. spark-submit is recognised by the port that it passes on."""
    if "PYSPARK_GATEWAY_PORT" not in os.environ:
        return sys.stderr
    return cast(TextIO, _JvmErrors(session))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="mqspark job run", description="Spark jobs that maintain a store.")
    common = argparse.ArgumentParser(add_help=False)
    group = common.add_argument_group("Spark")
    group.add_argument(
        "--master", help="the same as spark-submit's; default: the configured one, else local[*]"
    )
    group.add_argument("--conf", action="append", default=[], metavar="KEY=VALUE", help="a Spark setting")
    group.add_argument(
        "--metrics", type=Path, metavar="FILE", help="write the figures to this file, as Prometheus text"
    )
    delta = argparse.ArgumentParser(add_help=False)
    delta.add_argument(
        "--delta-jars",
        metavar="PATHS",
        help="jars of delta-spark and delta-storage, separated by commas; default: from Maven Central",
    )
    jobs = parser.add_subparsers(dest="job", required=True, metavar="NAME")
    _rebuild_index(
        jobs.add_parser("rebuild-index", parents=[common], help=REBUILD_HELP, description=REBUILD_HELP)
    )
    _archive(jobs.add_parser("archive", parents=[common, delta], help=ARCHIVE_HELP, description=ARCHIVE_HELP))
    _compact(jobs.add_parser("compact", parents=[common], help=COMPACT_HELP, description=COMPACT_HELP))
    _redeliver(
        jobs.add_parser("redeliver", parents=[common, delta], help=REDELIVER_HELP, description=REDELIVER_HELP)
    )
    for name, text, declare in (
        ("tables", TABLES_HELP, _tables),
        ("table-upkeep", UPKEEP_HELP, _table_upkeep),
        ("table-verify", VERIFY_HELP, _table_verify),
    ):
        declare(jobs.add_parser(name, parents=[common, delta], help=text, description=text))
    return parser


TABLES_HELP = "Keep Delta tables that follow topics, until stopped."
UPKEEP_HELP = (
    "Make large files of the small ones of live tables; remove those that no version needs any more."
)
VERIFY_HELP = "Compare a live table with the log of its topic."


def _directory(parser: argparse.ArgumentParser) -> None:
    from mqspark_jobs.tables.tabledefs import DEFAULT_DIRECTORY

    parser.add_argument(
        "--tables",
        default=DEFAULT_DIRECTORY,
        metavar="DIR",
        help=f"of the definitions; default: {DEFAULT_DIRECTORY}",
    )


def _named(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("names", nargs="*", metavar="NAME", help="only these tables; default: all")
    _directory(parser)


def _chosen(options: argparse.Namespace, names: Sequence[str]) -> TableDirectory:
    """The directory of the tables. Raises ConfigError for one that is not there."""
    from mqspark_jobs.tables.tabledefs import TableDirectory

    directory = TableDirectory(options.tables)
    chosen = [directory.load(name) for name in names or directory.names()]
    options.urls = [each.url for each in chosen]
    return directory


def _tables(parser: argparse.ArgumentParser) -> None:
    _named(parser)
    parser.add_argument("--once", action="store_true", help="take what is there, and end")
    parser.add_argument(
        "--interval-ms", type=int, default=1_000, help="between the starts of two batches; default: 1000"
    )

    def prepare(options: argparse.Namespace) -> Run:
        from mqspark_jobs.tables import livetable
        from mqspark_jobs.tables.tablekeeper import TablesOptions

        if options.interval_ms < 0:
            raise ConfigError.of("interval_ms", "must not be negative")
        directory = _chosen(options, options.names)
        wanted = TablesOptions(
            directory, tuple(options.names), options.once, options.interval_ms, options.metrics
        )
        return lambda spark, progress: livetable.run(wanted, spark, progress)

    parser.set_defaults(prepare=prepare)


def _table_upkeep(parser: argparse.ArgumentParser) -> None:
    _named(parser)
    parser.add_argument(
        "--retention-hours",
        type=float,
        default=168.0,
        help="how long files stay that no version needs any more; default: 168, Delta's least",
    )

    def prepare(options: argparse.Namespace) -> Run:
        from mqspark_jobs.tables import tableupkeep

        if not 0 <= options.retention_hours < 1e6:
            raise ConfigError.of("retention_hours", "0 to 1000000")
        directory = _chosen(options, options.names)
        wanted = tableupkeep.UpkeepOptions(directory, tuple(options.names), options.retention_hours)
        return lambda spark, progress: tableupkeep.upkeep(wanted, spark, progress)

    parser.set_defaults(prepare=prepare)


def _table_verify(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", metavar="NAME", help="the table")
    _directory(parser)

    def prepare(options: argparse.Namespace) -> Run:
        from mqspark_jobs.tables import tableproof

        directory = _chosen(options, [options.name])
        return lambda spark, progress: tableproof.verify(directory, options.name, spark, progress)

    parser.set_defaults(prepare=prepare)


_OF_PARKED = ("topic", "now_ms")
_OF_DEAD = ("state", "to", "target", "origin", "from_ms", "to_ms", "key", "filter")
REDELIVER_HELP = "Deliver parked messages that are due, or send dead letters back, each exactly once."


def _redeliver(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--nameserver", required=True, metavar="HOST:PORT")
    parser.add_argument("--dry-run", action="store_true", help="only count, send nothing")
    parked = parser.add_argument_group("parked messages")
    parked.add_argument("--table", metavar="URL", help="the Delta table of parked messages")
    parked.add_argument("--topic", help="the topic to park messages from; without it only the table is used")
    parked.add_argument("--now-ms", type=int, help="deliver messages due at this time; default: now")
    dead = parser.add_argument_group("dead letters")
    dead.add_argument("--dlq", metavar="GROUP", help="the consumer group of the dead letters")
    dead.add_argument("--state", metavar="URL", help="a directory that records what was sent")
    dead.add_argument(
        "--to",
        choices=("group", "topic"),
        help="group (default): to the retry topic, so that no other group gets them; topic: to the original topics",
    )
    dead.add_argument("--target", metavar="TOPIC", help="send all of them to this topic instead")
    dead.add_argument("--origin", metavar="TOPIC", help="only those that came from this topic")
    dead.add_argument("--from-ms", type=int, help="only those stored at this time or later")
    dead.add_argument("--to-ms", type=int, help="only those stored before this time")
    dead.add_argument("--key", help="only those with this key")
    dead.add_argument("--filter", metavar="SQL92", help="only those that match; evaluated by the broker")

    def prepare(options: argparse.Namespace) -> Run:
        from mqspark_jobs import redeliver

        if (options.dlq is None) == (options.table is None):
            raise ConfigError(
                "redeliver: give --table for parked messages, or --dlq for dead letters", key="table"
            )
        parse_addresses(options.nameserver, key="nameserver", required=True)
        for wanted, names in (("table", _OF_PARKED), ("dlq", _OF_DEAD)):
            given = [name for name in names if getattr(options, name) is not None]
            if given and getattr(options, wanted) is None:
                option = f"--{given[0].replace('_', '-')}"
                raise ConfigError(f"redeliver: {option} needs --{wanted}", key=given[0])
        if options.dlq is None:
            parked = redeliver.ParkedOptions(
                options.nameserver, options.table, options.topic, options.now_ms, options.dry_run
            )
            return lambda spark, progress: redeliver.run_parked(parked, spark, progress)
        if options.to is not None and options.target is not None:
            raise ConfigError("redeliver: --target is a topic instead of --to", key="target")
        if options.state is None:
            raise ConfigError("redeliver: --dlq needs --state, which records what was sent", key="state")
        dead = redeliver.DlqOptions(
            options.nameserver,
            options.dlq,
            options.state,
            to=options.to or "group",
            target=options.target,
            origin=options.origin,
            from_ms=options.from_ms,
            to_ms=options.to_ms,
            key=options.key,
            sql_filter=options.filter,
            dry_run=options.dry_run,
        )
        return lambda spark, progress: redeliver.redrive(dead, spark, progress)

    parser.set_defaults(prepare=prepare)


COMPACT_HELP = "Keep the last value of each key in topics with cleanup.policy=COMPACTION."


def _compact(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--store", type=Path, required=True, metavar="DIR", help="storePathRootDir, on this host"
    )
    parser.add_argument("--commit-log", metavar="URL", help="where the segments are; default: in the store")
    parser.add_argument(
        "--topic", action="append", default=[], help="default: all with cleanup.policy=COMPACTION"
    )
    parser.add_argument(
        "--delete-retention-ms",
        type=int,
        default=24 * 3_600_000,
        help="how long tombstones stay; default: a day",
    )
    parser.add_argument(
        "--min-dirty-ratio", type=float, default=0.0, help="skip queues with a smaller share of new messages"
    )

    def prepare(options: argparse.Namespace) -> Run:
        from mqspark_jobs import compact

        wanted = compact.CompactOptions(
            store=options.store,
            commit_log=options.commit_log,
            topics=tuple(options.topic),
            delete_retention_ms=options.delete_retention_ms,
            min_dirty_ratio=options.min_dirty_ratio,
        )
        compact.check(wanted)
        return lambda spark, progress: compact.run(wanted, spark, progress)

    parser.set_defaults(prepare=prepare)


ARCHIVE_HELP = "Append the new records of a CommitLog to a Delta table, each exactly once, verified."


def _archive(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--store", required=True, metavar="DIR", help="storePathRootDir, path or URL")
    parser.add_argument("--commit-log", metavar="URL", help="where the segments are; default: in the store")
    parser.add_argument("--to", required=True, metavar="URL", help="the Delta table")
    parser.add_argument("--broker", required=True, metavar="NAME", help="brokerName of the store's broker")
    parser.add_argument(
        "--topics",
        metavar="REGEX",
        help="matches whole names; default: all but system topics. With it the store's log does not count as archived",
    )
    parser.add_argument(
        "--commit-bytes", type=int, default=4 << 30, help="bytes of the log in one commit; default: 4 GiB"
    )
    parser.add_argument(
        "--allow-gap",
        action="store_true",
        help="continue after segments that were deleted before being archived",
    )

    def prepare(options: argparse.Namespace) -> Run:
        from mqspark_jobs import archive

        wanted = archive.ArchiveOptions(
            store=options.store,
            archive=options.to,
            broker=options.broker,
            commit_log=options.commit_log,
            topics=options.topics,
            commit_bytes=options.commit_bytes,
            allow_gap=options.allow_gap,
        )
        archive.check(wanted)
        return lambda spark, progress: archive.run(wanted, spark, progress)

    parser.set_defaults(prepare=prepare)


REBUILD_HELP = "Rebuild ConsumeQueues and index files from the CommitLog and swap them in."


def _rebuild_index(parser: argparse.ArgumentParser) -> None:
    from mqspark.store.config import DEFAULT_DELAY_LEVELS

    parser.add_argument("--store", type=Path, required=True, metavar="DIR", help="storePathRootDir")
    parser.add_argument("--commit-log", metavar="URL", help="where the segments are; default: in the store")
    parser.add_argument(
        "--delay-levels", default=DEFAULT_DELAY_LEVELS, help="messageDelayLevel of the broker"
    )
    parser.add_argument("--no-crc", action="store_true", help="trust bodies without checking their CRC")
    parser.add_argument("--no-index", action="store_true", help="ConsumeQueues only")
    parser.add_argument(
        "--queue-file-bytes", type=int, help="if the store has no queue files; default: 6000000"
    )

    def prepare(options: argparse.Namespace) -> Run:
        from mqspark_jobs import rebuild_index
        from mqspark_jobs.rebuild_plan import RebuildOptions

        wanted = RebuildOptions(
            store=options.store,
            commit_log=options.commit_log,
            delay_levels=options.delay_levels,
            verify_crc=not options.no_crc,
            with_index=not options.no_index,
            queue_file_bytes=options.queue_file_bytes,
        )
        rebuild_index.check(wanted)
        return lambda spark, progress: rebuild_index.run(wanted, spark, progress)

    parser.set_defaults(prepare=prepare)


def delta_settings(jars: str | None) -> dict[str, str]:
    """The session settings for Delta. Without jars, Spark resolves them for the installed pyspark."""
    import pyspark

    settings = {
        # The Delta log of an archive is small, but by default Delta runs 50 tasks to load each version of a table.
        "spark.databricks.delta.snapshotPartitions": "2",
        "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
        "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    }
    if jars:
        missing = [jar for jar in jars.split(",") if "://" not in jar and not Path(jar).is_file()]
        if missing:
            raise ConfigError(f"--delta-jars: there is no file {missing[0]}", key="delta_jars")
        return settings | {"spark.jars": jars}
    version = ".".join(pyspark.__version__.split(".")[:2])
    return settings | {"spark.jars.packages": f"io.delta:delta-spark_{version}_2.13:{DELTA_VERSION}"}


def _session(options: argparse.Namespace) -> SparkSession:
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    from pyspark.errors import PySparkException
    from pyspark.sql import SparkSession

    import pyspark_pymq

    builder = SparkSession.builder.appName(f"mqspark {options.job}")
    builder = builder.config("spark.ui.showConsoleProgress", "false")
    builder = builder.config(map=pyspark_pymq.tuned_settings())
    if options.master is not None:
        builder = builder.master(options.master)
    builder = builder.config(map=session_settings(options))
    if hasattr(options, "delta_jars"):
        check_delta_package()
    try:
        session: SparkSession = builder.getOrCreate()
    except PySparkException as error:
        wants_delta = hasattr(options, "delta_jars") and not options.delta_jars
        advice = "; if it could not fetch Delta's jars, name them with --delta-jars" if wants_delta else ""
        raise MQError(f"Spark did not start: {relevant_text(error)}{advice}") from error
    if hasattr(options, "delta_jars"):
        _need_delta(session)
    return session


def session_settings(options: argparse.Namespace) -> dict[str, str]:
    """The settings of a job's session: Delta, object stores that its options name, and ``--conf``. Lists of jars and
    packages are merged. Raises ConfigError."""
    urls = [value for name in _URLS if isinstance(value := getattr(options, name, None), str)]
    urls += getattr(options, "urls", ())
    found = delta_settings(options.delta_jars) if hasattr(options, "delta_jars") else {}
    stores = object_store_settings(urls)
    asked = {}
    for setting in options.conf:
        key, equals, value = setting.partition("=")
        if not equals:
            raise ConfigError(f"--conf: {setting!r} is not of the form KEY=VALUE", key="conf")
        asked[key] = value
    if "spark.jars" in asked or "spark.jars.packages" in asked:
        stores.pop("spark.jars.packages", None)  # --delta-jars names all jars
    return _merged_lists(_merged_lists(found, stores), asked)


_URLS = ("to", "table", "state")
"""Options that Spark itself reads or writes."""
_LISTS = ("spark.jars", "spark.jars.packages")
_SPARKS_NAMES = {"s3": "s3a", "gcs": "gs", "az": "abfss"}
_PACKAGES = {"s3a": "org.apache.hadoop:hadoop-aws", "abfss": "org.apache.hadoop:hadoop-azure"}


def object_store_settings(urls: Sequence[str]) -> dict[str, str]:
    """The settings that Spark needs for these URLs, with credentials from the environment. Raises ConfigError for a
    scheme that Spark spells differently."""
    settings: dict[str, str] = {}
    for url in urls:
        scheme, found, rest = url.partition("://")
        if not found:
            continue
        if scheme in _SPARKS_NAMES:
            raise ConfigError(f"{url}: Spark calls it {_SPARKS_NAMES[scheme]}://{rest}", key="to")
        if scheme in _PACKAGES:
            settings["spark.jars.packages"] = f"{_PACKAGES[scheme]}:{_hadoop_version()}"
        endpoint = os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL")
        if scheme == "s3a" and endpoint:
            # Variables that the AWS SDKs and s3fs read, but Hadoop does not.
            settings["spark.hadoop.fs.s3a.endpoint"] = endpoint
            settings["spark.hadoop.fs.s3a.path.style.access"] = "true"
            settings["spark.hadoop.fs.s3a.connection.ssl.enabled"] = str(
                endpoint.startswith("https:")
            ).lower()
            region = os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION") or "us-east-1"
            settings["spark.hadoop.fs.s3a.endpoint.region"] = region
    return settings


def _hadoop_version() -> str:
    """The version of Hadoop that comes with pyspark."""
    import pyspark

    jars = Path(pyspark.__file__).parent.glob("jars/hadoop-client-api-*.jar")
    name = next((path.stem for path in jars), "hadoop-client-api-3.5.0")
    return name.removeprefix("hadoop-client-api-")


def _merged_lists(one: dict[str, str], other: dict[str, str]) -> dict[str, str]:
    lists = {key: f"{one[key]},{other[key]}" for key in _LISTS if key in one and key in other}
    return one | other | lists


def check_delta_package() -> None:
    """Raises ConfigError if the Python package of Delta is missing: the jars alone are not enough."""
    if importlib.util.find_spec("delta") is None:
        raise ConfigError(
            "Delta's package for Python is missing: pip install 'mqspark[archive]'", key="delta"
        )


def _need_delta(session: SparkSession) -> None:
    from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]

    loader: Any = session._jvm
    try:
        loader.java.lang.Thread.currentThread().getContextClassLoader().loadClass(
            "io.delta.sql.DeltaSparkSessionExtension"
        )
    except Py4JJavaError:
        session.stop()
        raise ConfigError(
            "--delta-jars: this Spark does not know Delta; name the jars of delta-spark and delta-storage",
            key="delta_jars",
        ) from None
