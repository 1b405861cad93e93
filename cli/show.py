"""How the commands print."""

from __future__ import annotations

from collections.abc import Mapping

__all__ = ["table"]


def table(rows: Mapping[str, object], indent: str = "") -> str:
    """Lay out ``rows`` as aligned lines of key and value, without those that are None."""
    width = max(map(len, rows), default=0)
    return "\n".join(f"{indent}{key:<{width}}  {value}" for key, value in rows.items() if value is not None)
