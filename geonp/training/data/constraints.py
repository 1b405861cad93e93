"""Types of recipe values whose constraints pydantic checks, so that impossible values are reported with their key."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator, Field


def _increasing(bounds: tuple[float, float]) -> tuple[float, float]:
    if bounds[0] > bounds[1]:
        raise ValueError(f"got {list(bounds)}, expected the minimum first; swap them")
    return bounds


_Increasing = AfterValidator(_increasing)
_Fraction = Annotated[float, Field(ge=0, lt=1)]

Count = Annotated[int, Field(gt=0)]
"""At least 1."""
Positive = Annotated[float, Field(gt=0)]
"""Above 0."""
Probability = Annotated[float, Field(ge=0, le=1)]
"""From 0 to 1."""
CountRange = Annotated[tuple[Count, Count], _Increasing]
"""Minimum and maximum, at least 1."""
FractionRange = Annotated[tuple[_Fraction, _Fraction], _Increasing]
"""Minimum and maximum, from 0 to less than 1."""
PositiveRange = Annotated[tuple[Positive, Positive], _Increasing]
"""Minimum and maximum, above 0."""
Interval = Annotated[tuple[float, float], _Increasing]
"""Minimum and maximum."""
