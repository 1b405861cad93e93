"""Known standard errors of observations that may not mean what they are read as."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from geonp.errors import warn
from geonp.raster.arrays import Array


@dataclass(frozen=True)
class KnownErrorSettings:
    """Settings of doubtful known errors."""

    beyond_values: float = 10.0
    """An error is far beyond the values if it is more than this many times the largest of them, regardless of sign."""
    beyond_others: float = 100.0
    """It is far beyond the others if it is more than this many times their median."""


KNOWN_ERRORS = KnownErrorSettings()


def warn_of_known_errors(errors: Array, values: Array, column: str = "") -> None:
    """Warn of observations without a known error, and of errors that are likely the nodata value of errors.

    Parameters
    ----------
    errors, values : array
        Of finite values, those of observations.
    column : str
        Of which column the errors are. Those of a part of a raster, without it, have messages that are equal for all
        parts, because warnings are shown once.
    """
    observed = np.isfinite(values)
    known = errors[observed]
    unknown = np.isnan(known)
    if unknown.any():
        what, how, hide = "Some observations have no known error, and", "errors", ": missing=errors.isnull()"
        if column:
            what, how, hide = f"{unknown.sum()} rows have no known error in {column!r}, and", f"points[{column!r}]", ""
        warn(
            f"{what} count as exact, that is more than all others. Give them an error, such as the largest one: "
            f"{how}.fillna({how}.max()), or leave these observations out{hide}."
        )
    positive = known[known > 0]
    if not positive.size:
        return
    limit = max(
        KNOWN_ERRORS.beyond_values * float(np.abs(values[observed]).max()),
        KNOWN_ERRORS.beyond_others * float(np.median(positive)),
    )
    if far := int(np.count_nonzero(positive > limit)):
        what = f"{far} rows have known errors of up to {positive.max():g} in {column!r}," if column else ""
        warn(
            f"{what or 'Some known errors are'} far beyond the other errors and all values, so that their observations "
            "count for nothing. If they stand for unknown errors, declare their nodata value, or give these "
            "observations another error."
        )
