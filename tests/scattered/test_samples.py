"""interpolate(samples=n): the joint distribution of a known process, on the plane and on the sphere."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import pytest
import xarray as xr

from geonp.errors import InputError
from geonp.raster.surface import axes_at, embed
from geonp.scattered import joint
from geonp.scattered.interpolate import interpolate

from ..process import predict_exactly


@pytest.fixture(autouse=True)
def known_process(monkeypatch: pytest.MonkeyPatch) -> None:
    predict_exactly(monkeypatch, 4.0)


def stations(geographic: bool) -> pd.DataFrame:
    rng = np.random.default_rng(0)
    table = pd.DataFrame(rng.uniform(0, 32, (60, 2)), columns=["x", "y"])
    table["t"] = rng.standard_normal(60)
    return (
        table.assign(x=table.x - 16, y=table.y + 20).rename(columns={"x": "lon", "y": "lat"}) if geographic else table
    )


@pytest.mark.parametrize("where", ["plane", "map", "space"])
def test_places_vary_together_as_the_process_says(model: str, where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    geographic = where != "plane"
    if where == "space":
        monkeypatch.setattr(joint, "SQUARES", replace(joint.SQUARES, mapped_deg=0.0))
    names = ("lon", "lat") if geographic else ("x", "y")
    along = np.linspace(10, 22, 25)
    at = pd.DataFrame({names[0]: along - 16 * geographic, names[1]: np.full(25, 15.3) + 20 * geographic})
    n = 200 if where == "space" else 400
    out = interpolate(stations(geographic), at, model=model, samples=n)
    scores = ((out.t_sample - out.t) / out.t_standard_error).values
    assert (scores**2).mean() == pytest.approx(1, abs=0.05)
    found = np.corrcoef(scores.T)
    few = interpolate(stations(geographic), at[5:], model=model, samples=3)
    np.testing.assert_allclose(few.t_sample, out.t_sample[:3, 5:], atol=1e-3)
    near, far = (np.diagonal(found, lag).mean() for lag in (1, 20))
    assert near > max(0.2, 2 * far), "neighbours vary together"
    assert np.diagonal(found, 1).min() > 0.05, "also where squares meet"


def test_a_lazy_grid_gives_the_same_samples(model: str) -> None:
    grid = xr.DataArray(np.zeros((12, 16)), {"y": np.arange(12) * 2.0, "x": np.arange(16) * 2.0}, ("y", "x"), "g")
    whole = interpolate(stations(geographic=False), grid, model=model, samples=2, bounds=(-4, 4))
    lazy = interpolate(stations(geographic=False), grid.chunk(x=5, y=7), model=model, samples=2, bounds=(-4, 4))
    assert lazy.t_sample.chunks is not None
    np.testing.assert_allclose(lazy.t_sample, whole.t_sample, atol=1e-3)
    assert (abs(whole.t_sample) <= 4).all()


def test_samples_of_times_are_refused(model: str) -> None:
    table: Any = stations(geographic=False).assign(day=0)
    with pytest.raises(InputError, match="joint samples are of one time: got samples=2 with time='day'"):
        interpolate(table, table[["x", "y"]], time="day", model=model, samples=2)


def test_a_map_keeps_angles_and_lengths_around_each_place() -> None:
    north, east, up = axes = axes_at((10.0, 50.0))
    middle = embed(np.array([[25.0, 35.0]]))[0]
    near = middle + 1e-4 * axes_at((25.0, 35.0))[:2]
    found = joint.on_map(np.stack([middle, *near / np.linalg.norm(near, axis=1, keepdims=True)]), axes)
    derivatives = joint.from_map(middle, axes)
    np.testing.assert_allclose((found[1:] - found[0]) @ derivatives.T, near - middle, atol=1e-8)
    # conformal: longer by the same factor in all directions, that of Snyder (1987, equation 21-4)
    np.testing.assert_allclose(derivatives.T @ derivatives, np.eye(2) * ((1 + middle @ up) / 2) ** 2, atol=1e-12)
    assert found[0] @ [north @ middle, east @ middle] > 0
