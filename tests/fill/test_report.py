"""Cells are counted while a fill is computed, once, however it is chunked."""

from __future__ import annotations

from typing import Any

import dask.array as da
import numpy as np
import pytest
import xarray as xr

from geonp.errors import InputError
from geonp.fill.infill import infill
from geonp.fill.report import counted


def dataset() -> xr.Dataset:
    """Three slices of one variable, one of them empty, with an infinite value; a variable without gaps; and a text."""
    values = np.add.outer(np.arange(3.0), np.add.outer(np.sin(np.arange(20.0)), np.arange(24.0))).astype("f4")
    values[1], values[0, 4:9, 5:11], values[2, 0, 0] = np.nan, np.nan, np.inf
    whole = np.add.outer(np.arange(20.0), np.arange(24.0))
    return xr.Dataset(
        {"a": (("time", "y", "x"), values), "b": (("x", "y"), whole.T), "note": ("time", ["p", "q", "r"])}
    )


def expected(ds: xr.Dataset, filled: xr.Dataset, name: str) -> dict[str, int]:
    names = ("observed", "filled", "beyond_limit", "outside_domain", "failed")
    flag, others = filled[f"{name}_fill_flag"], [dim for dim in ds[name].dims if dim not in ("y", "x")]
    empty = (flag != 0).all(["y", "x"])
    return {
        "cells": flag.size,
        **{member: int((flag == i).sum()) for i, member in enumerate(names)},
        "infinite": int(np.isinf(ds[name]).sum()),
        "missing": int((flag != 0).sum()),
        "slices": int(np.prod([ds.sizes[dim] for dim in others])),
        "empty_slices": int(empty.sum()),
    }


@pytest.mark.parametrize("chunks", [{}, {"time": 1}, {"y": 7, "x": 24}, {"time": 2, "y": 5, "x": 9}])
def test_counts_are_those_of_the_flags(model: str, chunks: dict[str, int]) -> None:
    ds = dataset()
    mask = np.ones((20, 24), bool)
    mask[4:6] = False
    lazy, counts = counted(ds, infill(ds.chunk(chunks), model=model, mask=mask, max_distance=2))
    filled = lazy.compute()
    xr.testing.assert_identical(
        filled.drop_attrs(), infill(ds.chunk(chunks), model=model, mask=mask, max_distance=2).compute().drop_attrs()
    )
    assert counts() == {name: expected(ds, filled, name) for name in ("a", "b")}
    assert counts()["a"]["empty_slices"] == 1
    assert counts()["a"]["infinite"] == 1


def test_counting_reads_and_computes_nothing_by_itself(model: str) -> None:
    ds, reads = dataset()[["a"]], []

    def read(block: np.ndarray) -> np.ndarray:
        if block.size:
            reads.append(1)
        return block

    values = da.map_blocks(
        read, da.from_array(ds.a.values, chunks=(1, 20, 24)), dtype="f4", meta=np.empty((0, 0, 0), "f4")
    )
    source = ds.assign(a=ds.a.copy(data=values))
    lazy, counts = counted(source, infill(source, model=model))
    assert reads == []
    assert counts()["a"]["cells"] == 0
    lazy.compute()
    assert len(reads) == 3


def test_a_second_computation_counts_nothing_twice(model: str) -> None:
    lazy, counts = counted(dataset(), infill(dataset().chunk(time=1), model=model))
    lazy.compute()
    first: dict[str, Any] = counts()
    lazy.compute()
    assert counts() == first


def test_a_variable_without_any_observed_cell_is_refused(model: str) -> None:
    ds = dataset()
    ds["a"] = ds.a.where(False)
    lazy, _ = counted(ds, infill(ds.chunk(y=8), model=model))
    refused = pytest.raises(InputError, match="Variable 'a' has no observed cell: all 1440 are missing")
    with pytest.warns(UserWarning, match="a has no value anywhere"), refused:
        lazy.compute()
