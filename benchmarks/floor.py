"""Share of the time of a fill that its arithmetic alone would take.

Run as ``python benchmarks/floor.py [--size 256] [--model tnpkr-sa]``. A raster is filled in one thread. All calls of
matrix products, attention and factorisations are recorded with the shapes, layouts and types of their arguments, except
those that write into an array of the caller. The same calls on random numbers are the floor. The share is the processor
time of the floor over that of the whole fill, tiling and stitching included, in the same run.
"""

from __future__ import annotations

import argparse
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import dask
import numpy as np
import torch
from speed import one_thread, rough, with_gaps
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

import geonp
from geonp.inference.predictor import Predictor
from geonp.raster import gaps

PRODUCTS = ("mm", "addmm", "bmm", "baddbmm", "_scaled_dot_product_flash_attention_for_cpu")
FACTORS = ("linalg_cholesky_ex", "linalg_solve_triangular", "cholesky_inverse", "_linalg_solve_ex")
KINDS = (("random", 0.9), ("clouds", 0.3), ("random", 0.1))

REPEATS = 20

Signature = tuple[Any, ...]


def describe(argument: Any) -> Any:
    """Shape, strides and type of a tensor; other arguments unchanged."""
    return (tuple(argument.shape), argument.stride(), argument.dtype) if isinstance(argument, Tensor) else argument


class Calls(TorchDispatchMode):
    """Counts the calls of the functions above by their arguments."""

    def __init__(self) -> None:
        super().__init__()
        self.counts: Counter[Signature] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Count the call, and make it."""
        if func.overloadpacket.__name__ in PRODUCTS + FACTORS and "out" not in (kwargs or {}):
            options = tuple((key, describe(value)) for key, value in (kwargs or {}).items())
            self.counts[func, tuple(map(describe, args)), options] += 1
        return func(*args, **(kwargs or {}))


@contextmanager
def counted() -> Iterator[Calls]:
    """Count the calls of all predictions, in any thread."""
    calls, predict = Calls(), Predictor.__call__

    def predict_counted(self: Predictor, *args: Any) -> Any:
        with calls:
            return predict(self, *args)

    Predictor.__call__ = predict_counted  # type: ignore[method-assign]
    try:
        yield calls
    finally:
        Predictor.__call__ = predict  # type: ignore[method-assign]


def like(described: Any) -> Any:
    """Random tensor of this shape, layout and type, diagonally dominant if square; other arguments unchanged."""
    if not (isinstance(described, tuple) and len(described) == 3 and isinstance(described[2], torch.dtype)):
        return described
    shape, stride, dtype = described
    size = sum((n - 1) * step for n, step in zip(shape, stride, strict=True)) + 1
    made = torch.randn(size, dtype=dtype).as_strided(shape, stride)
    if len(shape) > 1 and shape[-1] == shape[-2] and 0 not in stride:
        made.diagonal(dim1=-2, dim2=-1).add_(4.0 * shape[-1])
    return made


def seconds(calls: Counter[Signature], names: tuple[str, ...]) -> float:
    """Processor time of the counted calls of some functions."""
    total = 0.0
    for (func, described, options), count in calls.items():
        if func.overloadpacket.__name__ in names:
            args, kwargs = [like(d) for d in described], {key: like(d) for key, d in options}
            func(*args, **kwargs)
            start = time.process_time()
            for _ in range(REPEATS):
                func(*args, **kwargs)
            total += count * (time.process_time() - start) / REPEATS
    return total


def main() -> None:
    """Print the share for three kinds of gaps."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", type=int, default=256, help="rows and columns of the raster")
    parser.add_argument("--model", default="tnpkr-sa", help="name or path of a checkpoint")
    arguments = parser.parse_args()
    print("| gaps | floor / fill | of it products and attention | factorisations | calls |\n|---|---:|---:|---:|---:|")
    with dask.config.set(scheduler="single-threaded", num_workers=1), one_thread(), torch.no_grad():
        for kind, share in KINDS:
            rng = np.random.default_rng(0)
            field = rough(arguments.size, rng)
            array = with_gaps(field, gaps.simulate(kind, field.shape, share, rng))
            geonp.infill(array, model=arguments.model)
            start = time.process_time()
            geonp.infill(array, model=arguments.model)
            whole = time.process_time() - start
            with counted() as calls:
                geonp.infill(array, model=arguments.model)
            parts = [seconds(calls.counts, names) / whole for names in (PRODUCTS, FACTORS)]
            row = [f"{sum(parts):.0%}", *(f"{part:.0%}" for part in parts), f"{calls.counts.total():,}"]
            print(f"| {kind} {share:.0%} | {' | '.join(row)} |", flush=True)


if __name__ == "__main__":
    main()
