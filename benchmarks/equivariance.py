"""Changes of a fill with the units, the position and the orientation of the raster, in its standard errors.

Run as ``python benchmarks/equivariance.py [--model tnpkr-sa] [--data ../shared/data] [--float32]``. Synthetic rasters
and cuts of those of ``accuracy.py``, as float64 and with simulated gaps, are filled as they are and transformed; the
second fill is transformed back. Constants are in standard deviations of the observed cells, offsets of coordinates in
cells. Rotations and reflections also change the position of cells in their tiles and the sample of distant context. The
last rows, shifted tiles and another seed, show these two effects alone.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import xarray as xr
from accuracy import FIELDS
from scipy import fft

import geonp
from geonp.fill import request
from geonp.raster import gaps

Array = npt.NDArray[np.float64]

SIDE = 64
SYNTHETIC = {"smooth": (2.5, 25.0, 0.0), "rough": (0.5, 25.0, 0.0), "noisy": (1.5, 15.0, 0.3)}
"""Smoothness, length in cells and standard deviation of the noise of the synthetic fields."""
REAL = ("DEM Jacksboro", "SST OSTIA", "chlorophyll")
GAPS = (("clouds", 0.4), ("random", 0.8), ("stripes", 0.3))
"""Kinds of gaps and their share, in turn."""
MARGIN = (5, 11)
"""Rows and columns by which tiles are shifted."""


@dataclass(frozen=True)
class Change:
    """A transformation of a raster, its inverse for values and for standard errors, and the bar that changes must meet.

    `there` takes the raster and `back` the filled values, both with the standard deviation of the observed cells.
    """

    name: str
    there: Callable[[xr.DataArray, float], xr.DataArray]
    back: Callable[[Array, float], Array]
    back_error: Callable[[Array], Array]
    bar: str
    options: dict[str, Any]


def of_values(name: str, factor: float, constant: float) -> Change:
    """Multiply values by a factor, and add a constant times their standard deviation."""
    return Change(
        name,
        lambda raster, sd: raster * factor + constant * sd,
        lambda filled, sd: (filled - constant * sd) / factor,
        lambda error: error / factor,
        "max < 0.001",
        {},
    )


def of_place(name: str, turn: Callable[[Array], Array], turn_back: Callable[[Array], Array], bar: str) -> Change:
    """Reorder rows and columns."""
    return Change(
        name,
        lambda raster, _: xr.DataArray(np.ascontiguousarray(turn(raster.values)), dims=("y", "x"), name=raster.name),
        lambda filled, _: turn_back(filled),
        turn_back,
        bar,
        {},
    )


def moved(cells: float) -> Change:
    """Shift the coordinates."""
    return Change(
        f"coordinates + {cells:g}",
        lambda raster, _: raster.assign_coords(y=raster.y + cells, x=raster.x + cells),
        lambda filled, _: filled,
        lambda error: error,
        "max < 0.001",
        {},
    )


def framed(values: Array) -> Array:
    """Add missing rows and columns at the top and on the left."""
    return np.pad(values, [(n, 0) for n in MARGIN], constant_values=np.nan)


def unframed(values: Array) -> Array:
    """Inverse of :func:`framed`."""
    return values[MARGIN[0] :, MARGIN[1] :]


CHANGES = (
    *(of_values(f"values + {c:g} sd", 1.0, c) for c in (1.0, -1e3, 1e6)),
    *(of_values(f"values x {f:g}", f, 0.0) for f in (1e-6, 1e6)),
    moved(1e6),
    *(
        of_place(
            f"turned by {90 * k} degrees", lambda v, k=k: np.rot90(v, k), lambda v, k=k: np.rot90(v, -k), "mean < 0.1"
        )
        for k in (1, 2, 3)
    ),
    of_place("mirrored, up and down", np.flipud, np.flipud, "mean < 0.1"),
    of_place("mirrored, left and right", np.fliplr, np.fliplr, "mean < 0.1"),
    of_place("tiles begun elsewhere", framed, unframed, ""),
    replace(of_place("another seed", np.copy, np.copy, ""), options={"seed": 1}),
)


def synthetic(index: int, nu: float, length: float, noise: float) -> Array:
    """A stationary field of mean 10 and standard deviation 3; `noise` is in units of the latter."""
    rng = np.random.default_rng([index, 0])
    n = 2 * SIDE
    square = (2 * np.pi * np.hypot(np.fft.fftfreq(n)[:, None], np.fft.rfftfreq(n)[None, :])) ** 2
    white = fft.rfft2(rng.standard_normal((n, n)))
    field = fft.irfft2(white * (1 + length**2 * square / (2 * nu)) ** (-(nu + 1) / 2), s=(n, n))[:SIDE, :SIDE]
    return np.asarray(10 + 3 * (field / field.std() + noise * rng.standard_normal((SIDE, SIDE))))


def rasters(folder: Path) -> dict[str, xr.DataArray]:
    """Rasters with gaps, float64, with coordinates; those without a file are skipped."""
    fields = {name: synthetic(i, *parameters) for i, (name, parameters) in enumerate(SYNTHETIC.items())}
    for name in REAL:
        try:
            fields[name] = FIELDS[name](folder).astype(np.float64)[:SIDE, :SIDE]
        except geonp.GeonpError as error:
            print(f"skipped: {name}: {error}")
    sources = {}
    for i, (name, values) in enumerate(fields.items()):
        kind, share = GAPS[i % len(GAPS)]
        missing = gaps.simulate(kind, values.shape, share, np.random.default_rng([i, 1]))
        axes = {dim: np.arange(n) + 0.5 for dim, n in zip("yx", values.shape, strict=True)}
        cut = np.where(missing, np.nan, values)
        if np.isfinite(cut).mean() > 0.05:
            sources[f"{name}, {kind}"] = xr.DataArray(cut, dims=("y", "x"), coords=axes, name="field")
    return sources


def fill(raster: xr.DataArray, model: str, **options: Any) -> tuple[Array, Array]:
    """Filled values and standard errors."""
    out = geonp.infill(raster, model=model, **options)
    return out["field"].values, out["field_standard_error"].values


def difference(raster: xr.DataArray, base: tuple[Array, Array], change: Change, model: str) -> tuple[Array, Array]:
    """Absolute differences of the filled values and of their standard errors, in standard errors."""
    value, error = base
    # cells without enough context stay empty
    filled = raster.isnull().values & np.isfinite(value)
    sd = float(raster.std())
    other, other_error = fill(change.there(raster, sd), model, **change.options)
    differences = np.abs(change.back(other, sd) - value), np.abs(change.back_error(other_error) - error)
    return differences[0][filled] / error[filled], differences[1][filled] / error[filled]


def use_float32() -> None:
    """Compute in float32 on every machine."""
    resolve = request.resolve

    def exact(*args: Any) -> Any:
        predictor, card = resolve(*args)
        return replace(predictor, precision="float32"), card

    request.resolve = exact


def main() -> None:
    """Print the differences for each change."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="tnpkr-sa", help="name or path of a checkpoint")
    parser.add_argument("--data", type=Path, default=Path("../shared/data"), help="folder of the rasters")
    parser.add_argument("--float32", action="store_true", help="do not use bfloat16")
    arguments = parser.parse_args()
    if arguments.float32:
        use_float32()
    sources = rasters(arguments.data)
    bases = {name: fill(raster, arguments.model) for name, raster in sources.items()}
    print("| change | values: mean | greatest | standard errors: mean | greatest | bar for the values | worst raster |")
    print("|---|---:|---:|---:|---:|---|---|")
    for change in CHANGES:
        parts_of = {name: difference(raster, bases[name], change, arguments.model) for name, raster in sources.items()}
        value, error = (np.concatenate([parts[i] for parts in parts_of.values()]) for i in (0, 1))
        measure = np.max if change.bar.startswith("max") else np.mean
        worst = {name: float(measure(parts[0])) for name, parts in parts_of.items()}
        name = max(worst, key=lambda key, worst=worst: worst[key])
        numbers = " | ".join(f"{v:.2g}" for v in (value.mean(), value.max(), error.mean(), error.max()))
        print(f"| {change.name} | {numbers} | {change.bar} | {name}: {worst[name]:.2g} |", flush=True)
    print(f"\nIn standard errors, over the {value.size:,} filled cells of {len(sources)} rasters.")


if __name__ == "__main__":
    main()
