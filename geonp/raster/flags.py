"""Conditions under which values count as missing: one small grammar of tests of masks, probabilities and bit fields.

==========================  ================================================================
``LAYER``                   the layer is not zero
``LAYER=V[,V...]``          it is one of these: numbers, or names of CF ``flag_meanings``
``LAYER!=V[,V...]``         it is none of them
``LAYER>V``                 and ``>=``, ``<``, ``<=``
``LAYER&MASK``              some of these bits are set: ``0b11010``, ``0x1a`` or 26
``LAYER&MASK=V[,V...]``     these bits together are one of these values, also with ``!=``
``PRESET``                  a table of :mod:`geonp.raster.presets`; ``LAYER=PRESET`` for a layer of another name
==========================  ================================================================
"""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd
import xarray as xr

from geonp.errors import InputError, warn
from geonp.raster.arrays import Array, BoolArray
from geonp.raster.kinds import flag_values_of
from geonp.raster.metadata import flag_meanings_of
from geonp.raster.nodata import PACKING, is_packed, packing
from geonp.raster.presets import PRESETS, Preset, preset_of

_COMPARISONS: dict[str, Callable[[Any, Any], Any]] = {
    ">": operator.gt,
    ">=": operator.ge,
    "<": operator.lt,
    "<=": operator.le,
}
_CONDITION = re.compile(
    r"(?P<layer>.+?)\s*"
    r"(?:&\s*(?P<mask>\w+)\s*)?"
    r"(?:(?P<operator>==|!=|>=|<=|=|>|<)\s*(?P<values>[\w.+@-][\w.+@, -]*))?"
)


@dataclass(frozen=True)
class Expression:
    """A condition as it is written.

    Attributes
    ----------
    text : str
    layer : str
        Name of the layer; empty for a preset without one.
    mask, operator : str
        Empty if there is none.
    values : tuple of str
    """

    text: str
    layer: str
    mask: str = ""
    operator: str = ""
    values: tuple[str, ...] = ()

    @property
    def preset(self) -> Preset | None:
        """The table that is named instead of values."""
        return PRESETS.get(self.values[0]) if len(self.values) == 1 and self.operator == "=" else None

    @property
    def compares(self) -> bool:
        """Whether values are compared with a limit."""
        return self.operator in _COMPARISONS

    def on(self, layer: xr.DataArray) -> Test:
        """The test of the values of a layer.

        Raises InputError for a flag that the layer does not have, and masks and limits that are not numbers.
        """
        test = self._test(layer)
        filled = layer.encoding.get("_FillValue")
        if filled is None or layer.dtype.kind != "f" or set(PACKING) & set(layer.encoding) or np.isnan(filled):
            return test
        return replace(test, filled=float(filled))

    def _test(self, layer: xr.DataArray) -> Test:
        if self.preset is not None:
            return Test(self.preset.terms)
        negated = self.operator == "!="
        if self.mask:
            values = tuple(self._number(text, layer) for text in self.values) or (0,)
            return Test(((self._bits(layer), values),), negated or not self.operator)
        if not self.operator:
            return Test((), nonzero=True)
        if self.compares:
            if len(self.values) > 1:
                raise InputError(f"The condition {self.text!r} compares with several values: expected one number.")
            if is_packed(layer.attrs):
                warn(
                    f"The condition {self.text!r} compares stored values: {layer.name} is packed (scale_factor, "
                    "add_offset). To compare in the units, decode the raster before, with xr.decode_cf."
                )
            return Test((), comparison=(self.operator, self._number(self.values[0], layer)))
        named = _named(layer)
        return Test(tuple(self._term(text, layer, named) for text in self.values), negated)

    def _term(self, text: str, layer: xr.DataArray, named: Mapping[str, Term]) -> Term:
        number = _as_number(text)
        if number is not None:
            return None, (number,)
        if text in named:
            return named[text]
        without = "nothing else: the layer has no flag_meanings, and its name is that of no preset"
        others = f"one of {', '.join(named)}" if named else without
        raise InputError(f"The layer {layer.name!r} has no flag {text!r}: expected a number, or {others}.")

    def _number(self, text: str, layer: xr.DataArray) -> float:
        number = _as_number(text)
        if number is None:
            raise InputError(f"The condition {self.text!r} needs numbers: got {text!r} for the layer {layer.name!r}.")
        return number

    def _bits(self, layer: xr.DataArray) -> int:
        number = _as_number(self.mask)
        if not isinstance(number, int):
            raise InputError(
                f"The condition {self.text!r} needs bits after &: got {self.mask!r}, expected an integer such as 26, "
                f"0x1a or 0b11010. Flags by name are written {self.layer}={self.mask}."
            )
        return number


Term = tuple[int | None, tuple[float, ...]]
"""Bits to look at, or None for all, and the values that they may have."""


@dataclass(frozen=True)
class Test:
    """A test of values, of arrays of any shape; a NaN is true for ``!=`` alone.

    Attributes
    ----------
    terms : tuple of Term
        True where one of them holds.
    negated : bool
        True where none of them holds instead.
    nonzero : bool
        True where the values are not zero.
    comparison : tuple, optional
        Operator and limit.
    filled : float, optional
        Value that NaN stands for, in flags that were decoded to floats.
    """

    __test__ = False  # no test of pytest

    terms: tuple[Term, ...]
    negated: bool = False
    nonzero: bool = False
    comparison: tuple[str, float] | None = None
    filled: float | None = None

    @property
    def __name__(self) -> str:
        return "missing"  # dask names tasks by it

    def __call__(self, values: Array) -> BoolArray:
        """True where the condition holds; characters are the numbers that they write, or NaN."""
        values = _numbers(values) if values.dtype.kind in "SUO" else values
        if self.nonzero:
            return np.asarray((values != 0) & (values == values))
        if self.comparison is not None:
            how, limit = self.comparison
            return np.asarray(_COMPARISONS[how](values, limit))
        if self.filled is not None:
            values = np.where(np.isnan(values), self.filled, values)
        found = np.zeros(values.shape, bool)
        for mask, wanted in self.terms:
            of = values if mask is None else _integers(values) & mask
            for value in wanted:
                found |= of == value
        return ~found if self.negated else found


@dataclass(frozen=True, eq=False)
class Condition:
    """An expression on a layer that is not in the raster, such as one of another file."""

    expression: Expression
    layer: xr.DataArray


def parsed(text: str, known: Callable[[str], bool]) -> Expression:
    """Parse a condition; what is `known` as the name of a layer as a whole is one.

    Raises InputError if it is no condition.
    """
    text = text.strip()
    if text in PRESETS and not known(text):
        return Expression(text, "", operator="=", values=(text,))
    if known(text):
        return Expression(text, text)
    found = _CONDITION.fullmatch(text)
    if found is None or (not (found["operator"] or found["mask"]) and set("=<>&") & set(text)):
        raise InputError(
            f"The condition {text!r} is not understood: expected LAYER, LAYER=3,8, LAYER=cloud, LAYER!=4,5, "
            f"LAYER>40, LAYER&0b11010, LAYER&0x300=0x300, or a preset: {', '.join(PRESETS)}."
        )
    values = tuple(part.strip() for part in (found["values"] or "").split(",") if part.strip())
    how = (found["operator"] or "").replace("==", "=")
    return Expression(text, found["layer"].strip(), found["mask"] or "", how, values)


def layer_of(ds: xr.Dataset, name: str) -> tuple[xr.DataArray, Mapping[Any, int]] | None:
    """The layer called `name`, and its place: a variable or coordinate, or a band of the only variable with bands.

    Bands are called by their description, or, in files without such a variable, by their number. The place is the
    position along the dimension of bands, empty for a variable.
    """
    if name in ds.variables:
        return ds[name], {}
    for labels in ds.coords.values():
        if labels.ndim != 1 or labels.dtype.kind not in "OUS" or name not in (texts := list(map(str, labels.values))):
            continue
        (dim,) = labels.dims
        stacks = [da for da in ds.data_vars.values() if dim in da.dims]
        if len(stacks) == 1:
            place = {dim: texts.index(name)}
            return stacks[0].isel(place, drop=True).rename(name), place
    return None


def _named(layer: xr.DataArray) -> Mapping[str, Term]:
    """The flags of a layer by name: those of CF attributes, or of the preset for layers of its name."""
    meanings, values = flag_meanings_of(layer.attrs), flag_values_of(layer)
    given = layer.attrs.get("flag_masks", ())
    given = given.replace(",", " ").split() if isinstance(given, str) else np.ravel(given).tolist()
    masks = [int(mask) for mask in given]
    if not meanings:
        preset = preset_of(str(layer.name))
        return {} if preset is None else preset.flags
    if masks and values:
        return {name: (mask, (value,)) for name, mask, value in zip(meanings, masks, values, strict=False)}
    if masks:  # any of its bits: one, as CF says
        return {name: (mask, (mask,)) for name, mask in zip(meanings, masks, strict=False)}
    return {name: (None, (_unpacked(layer, value),)) for name, value in zip(meanings, values, strict=False)}


def _unpacked(layer: xr.DataArray, stored: float) -> float:
    """A stored value as it is in memory, to the last bit."""
    value = np.array(stored, layer.dtype if layer.dtype.kind == "f" else np.float64)
    scale, offset = packing(layer.encoding)
    value *= scale
    value += offset
    return float(value)


def _as_number(text: str) -> float | None:
    for kind in (lambda number: int(number, 0), int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return None


def _numbers(values: Array) -> Array:
    """The numbers that texts or bytes write, as flags of NetCDF files, NaN for others."""
    codes, known = pd.factorize(values.ravel())
    texts = [one.decode(errors="replace") if isinstance(one, bytes) else str(one) for one in known]
    numbers = [math.nan if (number := _as_number(text.strip())) is None else float(number) for text in texts]
    return np.array([*numbers, math.nan])[codes].reshape(values.shape)  # unknown ones have the code -1


def _integers(values: Array) -> Array:
    """Values as integers, 0 where they are not finite."""
    if values.dtype.kind == "f":
        values = np.where(np.isfinite(values), values, 0)
    return values if values.dtype == np.uint64 else values.astype(np.int64)
