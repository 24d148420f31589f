"""``mqspark doctor spark``: what keeps ``format("pymq")`` from working in this environment, and what to do about
it.

Reproduces what Spark does to find Python data sources: it walks the top-level modules of ``sys.path`` and imports
those named ``pyspark_*``; one that fails hides all of them, and Spark says so in one line at WARN only. Starts no
JVM.
"""

from __future__ import annotations

import argparse
import functools
import importlib
import importlib.metadata
import importlib.util
import operator
import os
import pkgutil
import re
import shutil
import subprocess
import sys
import traceback
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from mqspark.base.logs import escaping, printable

log = escaping("pyspark_pymq")

_OLDEST, _NEWEST = (4, 1), (4, 3)
_JAVA = 17
_MAX_TEXT = 1000


@dataclass(frozen=True, slots=True)
class CheckResult:
    name: str
    ok: bool
    text: str
    """One check: what it found, and what to do if that is a problem."""


def examine(nameserver: str | None = None) -> list[CheckResult]:
    """Every check, in order. Never raises: a failed check is a finding."""
    findings = []
    for name, check in checks(nameserver):
        try:
            findings.append(CheckResult(name, True, check()))
        except _Unwell as error:
            findings.append(CheckResult(name, False, str(error)))
    return findings


def report(nameserver: str | None = None) -> int:
    """Print every finding; returns 1 if there is a problem, otherwise 0."""
    findings = examine(nameserver)
    for finding in findings:
        sys.stdout.write(
            f"{'ok  ' if finding.ok else 'FAIL'} {finding.name}: {printable(finding.text, _MAX_TEXT)}\n"
        )
    return 0 if all(finding.ok for finding in findings) else 1


def main(arguments: Sequence[str]) -> int:
    """``mqspark doctor ARGUMENTS`` where the server's command line is not installed; returns the exit code."""
    parser = argparse.ArgumentParser(prog="mqspark doctor", description="Check an environment.")
    what = parser.add_subparsers(dest="what", required=True, metavar="WHAT")
    says = "Say what keeps format('pymq') from working here."
    spark = what.add_parser("spark", help=says, description=says)
    spark.add_argument("--nameserver", metavar="HOST:PORT", help="also ask this name server")
    try:
        options = parser.parse_args(list(arguments))
    except SystemExit as stop:
        return int(stop.code or 0)
    if importlib.util.find_spec("pyspark") is None:
        sys.stderr.write("mqspark: error: this command needs pyspark: pip install 'mqspark[spark]'\n")
        return 2
    return report(options.nameserver)


class _Unwell(Exception):
    """A check that failed; its text says what to do."""


def checks(nameserver: str | None) -> Iterator[tuple[str, Any]]:
    yield "python", _python
    yield "pyspark", _pyspark
    for name, bounds in _required().items():
        if name != "pyspark":
            yield name, functools.partial(_library, name, bounds)
    yield "java", _java
    yield "discovery", _discovery
    yield "workers", _workers
    yield "delta", _delta
    if nameserver is not None:
        yield "cluster", lambda: _cluster(nameserver)


def _python() -> str:
    return f"{sys.executable} ({'.'.join(map(str, sys.version_info[:3]))})"


def _version(name: str) -> tuple[str, tuple[int, ...]]:
    try:
        text = importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        raise _Unwell(f"{name} is not installed: pip install 'mqspark[spark]'") from None
    return text, tuple(int(number) for number in re.findall(r"\d+", text)[:2])


def _required() -> dict[str, str]:
    """What the extra ``spark`` asks for, as this package was installed: names and bounds like ``<3,>=2.2``."""
    pattern = r"([\w.-]+)\s*([^;]*?)\s*;.*\bextra == ['\"]spark['\"]"
    found = (re.match(pattern, line) for line in importlib.metadata.requires("mqspark") or [])
    return {match[1]: match[2] for match in found if match is not None}


_COMPARED = {">=": operator.ge, "<": operator.lt}
"""How requirements of the extra are bounded."""


def _library(name: str, bounds: str) -> str:
    text, version = _version(name)
    for sign, bound in re.findall(r"(>=|<)([\d.]+)", bounds):
        if not _COMPARED[sign](version, tuple(map(int, bound.split(".")))):
            raise _Unwell(f"{name} {text}: {name}{bounds} is needed: pip install '{name}{bounds}'")
    return text


def _pyspark() -> str:
    text, version = _version("pyspark")
    if not _OLDEST <= version <= _NEWEST:
        raise _Unwell(f"pyspark {text}: 4.1, 4.2 and 4.3 are supported; 4.3 is developed on")
    if version == _OLDEST:
        return f"{text}: without limits per trigger and AvailableNow in several batches, which came in 4.2"
    return text


def _java() -> str:
    home = os.environ.get("JAVA_HOME")
    java = f"{home}/bin/java" if home else shutil.which("java")
    if java is None:
        raise _Unwell(f"no java on PATH and no JAVA_HOME: install Java {_JAVA}")
    try:
        done = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=30, check=True)  # noqa: S603
    except (OSError, subprocess.SubprocessError) as error:
        raise _Unwell(f"{java} does not run: {error}") from None
    found = re.search(r'version "(\d+)', done.stderr)
    if found is None or int(found[1]) < _JAVA:
        raise _Unwell(f"{java}: Spark 4 needs Java {_JAVA} or newer, this is {done.stderr.splitlines()[0]}")
    return f"{java} ({found[1]})"


def _discovery() -> str:
    """As Spark's look-up does it, with the real traceback."""
    from pyspark.sql.datasource import DataSource

    sources: dict[str, str] = {}
    for module in pkgutil.iter_modules():
        if not module.name.startswith("pyspark_"):
            continue
        try:
            found = importlib.import_module(module.name)
            source = getattr(found, "DefaultSource", None)
            if source is not None and not (isinstance(source, type) and issubclass(source, DataSource)):
                raise TypeError(f"DefaultSource is {source!r}, no DataSource")
        except Exception:
            trace = traceback.format_exc().strip()
            raise _Unwell(
                f"the module {module.name} cannot be imported, which hides every Python data source from Spark; "
                f"repair or remove it:\n{trace}"
            ) from None
        if source is not None:
            sources[_name_of(source)] = module.name
    if sources.get("pymq") != "pyspark_pymq":
        raise _Unwell(
            "Spark would not find format('pymq'): pyspark_pymq is not a top-level module of sys.path (a zip of "
            "--py-files, or an editable install with an import hook); call pyspark_pymq.register(spark), or "
            "install the wheel"
        )
    return f"Spark finds {', '.join(f'{name} in {module}' for name, module in sorted(sources.items()))}"


def _name_of(source: Any) -> str:
    return str(source.name())


def python_mismatch(chosen: str | None = None) -> str | None:
    """One sentence when Spark's workers would run another Python version than this process; None when they would not,
    or when that cannot be told from here. ``chosen``: what the session says; default: what the environment says."""
    chosen = chosen or os.environ.get("PYSPARK_PYTHON") or "python3"
    found = shutil.which(chosen)
    if found is None or os.path.realpath(found) == os.path.realpath(sys.executable):
        return None
    try:
        program = "import sys; print('%d.%d' % sys.version_info[:2])"
        done = subprocess.run([found, "-c", program], capture_output=True, text=True, timeout=10, check=True)  # noqa: S603
    except (OSError, subprocess.SubprocessError):
        return None
    theirs, ours = done.stdout.strip(), "{}.{}".format(*sys.version_info[:2])
    if theirs == ours:
        return None
    return (
        f"Spark's workers run Python {theirs} ({chosen}) but the driver runs {ours}, and Spark needs the same:"
        f" set PYSPARK_PYTHON={sys.executable} before Spark starts"
    )


def warn_of_mismatch(chosen: str | None = None) -> None:
    """Log that sentence, because Spark's own message comes later, inside a trace."""
    sentence = python_mismatch(chosen)
    if sentence is not None:
        log.warning("%s", sentence)


def _workers() -> str:
    """Workers run PYSPARK_PYTHON, otherwise the first python3 of PATH, which may be another one."""
    chosen = os.environ.get("PYSPARK_PYTHON") or shutil.which("python3") or "python3"
    names = ", ".join([*_required(), "pyspark_pymq", "sys"])
    program = f"import {names}; print(sys.version_info[:2])"
    try:
        command = [chosen, "-c", program]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)  # noqa: S603
    except (OSError, subprocess.SubprocessError) as error:
        raise _Unwell(f"Spark's workers would run {chosen}, which does not start: {error}") from None
    advice = f"set PYSPARK_PYTHON={sys.executable}"
    if done.returncode:
        raise _Unwell(f"Spark's workers would run {chosen}: {done.stderr.strip().splitlines()[-1]}; {advice}")
    if done.stdout.strip() != str(sys.version_info[:2]):
        raise _Unwell(
            f"Spark's workers would run {chosen} of version {done.stdout.strip()}, the driver is another; {advice}"
        )
    return chosen


def _delta() -> str:
    """Only for the jobs archive and redeliver, and for Delta tables of your own."""
    try:
        text, _ = _version("delta-spark")
    except _Unwell:
        return "delta-spark is not installed; archive and redeliver need pip install 'mqspark[jobs]'"
    _, spark = _version("pyspark")
    if spark > (4, 2):
        raise _Unwell(
            f"delta-spark {text} has no jars for pyspark {'.'.join(map(str, spark))}: use pyspark 4.2"
        )
    return text


def _cluster(nameserver: str) -> str:
    from mqspark.client.blocking import BlockingClient
    from mqspark.errors import MQError

    try:
        client = BlockingClient(nameserver, retry_ms=2000)
        try:
            topics = client.topics()
        finally:
            client.close()
    except MQError as error:
        raise _Unwell(f"{nameserver}: {error}") from None
    return f"{nameserver} answers and knows {len(topics)} topics"
