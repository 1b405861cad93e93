"""Units of the columns of a table."""

from __future__ import annotations

import re
from collections.abc import Sequence

from geonp.errors import InputError, warn


def bracketed(columns: Sequence[str]) -> dict[str, tuple[str, str]]:
    """Names and units of the columns named as ``temp [degC]``, where no other column has this name."""
    matches = {column: re.fullmatch(r"(.*\S)\s*\[([^\[\]]+)\]", column) for column in columns}
    found = {column: (match[1], match[2].strip()) for column, match in matches.items() if match}
    names = [found.get(column, (column,))[0] for column in columns]
    return {column: pair for column, pair in found.items() if names.count(pair[0]) == 1}


def units_of(units: str | Sequence[str] | None, names: Sequence[str]) -> dict[str, str]:
    """Given units of columns of values by name. Raises InputError for neither one nor as many units as columns."""
    if units is None:
        return {}
    each = [units] if isinstance(units, str) else list(units)
    if len(each) not in (1, len(names)):
        raise InputError(
            f"units (--units) must be given once, or for each column of values: got {', '.join(each)} for "
            f"{', '.join(names)}"
        )
    return dict(zip(names, each * (len(names) // len(each)), strict=True))


def warn_of_other_units(units: dict[str, tuple[str, str]]) -> None:
    """Warn of columns whose own units are replaced by others, by name: own and given units."""
    for name, (own, given) in units.items():
        if own and own != given:
            warn(
                f"column {name!r} has the units {own!r}, and {given!r} (units, --units) replaces them: values are not "
                "converted. Leave the option out, or convert the column first."
            )
