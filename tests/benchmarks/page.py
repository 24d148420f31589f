"""The HTML page of a report: one file, no script, nothing loaded from elsewhere.

Each group of figures with one name is a plot: a row a side, a dot a round, a bar to the median. Bars begin at zero, so
their lengths compare.
"""

from __future__ import annotations

from html import escape
from itertools import groupby

from tests.benchmarks.report import OURS, SHORT_S, Benchmark, Figure, Report, number

STYLE = """
:root { --ink: #1c2530; --soft: #5c6b7a; --line: #dde3e9; --paper: #fff; --ours: #0b6e99; --peer: #9aa7b3;
  --warn: #8a5300; --warn-paper: #fff4e0 }
@media (prefers-color-scheme: dark) { :root { --ink: #e6ebf0; --soft: #9fb0c0; --line: #33404d; --paper: #14191f;
  --ours: #4fb3dc; --peer: #6b7a88; --warn: #ffc56b; --warn-paper: #2f2613 } }
body { font: 15px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--paper); max-width: 62rem;
  margin: 2rem auto; padding: 0 1rem }
h1 { font-size: 1.5rem } h2 { font-size: 1.15rem; margin-top: 2.5rem; padding-top: 1rem;
  border-top: 1px solid var(--line) }
h3 { font-size: 1rem; margin: 1.4rem 0 .2rem } h3 small { color: var(--soft); font-weight: normal }
table { border-collapse: collapse } td, th { text-align: left; padding: .15rem .9rem .15rem 0; vertical-align: top }
th { font-weight: 500; color: var(--soft) }
p.soft, .soft { color: var(--soft) } p.warn { color: var(--warn); background: var(--warn-paper); padding: .5rem .8rem;
  border-radius: 4px }
svg { width: 100%; height: auto; display: block } svg text { font: 13px system-ui, sans-serif; fill: var(--ink) }
svg .soft { fill: var(--soft) } svg .bar { fill: var(--peer); opacity: .45 } svg .bar.ours { fill: var(--ours) }
svg .dot { fill: var(--peer) } svg .dot.ours { fill: var(--ours) } svg line { stroke: var(--line) }
"""

EXPLAINED = "A bar is the median, a dot a round. After a semicolon: how many times better the first side is."

WIDTH, ROW, LABEL, VALUES = 940, 26, 250, 250
"""Sizes of a plot: pixels in all, a row, the names of sides at the left, the numbers at the right."""


def html(report: Report) -> str:
    """The whole page."""
    machine = "".join(
        f"<tr><th>{escape(key)}</th><td>{escape(value)}</td></tr>" for key, value in report.machine.items()
    )
    parts = "".join(_benchmark(each) for each in report.benchmarks)
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>mqspark benchmarks</title>'
        f'<meta name="viewport" content="width=device-width"><style>{STYLE}</style></head><body>'
        f"<h1>mqspark benchmarks</h1><p>Begun {escape(report.begun)}. {EXPLAINED}</p>"
        f"<details><summary>Machine and versions</summary><table>{machine}</table></details>{parts}</body></html>\n"
    )


def _benchmark(benchmark: Benchmark) -> str:
    command = " ".join(["python -m tests.benchmarks", benchmark.name, *benchmark.arguments])
    out = [
        f"<h2>{escape(benchmark.name)}</h2>",
        f'<p class="soft"><code>{escape(command)}</code>: {benchmark.seconds:,.0f} s, load average'
        f" {benchmark.load_before:.1f} before the first benchmark, {benchmark.others:.0%} of the processors used by"
        f" others, {benchmark.steal:.0%} stolen</p>",
    ]
    if benchmark.exit_code:
        out.append(f'<p class="warn">It ended with exit code {benchmark.exit_code}.</p>')
    if benchmark.loaded:
        out.append(f'<p class="warn">No results: {escape(benchmark.loaded)}. Ratios are left out.</p>')
    for name, settings in benchmark.peers.items():
        text = ", ".join(f"{key}={value}" for key, value in settings.items()) or "its defaults"
        out.append(f'<p class="soft">{escape(name)}: {escape(text)}</p>')
    for name, group in groupby(
        sorted(benchmark.figures, key=lambda each: _order(benchmark, each)), lambda x: x.name
    ):
        out.append(_group(name, list(group), with_ratios=benchmark.loaded is None))
    return "".join(out)


def _order(benchmark: Benchmark, figure: Figure) -> int:
    """Groups in the order of their first figure."""
    return next(n for n, each in enumerate(benchmark.figures) if each.name == figure.name)


def _group(name: str, figures: list[Figure], *, with_ratios: bool) -> str:
    unit, less = figures[0].unit, figures[0].less_is_better
    least, most = (which(len(each.rounds) for each in figures) for which in (min, max))
    count = f"{most}" if least == most else f"{least} to {most}"
    remarks = [unit, "less is better" if less else "more is better", f"{count} round{'s' * (most > 1)}"]
    if any(each.is_short for each in figures):
        remarks.append(f"rounds shorter than {SHORT_S:g} s: fixed costs decide")
    return f"<h3>{escape(name)} <small>{escape(', '.join(remarks))}</small></h3>{_plot(figures, with_ratios)}"


def _plot(figures: list[Figure], with_ratios: bool) -> str:
    top = max(high for each in figures for high in (each.spread[1], each.median)) or 1.0
    scale = (WIDTH - LABEL - VALUES) / top
    ours = figures[0]
    height = ROW * len(figures)
    label = "; ".join(f"{each.side} {number(each.median)}" for each in figures)
    out = [f'<svg viewBox="0 0 {WIDTH} {height}" role="img" aria-label="{escape(label)}">']
    for row, each in enumerate(figures):
        middle = row * ROW + ROW / 2
        kind = " ours" if each.side.startswith(("mqspark", "ours", "pymq")) or each.side == OURS else ""
        out.append(f'<text x="0" y="{middle + 4:.0f}">{escape(_cut(each.side))}</text>')
        out.append(f'<line x1="{LABEL}" x2="{WIDTH - VALUES}" y1="{middle:.0f}" y2="{middle:.0f}"/>')
        out.append(
            f'<rect class="bar{kind}" x="{LABEL}" y="{middle - 8:.0f}" width="{each.median * scale:.1f}" height="16"/>'
        )
        out += [
            f'<circle class="dot{kind}" cx="{LABEL + value * scale:.1f}" cy="{middle:.0f}" r="3.5"/>'
            for value in each.rounds
        ]
        low, high = each.spread
        text = number(each.median)
        if len(each.rounds) > 1:
            text += f" ({number(low)} to {number(high)})"
        if with_ratios and each is not ours and each.median and ours.median:
            value = each.median / ours.median if each.less_is_better else ours.median / each.median
            text += f"; {value:.2f}"
        out.append(f'<text class="soft" x="{WIDTH - VALUES + 12}" y="{middle + 4:.0f}">{escape(text)}</text>')
    return "".join([*out, "</svg>"])


def _cut(side: str) -> str:
    return side if len(side) <= 34 else side[:33] + "…"
