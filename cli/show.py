"""Output of the commands: tables and JSON."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping

__all__ = ["table", "to_json"]


def table(rows: Mapping[str, object], indent: str = "") -> str:
    """Aligned lines of key and value, without the rows whose value is None."""
    width = max(map(len, rows), default=0)
    return "\n".join(f"{indent}{key:<{width}}  {value}" for key, value in rows.items() if value is not None)


def to_json(value: object) -> str:
    """`value` as JSON, with null for NaN and infinities, which JSON lacks."""
    return json.dumps(_finite(value), indent=2, allow_nan=False)


def _finite(value: object) -> object:
    match value:
        case float() if not math.isfinite(value):
            return None
        case dict():
            return {key: _finite(item) for key, item in value.items()}
        case list() | tuple():
            return [_finite(item) for item in value]
        case _:
            return value
