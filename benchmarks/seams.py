"""Seams: gradients across tile borders over gradients inside tiles, in the gaps of 20 synthetic fields.

Run as ``python benchmarks/seams.py [--model tnpkr-sa] [--fields 20] [--picture seams.png]``. A gradient is the absolute
difference of two neighbouring cells of a gap; the gaps are large clouds that contain whole tiles. Tiles are blended
within a few cells of their border, where seams are possible too, so the profile gives the gradients by the offset from
the border (0 is across it). The true fields are the control: their deviation from 1 is chance.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import numpy.typing as npt
import xarray as xr
from scipy import fft

import geonp
from geonp.inference.checkpoint import load_card
from geonp.raster import gaps

Array = npt.NDArray[np.float64]
BoolArray = npt.NDArray[np.bool_]

SIDE = 160
SPECTRA = ((0.3, 30.0), (0.7, 60.0), (1.0, 15.0), (1.5, 30.0), (2.5, 20.0))
"""Smoothness and length in cells of the fields, in turn."""
SHARE, SCALE = 0.45, 50.0
"""Share and size in cells of the clouds."""
SHOWN = (0, 3, 4)
WHAT = ("values", "standard errors", "truth")


def draw_field(index: int) -> Array:
    """A stationary field with a Matern-like spectrum; every second is anisotropic, every fourth is noisy."""
    rng = np.random.default_rng([index, 1])
    nu, length = SPECTRA[index % len(SPECTRA)]
    ky, kx = 2 * np.pi * np.fft.fftfreq(2 * SIDE)[:, None], 2 * np.pi * np.fft.rfftfreq(2 * SIDE)[None, :]
    angle, stretch = rng.uniform(0, np.pi), 1.5 if index % 2 else 1.0
    k1 = (np.cos(angle) * ky + np.sin(angle) * kx) * length * stretch
    k2 = (np.cos(angle) * kx - np.sin(angle) * ky) * length / stretch
    density = (1 + (k1**2 + k2**2) / (2 * nu)) ** (-nu - 1)
    white = fft.rfft2(rng.standard_normal((2 * SIDE, 2 * SIDE)))
    field = fft.irfft2(white * np.sqrt(density), s=(2 * SIDE, 2 * SIDE))
    field = field[:SIDE, :SIDE] / field.std()
    return np.asarray(field + (0.1 * rng.standard_normal(field.shape) if index % 4 == 3 else 0.0))


def gradient_sums(values: Array, gap: BoolArray, tile_px: int) -> Array:
    """Sum and number of the gradients in gaps, by offset from the preceding tile border, ``(2, tile_px)``.

    Offset 0 is a pair of cells in two tiles, offset ``tile_px - 1`` the last pair before the next border.
    """
    sums = np.zeros((2, tile_px))
    for v, g in ((values, gap), (values.T, gap.T)):
        both = g[1:] & g[:-1]
        offset = np.broadcast_to((np.arange(1, len(v)) % tile_px)[:, None], both.shape)[both]
        sums[0] += np.bincount(offset, np.abs(np.diff(v, axis=0))[both], tile_px)
        sums[1] += np.bincount(offset, minlength=tile_px)
    return sums


def across_over_inside(sums: Array) -> float:
    """Mean gradient across borders over the mean of all other gradients."""
    return float(sums[0, 0] / sums[1, 0] / (sums[0, 1:].sum() / sums[1, 1:].sum()))


def draw_picture(file: Path, filled: list[tuple[Array, BoolArray]]) -> None:
    """Draw fills, with the contrast stretched to the values in gaps, and the magnitude of their gradients."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6 * len(filled), 12), layout="constrained")
    for axes, (values, gap) in zip(figure.subplots(2, len(filled), squeeze=False).T, filled, strict=True):
        steepness = np.hypot(*np.gradient(values))
        for axis, shown, cmap in zip(axes, (values, steepness), ("gray", "magma"), strict=True):
            low, high = np.quantile(shown[gap], (0.02, 0.98))
            axis.imshow(shown, vmin=low, vmax=high, cmap=cmap, interpolation="none")
            axis.contour(gap, levels=[0.5], colors="tab:blue", linewidths=0.6)
            axis.set(xticks=[], yticks=[])
    figure.savefig(file, dpi=110)


def main() -> None:
    """Print the ratios of each field, their means, and the profile around the borders."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="tnpkr-sa", help="name or path of a checkpoint")
    parser.add_argument("--fields", type=int, default=20, help="number of fields")
    parser.add_argument("--picture", type=Path, help="also draw some fills to this PNG file")
    arguments = parser.parse_args()
    neighbourhood = load_card(arguments.model).neighbourhood
    tile_px, lap = neighbourhood.tile_px, neighbourhood.overlap_px
    print(f"| field | smoothness | length | {' | '.join(WHAT)} |\n|---:|---:|---:|---:|---:|---:|")
    ratios, profiles, shown = [], [], []
    for index in range(arguments.fields):
        truth = draw_field(index)
        gap = gaps.cloud_gaps(truth.shape, SHARE, np.random.default_rng([index, 2]), scale=SCALE)
        source = xr.DataArray(np.where(gap, np.nan, truth), dims=("y", "x"), name="field")
        out = geonp.infill(source, model=arguments.model)
        values, error = out["field"].values, out["field_standard_error"].values
        sums = [gradient_sums(v, gap, tile_px) for v in (values, error, truth)]
        ratios.append([across_over_inside(s) for s in sums])
        profiles.append([s[0] / s[1] * s[1].sum() / s[0].sum() for s in sums])
        nu, length = SPECTRA[index % len(SPECTRA)]
        print(f"| {index} | {nu} | {length:.0f} | {' | '.join(f'{r:.3f}' for r in ratios[-1])} |", flush=True)
        if index in SHOWN:
            shown.append((values, gap))
    table = np.array(ratios)
    print(f"| **mean** | | | {' | '.join(f'**{m:.3f}**' for m in table.mean(0))} |")
    print(f"| its uncertainty | | | {' | '.join(f'{s:.3f}' for s in table.std(0) / len(table) ** 0.5)} |")
    print(f"| greatest | | | {' | '.join(f'{m:.3f}' for m in table.max(0))} |")
    print(f"\n| offset from the border, cells | {' | '.join(WHAT)} |\n|---:|---:|---:|---:|")
    profile = np.roll(np.mean(profiles, 0), tile_px // 2 - 1, axis=-1)
    for offset, means in zip(range(1 - tile_px // 2, tile_px // 2 + 1), profile.T, strict=True):
        zone = " (blended)" if abs(offset) <= lap else ""
        print(f"| {offset}{zone} | {' | '.join(f'{m:.3f}' for m in means)} |")
    if arguments.picture:
        draw_picture(arguments.picture, shown)


if __name__ == "__main__":
    main()
