"""JSON reports of the command line, for analysis: benchmarks, ``inspect``, statistics.

>>> flatten({"mode": "sequential", "latency_us": {"p50": 3, "p99": 9}})
{'mode': 'sequential', 'latency_us.p50': 3, 'latency_us.p99': 9}
"""

from __future__ import annotations

import glob as _glob
import json as _json
import os as _os
from collections.abc import Iterable, Mapping
from typing import Any

__all__ = ["flatten", "frame", "load"]


def flatten(report: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Returns nested objects as one, with names joined by dots. Lists stay as they are."""
    row: dict[str, Any] = {}
    for name, value in report.items():
        if isinstance(value, Mapping):
            row.update(flatten(value, f"{prefix}{name}."))
        else:
            row[f"{prefix}{name}"] = value
    return row


def load(paths: str | _os.PathLike | Iterable[str | _os.PathLike]) -> list[dict[str, Any]]:
    """Reads reports and returns a flat row for each, with its file name as ``file``.

    ``paths`` is a file, a pattern such as ``bench/results/*.json``, or several of these. A file with
    JSON Lines gives a row for each line.
    """
    given = [paths] if isinstance(paths, (str, _os.PathLike)) else list(paths)
    rows = []
    for pattern in map(_os.fspath, given):
        files = sorted(_glob.glob(pattern)) or [pattern]
        for path in files:
            with open(path, encoding="utf-8") as file:
                text = file.read()
            try:
                reports = _json.loads(text)
            except _json.JSONDecodeError:
                reports = [_json.loads(line) for line in text.splitlines() if line.strip()]
            for report in reports if isinstance(reports, list) else [reports]:
                rows.append({"file": _os.path.basename(path), **flatten(report)})
    return rows


def frame(paths: str | _os.PathLike | Iterable[str | _os.PathLike], explode: str | None = None):
    """Returns the reports as a ``pandas.DataFrame``, which needs pandas.

    ``explode`` names a list of objects, such as ``phases``: each object becomes a row of its own,
    with the fields of its report beside it.
    """
    import pandas

    rows = load(paths)
    if explode is not None:
        spread = []
        for row in rows:
            rest = {name: value for name, value in row.items() if name != explode}
            parts = row.get(explode) or [{}]
            spread += [{**rest, **flatten(part, f"{explode}.")} for part in parts]
        rows = spread
    return pandas.DataFrame(rows)
