"""From the window of one chunk to its filled cells: context points in, the model's forward pass, values out.

Everything here is a pure function of NumPy arrays and of a small picklable description of the job; Dask, the command
line and the accessor only schedule it. The weights are loaded once a process.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
from scipy import ndimage

from geonp import checkpoint
from geonp.errors import CheckpointError, InputError, PredictionError
from geonp.metadata import FillFlag
from geonp.points import Neighbourhood, box_of, halo_for, rank, select_context, standardise
from geonp.tiling import shown_once, tiles_with

if TYPE_CHECKING:
    from torch import nn

__all__ = ["TARGET_BUCKETS", "Filled", "Predictor", "fill_window", "resolve"]

BoolArray = npt.NDArray[np.bool_]
FloatArray = npt.NDArray[np.floating]
IntArray = npt.NDArray[np.intp]

TARGET_BUCKETS = (32, 64, 128, 256, 384, 576)
"""Targets a tile is padded to: bfloat16 kernels are compiled for each shape, so there are few."""

CPU_BATCH = 4
"""Tiles in a batch on a CPU: more of them fit neither into its caches nor into memory that malloc keeps."""


@dataclass(frozen=True)
class Predictor:
    """Which weights to run, where and how: all that travels to a worker.

    Attributes
    ----------
    model, sha256 : str
        Name or path of the checkpoint, and the hash its weights must have.
    device, precision : str
        A torch device; ``"bf16"`` or ``"float32"``.
    batch_size : int
        Tiles in one forward pass, at most.
    neighbourhood : Neighbourhood
        The context that the model was trained with.
    """

    model: str
    sha256: str
    device: str
    precision: str
    batch_size: int
    neighbourhood: Neighbourhood

    def __call__(self, points: Points) -> tuple[FloatArray, FloatArray]:
        """Mean and standard deviation ``(batch, n_t)`` of new measurements, float64, in the units of the values."""
        import torch

        network = _network(self.model, self.sha256, self.device)
        tensors = (torch.from_numpy(a).to(self.device) for a in (points.xc, points.yc, points.xt, points.mask))
        xc, yc, xt, mask = tensors
        autocast = torch.autocast(self.device.split(":")[0], torch.bfloat16, enabled=self.precision == "bf16")
        if threading.current_thread() is not threading.main_thread():
            # Dask's threads fill the cores with chunks, which scales better than threads inside of each operation.
            torch.set_num_threads(1)
        with torch.no_grad(), autocast:
            predicted = network(xc, yc, xt, mask)
        loc, scale = (t[..., 0].float().cpu().numpy().astype(np.float64) for t in (predicted.loc, predicted.scale))
        return points.loc[:, None] + points.scale[:, None] * loc, points.scale[:, None] * scale


@dataclass(frozen=True)
class Points:
    """A batch of tiles as the model reads it: standardised values, padded; `loc` and `scale` undo the former."""

    xc: npt.NDArray[np.float32]
    yc: npt.NDArray[np.float32]
    mask: BoolArray
    xt: npt.NDArray[np.float32]
    loc: FloatArray
    scale: FloatArray


@dataclass(frozen=True)
class Filled:
    """One chunk: values, standard errors and :class:`~geonp.metadata.FillFlag`, each ``(rows, cols)``."""

    value: FloatArray
    standard_error: FloatArray
    flag: npt.NDArray[np.int8]


@dataclass(frozen=True)
class _Tile:
    """Flat window indices of a tile's context and targets, the weights of the latter, its middle in the window."""

    context: IntArray
    targets: IntArray
    weights: FloatArray
    middle: tuple[float, float]


def resolve(model: str, device: str | None, batch_size: int | None, memory: int) -> tuple[Predictor, checkpoint.Card]:
    """Choose device, precision and batch size for a model, and check that its weights load.

    Parameters
    ----------
    memory : int
        Bytes that a batch may take when `batch_size` is not given.

    Raises
    ------
    ModelError, CheckpointError
        For a model that does not exist or cannot be loaded.
    InputError
        For a device that this machine does not have.
    """
    import torch

    _, card = checkpoint.load_model(model)
    device = device or ("cuda" if torch.cuda.is_available() else "cpu")
    try:
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0]
        raise InputError(
            f"device {device!r} cannot be used here ({reason}): expected cpu, or cuda on a machine with a GPU"
        ) from error
    on_cpu = device.startswith("cpu")
    fast = bool(torch.ops.mkldnn._is_mkldnn_bf16_supported()) if on_cpu else torch.cuda.is_bf16_supported()
    if batch_size is None:
        batch_size = max(1, min(CPU_BATCH if on_cpu else 128, memory // tile_bytes(card.neighbourhood)))
        batch_size = 1 << (batch_size.bit_length() - 1)
    elif batch_size < 1:
        raise InputError(f"batch_size must be at least 1 tile, got {batch_size}")
    precision = "bf16" if fast else "float32"
    return Predictor(model, card.sha256, device, precision, batch_size, card.neighbourhood), card


def tile_bytes(neighbourhood: Neighbourhood) -> int:
    """Bytes that one tile takes in a forward pass, an upper bound: some 50 float32 numbers for each pair of points."""
    n_c = neighbourhood.n_context
    return 200 * n_c * (n_c + (neighbourhood.tile_px + 2 * neighbourhood.overlap_px) ** 2)


@lru_cache(maxsize=4)
def _network(model: str, sha256: str, device: str) -> nn.Module:
    from copy import deepcopy

    network, card = checkpoint.load_model(model)
    if card.sha256 != sha256:
        raise CheckpointError(
            f"model {model!r} has other weights here than where the job was made: sha256 {card.sha256[:12]}..., "
            f"expected {sha256[:12]}...; install the same geonp, or copy the same checkpoint, everywhere"
        )
    return network if device == "cpu" else deepcopy(network).to(device)


def fill_window(
    values: FloatArray,
    domain_mask: BoolArray,
    rows: IntArray,
    cols: IntArray,
    frame: int,
    core: tuple[slice, slice],
    predictor: Predictor,
    *,
    max_distance: float | None = None,
    seed: int = 0,
    period: int | None = None,
) -> Filled:
    """Fill the missing cells of a chunk from the window around it.

    Parameters
    ----------
    values : array
        ``(rows, cols)``: whole tiles with a frame around them, NaN where missing or outside the raster.
    domain_mask : array
        True where a value may be; cells outside are neither filled nor used as context.
    rows, cols : array of int
        Place of the window's cells in the raster; -1 outside.
    frame : int
        Width of the frame, cells: ``neighbourhood.reach_px`` or more, and not less than `max_distance` unless it shows
        the whole raster.
    core : tuple of slice
        The chunk inside the window; it need not end where tiles do.
    max_distance : float, optional
        Leave cells empty that are farther than this from every observation, in cells.
    seed : int
        Of the choice among far context.
    period : int, optional
        Columns after which the window repeats itself, for a raster that goes round the Earth.

    Raises
    ------
    PredictionError
        When the model returns a value that is not finite.
    """
    observed = ~np.isnan(values)
    missing, context_mask = domain_mask & ~observed, domain_mask & observed
    eligible = missing if max_distance is None else missing & (_distance(context_mask) <= max_distance)
    flag = np.where(observed, FillFlag.OBSERVED, np.where(domain_mask, FillFlag.BEYOND_LIMIT, FillFlag.OUTSIDE_DOMAIN))
    flag = flag.astype(np.int8)
    value = values.copy()
    error = np.where(observed, 0.0, np.nan).astype(values.dtype)
    wanted = np.zeros_like(observed)
    wanted[core] = eligible[core]
    if not wanted.any():
        return Filled(value[core], error[core], flag[core])
    tiles = _tiles(context_mask, missing, wanted, rank(rows, cols, seed), predictor.neighbourhood, frame, period)
    total = np.zeros((3, values.size))
    for batch in _batches(tiles, predictor.batch_size):
        points = _gather(batch, values, predictor.neighbourhood.n_context)
        mean, std = predictor(points)
        for tile, m, s in zip(batch, mean, std, strict=False):
            n = tile.targets.size
            if not (np.isfinite(m[:n]).all() and np.isfinite(s[:n]).all()):
                row, col = rows[tile.targets[0] // cols.size], cols[tile.targets[0] % cols.size]
                raise PredictionError(
                    f"the model returned values that are not finite for the tile around row {row}, column {col}; "
                    "please report it with the data around this tile"
                )
            total[:, tile.targets] += tile.weights * np.stack([m[:n], s[:n], np.ones(n)])
    filled = total[2] > 0
    # Errors of neighbouring tiles stem from the same data: the mean of their standard deviations bounds that of
    # their mean from above, and is reached when they are fully correlated.
    value.ravel()[filled], error.ravel()[filled] = total[:2, filled] / total[2, filled]
    flag.ravel()[filled] = FillFlag.FILLED
    return Filled(value[core], error[core], flag[core])


def _distance(observed_mask: BoolArray) -> FloatArray:
    if not observed_mask.any():
        return np.full(observed_mask.shape, np.inf)
    return np.asarray(ndimage.distance_transform_edt(~observed_mask))


def _tiles(
    context_mask: BoolArray,
    missing: BoolArray,
    wanted: BoolArray,
    ranks: FloatArray,
    neighbourhood: Neighbourhood,
    frame: int,
    period: int | None,
) -> list[_Tile]:
    """The tiles that have wanted cells and enough context, rising in the number of the former."""
    size, reach, lap = neighbourhood.tile_px, neighbourhood.reach_px, neighbourhood.overlap_px
    width = missing.shape[1]
    found = []
    inner = missing[frame : missing.shape[0] - frame, frame : missing.shape[1] - frame]
    blend = _blend_weights(size, lap)
    for i, j in tiles_with(inner, size):
        top, left = frame + i * size, frame + j * size
        patch = np.s_[top - lap : top + size + lap, left - lap : left + size + lap]
        t_row, t_col = np.nonzero(wanted[patch])
        if not t_row.size:
            continue
        whole = np.s_[top - reach : top + size + reach, left - reach : left + size + reach]
        near = shown_once(context_mask[whole], period)
        halo = halo_for(near, neighbourhood)
        side = size + 2 * halo
        origin = (top - halo, left - halo)
        near = near[reach - halo : reach - halo + side, reach - halo : reach - halo + side]
        first_row, last_row, first_col, last_col = box_of(missing[top : top + size, left : left + size])
        box = (first_row + halo, last_row + halo, first_col + halo, last_col + halo)
        near_ranks = ranks[origin[0] : origin[0] + side, origin[1] : origin[1] + side]
        chosen = select_context(near, near_ranks, box, neighbourhood)
        if chosen.size < neighbourhood.min_context:
            continue
        row, col = np.divmod(chosen, side)
        found.append(
            _Tile(
                (row + origin[0]) * width + col + origin[1],
                (t_row + top - lap) * width + t_col + left - lap,
                blend[t_row, t_col],
                (top + (size - 1) / 2, left + (size - 1) / 2),
            )
        )
    return sorted(found, key=lambda tile: tile.targets.size)


def _blend_weights(size: int, overlap: int) -> FloatArray:
    """Weights of a tile's patch, ``(size + 2 overlap)`` squared; those of overlapping patches add up to one."""
    depth = np.minimum(np.arange(size + 2 * overlap), np.arange(size + 2 * overlap)[::-1]) + 0.5
    t = np.minimum(depth / max(2 * overlap, 1), 1.0)
    ramp = t * t * (3 - 2 * t)
    return np.outer(ramp, ramp)


def _batches(tiles: list[_Tile], size: int) -> Iterator[list[_Tile]]:
    """Tiles that share a bucket of targets, up to `size` together."""
    batch: list[_Tile] = []
    for tile in tiles:
        if batch and (len(batch) == size or _bucket(tile) != _bucket(batch[0])):
            yield batch
            batch = []
        batch.append(tile)
    if batch:
        yield batch


def _bucket(tile: _Tile) -> int:
    return next((b for b in TARGET_BUCKETS if tile.targets.size <= b), tile.targets.size)


def _gather(batch: list[_Tile], values: FloatArray, n_context: int) -> Points:
    """Pad tiles to one shape; the batch to a power of two, by its last tile again, for the sake of few shapes."""
    size, n_t = 1 << (len(batch) - 1).bit_length(), _bucket(batch[0])
    flat, width = values.ravel(), values.shape[1]
    xc, xt = np.zeros((size, n_context, 2), np.float32), np.zeros((size, n_t, 2), np.float32)
    yc, mask = np.zeros((size, n_context, 1), np.float32), np.zeros((size, n_context), bool)
    loc, scale = np.zeros(size), np.ones(size)
    for k, tile in enumerate([*batch, *[batch[-1]] * (size - len(batch))]):
        n = tile.context.size
        standard = standardise(flat[tile.context])
        xc[k, :n] = np.stack(np.divmod(tile.context, width), -1) - np.array(tile.middle)
        xt[k, : tile.targets.size] = np.stack(np.divmod(tile.targets, width), -1) - np.array(tile.middle)
        yc[k, :n, 0], mask[k, :n] = standard.z, True
        loc[k], scale[k] = standard.loc, standard.scale
    return Points(xc, yc, mask, xt, loc, scale)
