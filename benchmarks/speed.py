"""Speed and memory of a fill and of scan attention, as ratios to baselines measured in the same run.

Run as ``python benchmarks/speed.py [--size 2000] [--share 0.1] [--model tnpkr-sa]``. With ``--methods`` it instead
compares geonp with local kriging with 32 neighbours (geonp's own, and PyKrige's on a small raster),
``rio.interpolate_na`` and ``rasterio.fill``, on the same raster with the same gaps.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import dask
import numpy as np
import numpy.typing as npt
import rioxarray  # noqa: F401  # registers its accessor
import torch
import xarray as xr
from torch.nn import functional as F

import geonp
from geonp.evaluation.baselines import gdal
from geonp.evaluation.kriging import fit, krige
from geonp.inference.parallel import peak_bytes
from geonp.inference.predictor import Predictor
from geonp.nn import tnp_kr
from geonp.nn.attention import dense_attention
from geonp.nn.bias import KernelDictionary, RBFBias, dictionary_bias, rbf_bias
from geonp.nn.scan import scan_attention
from geonp.raster import gaps


def best(function: Callable[[], Any], repeats: int = 5) -> float:
    """Shortest of several runs after a warm-up, in seconds."""
    function()
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        function()
        times.append(time.perf_counter() - start)
    return min(times)


class Stopwatch:
    """Adds up the time spent in a function."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function, self.seconds = function, 0.0

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the function, and add its time, even if it raises."""
        start = time.perf_counter()
        try:
            return self.function(*args, **kwargs)
        finally:
            self.seconds += time.perf_counter() - start


@contextmanager
def watched(owner: Any, name: str) -> Iterator[Stopwatch]:
    """Wrap ``owner.name`` in a :class:`Stopwatch`."""
    original = getattr(owner, name)
    watch = Stopwatch(original)
    setattr(owner, name, (lambda *a, **k: watch(*a, **k)) if isinstance(owner, type) else watch)
    try:
        yield watch
    finally:
        setattr(owner, name, original)


@contextmanager
def one_thread() -> Iterator[None]:
    """Use one thread in torch."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def raster(size: int, share: float) -> xr.DataArray:
    """A rough synthetic field with gaps shaped like clouds, ``(size, size)`` float32."""
    rng = np.random.default_rng(0)
    field = rough(size, rng)
    return with_gaps(field, gaps.cloud_gaps(field.shape, share, rng, scale=30))


def rough(size: int, rng: np.random.Generator) -> npt.NDArray[np.float64]:
    """A field of unit variance whose spectrum decays with the fourth power, ``(size, size)``."""
    k = np.hypot(np.fft.fftfreq(size)[:, None], np.fft.rfftfreq(size)[None, :])
    field = np.fft.irfft2(np.fft.rfft2(rng.standard_normal((size, size))) * (k + 1 / 200) ** -2, s=(size, size))
    return np.asarray(field / field.std())


def with_gaps(field: npt.NDArray[np.float64], missing: npt.NDArray[np.bool_]) -> xr.DataArray:
    """The field as a float32 raster with missing cells."""
    return xr.DataArray(np.where(missing, np.nan, field).astype(np.float32), dims=("y", "x"), name="field")


def filling(size: int, share: float, model: str) -> None:
    """Print cells per second, peak memory and a breakdown of the time, for one raster in memory."""
    array = raster(size, share)
    missing = int(array.isnull().sum())
    raster_mb = array.nbytes / 2**20
    part = array[:512, :512]
    geonp.infill(part, model=model)
    start = time.perf_counter()
    geonp.infill(array, model=model)
    total = time.perf_counter() - start
    peak = (peak_bytes() or 0) / 2**20
    copy = best(lambda: array.copy(deep=True))
    # in one thread, since the times of several would be added up
    with dask.config.set(scheduler="single-threaded", num_workers=1), one_thread():
        start = time.perf_counter()
        with watched(tnp_kr, "dense_attention") as attention, watched(Predictor, "__call__") as forward:
            geonp.infill(part, model=model)
        alone = time.perf_counter() - start
    print(f"| {size} x {size}, {share:.0%} clouds | |\n|---|---:|")
    print(f"| missing cells | {missing:,} |")
    print(f"| cells a second | {missing / total:,.0f} |")
    print(f"| time, as a multiple of copying the raster | {total / copy:,.0f} |")
    print(f"| share of time in attention | {attention.seconds / alone:.0%} |")
    print(f"| share of time in the rest of the model | {(forward.seconds - attention.seconds) / alone:.0%} |")
    print(f"| share of time outside of it | {1 - forward.seconds / alone:.0%} |")
    print(f"| peak memory of the processes, MiB (the raster: {raster_mb:.0f}) | {peak:,.0f} |")
    print(f"| cores | {os.cpu_count()} |\n")


METHODS = (
    "geonp",
    "kriging, 32 neighbours",
    "PyKrige, 32 neighbours",
    "`rio.interpolate_na`, linear",
    "`rasterio.fill`",
)

LARGEST = {"PyKrige, 32 neighbours": 100}
"""Largest raster of a method: PyKrige allocates a matrix of all pairs of observed cells."""


def method(name: str, size: int, share: float, model: str) -> None:
    """Run one method, and print its seconds and RMSE."""
    array, whole = raster(size, share), raster(size, 0.0)
    missing = array.isnull().values
    sites, at = np.argwhere(~missing).astype(float), np.argwhere(missing).astype(float)
    known = array.values[~missing].astype(float)

    def kriging() -> npt.NDArray[np.floating]:
        return krige(sites, known, at, fit(sites, known, np.random.default_rng(0)), neighbours=32)[0]

    def pykrige() -> npt.NDArray[np.floating]:
        from pykrige.ok import OrdinaryKriging

        fitted = OrdinaryKriging(*sites.T, known, variogram_model="exponential")
        return np.asarray(fitted.execute("points", *at.T, backend="C", n_closest_points=32)[0])

    def projected() -> npt.NDArray[np.floating]:
        there = array.assign_coords(y=np.arange(size), x=np.arange(size)).rio.write_nodata(np.nan).rio.write_crs(3857)
        return np.asarray(there.rio.interpolate_na(method="linear"))[missing]

    fills: tuple[Callable[[], npt.NDArray[np.floating]], ...] = (
        lambda: geonp.infill(array, model=model).field.values[missing],
        kriging,
        pykrige,
        projected,
        lambda: gdal(array.values)[missing],
    )
    geonp.infill(array[:128, :128], model=model)
    start = time.perf_counter()
    filled = fills[METHODS.index(name)]()
    seconds = time.perf_counter() - start
    print(seconds, float(np.sqrt(np.nanmean((filled - whole.values[missing].astype(float)) ** 2))))


def alone(name: str, size: int, share: float, model: str) -> tuple[float, ...]:
    """Seconds and RMSE of one method in a separate process, which may run out of memory."""
    options = ["--size", str(size), "--share", str(share), "--model", model, "--method", name]
    done = subprocess.run([sys.executable, __file__, *options], stdout=subprocess.PIPE, text=True, check=True)
    return tuple(map(float, done.stdout.split()))


def methods(size: int, share: float, model: str) -> None:
    """Print seconds and RMSE of other methods, over those of geonp on the same raster."""
    print(f"| {share:.0%} clouds | cells | time over geonp's | RMSE over geonp's |")
    print("|---|---:|---:|---:|")
    own: dict[int, tuple[float, ...]] = {}
    for name in METHODS:
        side = min(size, LARGEST.get(name, size))
        own[side] = own.get(side) or alone(METHODS[0], side, share, model)
        try:
            result = own[side] if name == METHODS[0] else alone(name, side, share, model)
        except subprocess.CalledProcessError as error:
            print(f"| {name} | {side} x {side} | failed: exit status {error.returncode} | |", flush=True)
            continue
        seconds, rmse = (f / o for f, o in zip(result, own[side], strict=True))
        print(f"| {name} | {side} x {side} | {seconds:.3f} | {rmse:.3f} |", flush=True)
    print()


def attention(n: int = 2048, heads: int = 4, d: int = 16) -> None:
    """Print the time of scan attention over fused attention with a precomputed bias."""
    torch.manual_seed(0)
    q, k, v = (torch.randn(1, heads, n, d) for _ in range(3))
    x, mask = torch.rand(1, n, 2) * 8, torch.ones(1, n, dtype=torch.bool)
    module = RBFBias(heads).requires_grad_(False)
    rbf = (module.a, module.b, module.c)
    bias = rbf_bias(x, x, *rbf)
    ready = best(lambda: F.scaled_dot_product_attention(q, k, v, attn_mask=bias))
    print(f"| attention, {n} queries and keys, {heads} heads of {d}, float32 | multiple |\n|---|---:|")
    print("| `scaled_dot_product_attention` with a ready bias | 1.00 |")
    print(f"| making the bias | {best(lambda: rbf_bias(x, x, *rbf)) / ready:.2f} |")
    made = best(lambda: dense_attention(q, k, v, rbf_bias(x, x, *rbf), mask))
    print(f"| dense attention, bias included | {made / ready:.2f} |")
    for block in (256, 512, 1024):
        scan = best(lambda b=block: scan_attention(q, k, v, x, x, rbf_bias, rbf, mask, block_q=b, block_k=b))
        print(f"| scan attention in blocks of {block}, bias included | {scan / ready:.2f} |")
    kernels = KernelDictionary(2, (0.5, 1.0, 2.0, 4.0, 8.0), ())(x, x)
    shared = best(lambda: F.scaled_dot_product_attention(q, k, v, attn_mask=dictionary_bias(kernels, module.a)))
    print(f"| one layer with the kernels of a shared dictionary, its bias included | {shared / ready:.2f} |")


def main() -> None:
    """Run the benchmarks."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", type=int, default=2000, help="rows and columns of the raster")
    parser.add_argument("--share", type=float, default=0.1, help="share of missing cells")
    parser.add_argument("--model", default="tnpkr-sa", help="name or path of a checkpoint")
    parser.add_argument("--methods", action="store_true", help="compare with other methods")
    parser.add_argument("--method", choices=METHODS, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.method:
        method(arguments.method, arguments.size, arguments.share, arguments.model)
        return
    if arguments.methods:
        methods(arguments.size, arguments.share, arguments.model)
        return
    filling(arguments.size, arguments.share, arguments.model)
    attention()


if __name__ == "__main__":
    main()
