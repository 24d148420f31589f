"""Reports of benchmarks: figures, their comparison, the page, and the refusal of ratios on a loaded machine."""

from __future__ import annotations

import os
import re
from pathlib import Path
from xml.etree import ElementTree

import pytest

from tests.benchmarks import __main__ as command
from tests.benchmarks import machine, page, report
from tests.benchmarks.machine import Disturbance, Watch
from tests.benchmarks.report import Benchmark, Change, Figure, Report

QUIET = Disturbance(load_before=0.1, others=0.01, steal=0.0, cores=2)


def made(*figures: Figure, loaded: str | None = None, name: str = "broker") -> Report:
    benchmark = Benchmark(
        name=name, arguments=["--rounds", "3"], seconds=12.0, exit_code=0, load_before=0.1, others=0.0, steal=0.0,
        loaded=loaded, figures=list(figures), peers={"RocketMQ 5.5.0": {"heap": "2 GiB"}},
    )  # fmt: skip
    return Report(begun="2026-01-01T00:00:00+00:00", machine={"cores": "2"}, benchmarks=[benchmark])


def rate(*rounds: float, side: str = "mqspark", name: str = "send") -> Figure:
    return Figure(name=name, side=side, unit="/s", rounds=rounds)


# --- figures --------------------------------------------------------------------------------------------------


def test_a_figure_needs_its_rounds() -> None:
    with pytest.raises(ValueError, match="no figure without its rounds"):
        rate()


def test_figures_reach_the_run_through_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(report.RECORD, str(tmp_path / "record"))
    report.figure("send", "/s", [1, 3, 2], round_s=0.2)
    report.figure("send", "/s", [4], side="theirs")
    report.peer("Kafka 4.1.0", heap="1 GiB", partitions=4)
    figures, peers = report.recorded(tmp_path / "record")
    assert [(each.side, each.median, each.spread, each.is_short) for each in figures] == [
        ("mqspark", 2.0, (1.0, 3.0), True),
        ("theirs", 4.0, (4.0, 4.0), False),
    ]
    assert peers == {"Kafka 4.1.0": {"heap": "1 GiB", "partitions": "4"}}


def test_a_benchmark_that_runs_alone_records_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv(report.RECORD, raising=False)
    assert report.figure("send", "/s", [1]).median == 1
    assert report.recorded(tmp_path / "record") == ([], {})


# --- a loaded machine -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("disturbance", "reason"),
    [
        (QUIET, None),
        (Disturbance(1.1, 0.0, 0.0, 2), "load average was 1.1 on 2 cores"),
        (Disturbance(1.1, 0.0, 0.0, 8), None),
        (Disturbance(0.1, 0.2, 0.0, 2), "other processes used 20%"),
        (Disturbance(0.1, 0.0, 0.07, 2), "withheld 7%"),
    ],
)
def test_what_makes_a_machine_loaded(disturbance: Disturbance, reason: str | None) -> None:
    assert disturbance.reason is None if reason is None else reason in (disturbance.reason or "")


def test_no_ratio_is_printed_on_a_loaded_machine_unless_told(monkeypatch: pytest.MonkeyPatch) -> None:
    class Busy:
        def disturbance(self) -> Disturbance:
            return Disturbance(0.1, 0.5, 0.0, 2)

    monkeypatch.delenv(machine.ALTHOUGH_LOADED, raising=False)
    monkeypatch.setattr(report, "WATCH", Busy())
    assert report.ratio(1.25) == "(no ratio: other processes used 50% of the processor time)"
    assert "1.25" not in report.ratio_line("send", rate(5), rate(4, side="theirs"))
    monkeypatch.setenv(machine.ALTHOUGH_LOADED, "1")
    assert report.ratio(1.25) == "1.25"
    assert report.ratio_line("send", rate(5), rate(4, side="theirs")) == "send: 1.25 x theirs"


def test_short_rounds_are_named_beside_a_ratio(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(machine.ALTHOUGH_LOADED, "1")
    short = Figure(name="read", side="pymq", unit="s", rounds=(0.5,), less_is_better=True, round_s=0.5)
    line = report.ratio_line("read", short, Figure(name="read", side="Kafka", unit="s", rounds=(1.5,)))
    assert line == "read: 3.00 x Kafka, short rounds: fixed costs decide"


def proc(
    folder: Path, user: int, idle: int, steal: int, own: int, child: int, kernel: int = 0, softirq: int = 0
) -> Path:
    """A /proc with this process, a child of it, a process of others, and a thread of the kernel."""
    (folder / "stat").parent.mkdir(exist_ok=True)
    (folder / "stat").write_text(f"cpu  {user} 0 {kernel} {idle} 0 0 {softirq} {steal} 0 0\ncpu0 0\n")
    (folder / "loadavg").write_text("0.25 0.1 0.1 1/100 7\n")
    processes = [(os.getpid(), 1, own), (900001, os.getpid(), child), (900002, 1, 10_000)]
    for pid, parent, ticks in [*processes, (2, 0, 0), (900003, 2, kernel)]:
        (folder / str(pid)).mkdir(exist_ok=True)
        fields = ["S", str(parent), *["0"] * 9, str(ticks), *["0"] * 40]
        (folder / str(pid) / "stat").write_text(f"{pid} (a) b) {' '.join(fields)}\n")
    return folder


def test_other_work_is_what_neither_this_process_nor_its_children_did(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(machine.LOAD_BEFORE, raising=False)
    folder = tmp_path / "proc"
    folder.mkdir()
    watch = Watch(proc(folder, user=1000, idle=1000, steal=0, own=100, child=50), cores=2)
    proc(folder, user=1700, idle=1250, steal=50, own=300, child=250)  # 400 of 700 are ours
    found = watch.disturbance()
    assert (found.load_before, round(found.others, 3), round(found.steal, 3)) == (0.25, 0.3, 0.05)


def test_the_kernel_works_for_the_benchmark(tmp_path: Path) -> None:
    folder = tmp_path / "proc"
    folder.mkdir()
    watch = Watch(proc(folder, user=0, idle=0, steal=0, own=0, child=0), cores=2)
    proc(folder, user=600, idle=0, steal=0, own=400, child=100, kernel=300, softirq=100)
    assert round(watch.disturbance().others, 3) == 0.1  # 100 of 1,000


def test_the_real_machine_can_be_watched() -> None:
    before = machine.own_s()
    watch = Watch()
    sum(range(2_000_000))
    assert machine.own_s() >= before
    found = watch.disturbance()
    assert 0 <= found.others <= 1
    assert machine.described()["cores"] == str(os.cpu_count())


# --- two reports ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("before", "after", "less", "verdict"),
    [
        ((100, 110, 105), (200, 210, 205), False, "better"),
        ((100, 110, 105), (50, 55, 52), False, "worse"),
        ((100, 110, 105), (50, 101, 52), False, "same"),  # the rounds overlap
        ((100, 101, 102), (103, 104, 105), False, "same"),  # closer than the tolerance
        ((10, 11, 12), (20, 21, 22), True, "worse"),
        ((20, 21, 22), (10, 11, 12), True, "better"),
    ],
)
def test_verdicts(before: tuple[float, ...], after: tuple[float, ...], less: bool, verdict: str) -> None:
    def figure(rounds: tuple[float, ...]) -> Figure:
        return Figure(name="x", side="mqspark", unit="u", rounds=rounds, less_is_better=less)

    assert Change("broker", figure(before), figure(after)).verdict == verdict


def test_check_compares_two_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first, second, third = (tmp_path / name for name in ("a.json", "b.json", "c.json"))
    made(rate(100, 110), rate(5, name="old")).write(first)
    made(rate(40, 50)).write(second)
    made(rate(400, 500)).write(third)
    assert command.main(["check", str(first), str(second)]) == 1
    said = capsys.readouterr().out
    assert re.search(r"broker: send, mqspark +105 \[100 to 110\] /s -> 45 \[40 to 50\] /s  0.43  worse", said)
    assert "only in the first: broker, old, mqspark" in said
    assert command.main(["check", str(first), str(third)]) == 0
    assert "4.29  better" in capsys.readouterr().out


def test_check_refuses_reports_of_a_loaded_machine(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    quiet, busy = tmp_path / "a.json", tmp_path / "b.json"
    made(rate(100)).write(quiet)
    made(rate(50), loaded="the load average was 9.0 on 2 cores").write(busy)
    assert command.main(["check", str(quiet), str(busy)]) == 2
    said = capsys.readouterr().out
    assert "load average was 9.0" in said
    assert "worse" not in said
    assert command.main(["check", str(quiet), str(busy), "--although-loaded"]) == 1


def test_check_names_what_is_no_report(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text('{"begun": 3}')
    with pytest.raises(SystemExit, match=r"a\.json is no report"):
        report.check(tmp_path / "a.json", tmp_path / "missing.json")


def test_reports_without_a_common_figure_are_not_comparable(tmp_path: Path) -> None:
    made(rate(1)).write(tmp_path / "a.json")
    made(rate(1), name="store").write(tmp_path / "b.json")
    assert report.check(tmp_path / "a.json", tmp_path / "b.json") == 2


# --- the page -------------------------------------------------------------------------------------------------


def test_the_page_is_well_formed_and_loads_nothing() -> None:
    text = page.html(made(rate(100, 120, 110), rate(50, 60, 55, side="<Kafka> & co")))
    body = text[text.index("<body>") : text.index("</body>") + len("</body>")]
    tree = ElementTree.fromstring(body)  # noqa: S314 - our own text
    assert not re.search(r"(src|href)=|@import|url\(|<script", text)
    assert len(tree.findall(".//circle")) == 6
    assert len(tree.findall(".//rect")) == 2
    assert "<Kafka> & co" in [node.text for node in tree.iter("text")]
    assert "; 2.00" in body, "the ratio of the medians"
    assert "heap=2 GiB" in body


def test_the_page_of_a_loaded_machine_has_no_ratio() -> None:
    text = page.html(made(rate(100), rate(50, side="Kafka"), loaded="other processes used 40%"))
    assert "No results: other processes used 40%" in text
    assert "; 2.00" not in text


def test_an_unknown_benchmark_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        command.main(["brocker"])
    assert ended.value.code == 2
    assert "no benchmark 'brocker'" in capsys.readouterr().err
