"""The metrics of several servers as one Prometheus text: each sample gets a label with its server's name.

Works on lines, because parsing and printing every sample would cost more than the servers' own answers.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

LABEL = "broker"


def merge_metrics(texts: Iterable[tuple[str, str]]) -> str:
    """``texts``: name and Prometheus text of each server. A family's samples are together, its help and type once."""
    families: dict[str, tuple[list[str], list[str]]] = {}
    for server, text in texts:
        label = f'{LABEL}="{_escape(server)}"'
        for family, heads, samples in _families(text):
            known = families.get(family)
            if known is None:
                families[family] = heads, [_labelled(sample, label) for sample in samples]
            else:
                known[1].extend(_labelled(sample, label) for sample in samples)
    return "".join(f"{line}\n" for heads, samples in families.values() for line in (*heads, *samples))


def _families(text: str) -> Iterator[tuple[str, list[str], list[str]]]:
    """Name, lines about it and samples of each family."""
    name, heads, samples = "", list[str](), list[str]()
    for line in text.split("\n"):
        if line.startswith("#"):
            about = line.split(" ", 3)
            if len(about) < 3:
                continue
            if samples or about[2] != name:
                if samples:
                    yield name, heads, samples
                name, heads, samples = about[2], [], []
            heads.append(line)
        elif line:
            samples.append(line)
    if samples:
        yield name, heads, samples


def _labelled(sample: str, label: str) -> str:
    """A sample's name ends at its labels, or at the blank before its value."""
    ends = [at for at in (sample.find("{"), sample.find(" ")) if at >= 0]
    if not ends:
        return sample
    end = min(ends)
    if sample[end] == " ":
        return f"{sample[:end]}{{{label}}}{sample[end:]}"
    rest = sample[end + 1 :]
    return f"{sample[:end]}{{{label}{'' if rest.startswith('}') else ','}{rest}"


def _escape(value: str) -> str:
    return value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
