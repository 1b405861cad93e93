"""From tiles to predictions: context points in, the model's forward pass, values out.

The weights are loaded once a process; all that travels to a worker is a small description of them.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from geonp.errors import CheckpointError, InputError, ModelError, PredictionError
from geonp.inference import checkpoint
from geonp.inference.context import Neighbourhood, standardise

if TYPE_CHECKING:
    from torch import nn

__all__ = [
    "Points",
    "Predictor",
    "Tile",
    "batch_bytes",
    "batches",
    "bucket",
    "buckets_up_to",
    "gather",
    "resolve",
    "together",
]

BoolArray = npt.NDArray[np.bool_]
FloatArray = npt.NDArray[np.floating]
IntArray = npt.NDArray[np.intp]

TARGET_BUCKETS = (32, 64, 96, 128, 192, 256, 320, 384, 512, 768)
"""Targets a tile is padded to: bfloat16 kernels are compiled for each shape, so there are few."""

BUCKET_STEP = 64
"""Between the buckets of those that have more."""

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
    classes : int
        How many classes a model of classes has; 0 for one of numbers.
    """

    model: str
    sha256: str
    device: str
    precision: str
    batch_size: int
    neighbourhood: Neighbourhood
    classes: int = 0

    @property
    def outputs(self) -> int:
        """How many numbers are predicted for a cell."""
        return self.classes or 3

    def rooted(self) -> Predictor:
        """The same for another process of this machine, whose working directory may be another."""
        path = os.path.abspath(self.model) if self.model.endswith(".safetensors") else self.model
        return replace(self, model=path)

    def __call__(self, points: Points) -> FloatArray:
        """Mean, standard deviation (in the units of the values) and tail of new measurements, ``(3, batch, n_t)``.

        The tail is that of :mod:`geonp.inference.student`. For a model of classes, whose values are numbers of classes:
        the probability of each, ``(classes, batch, n_t)``. All in float64.

        Raises
        ------
        PredictionError
            Where the model refuses the points, or its own numbers, as those of damaged weights.
        MemoryError
            Where the device has too little memory for the batch.
        """
        import torch

        from geonp.nn.heads import tail_of

        network = _network(self.model, self.sha256, self.device)
        tensors = (torch.from_numpy(a).to(self.device) for a in (points.xc, points.yc, points.xt, points.mask))
        xc, yc, xt, mask = tensors
        if self.neighbourhood.axes:
            axes = torch.tensor(self.neighbourhood.axes, device=xc.device)
            xc, xt = xc @ axes.mT, xt @ axes.mT
        if self.classes:
            yc = torch.nn.functional.one_hot(yc[..., 0].long(), self.classes).to(xc)
        autocast = torch.autocast(_kind(self.device), torch.bfloat16, enabled=self.precision == "bf16")
        with torch.no_grad(), autocast, _one_thread(), _told():
            predicted = network(xc, yc, xt, mask)
        if self.classes:
            return predicted.probs.permute(2, 0, 1).cpu().numpy().astype(np.float64)  # type: ignore[no-any-return]
        moments = torch.stack([predicted.mean, predicted.stddev, tail_of(predicted)])[..., 0]
        out = moments.float().cpu().numpy().astype(np.float64)
        out[:2] *= points.scale[:, None]
        out[0] += points.loc[:, None]
        return out


_LOCK = threading.Lock()
_CALLS = {"running": 0, "threads": 1}
"""How many worker threads predict, and how many threads an operation had before the first of them began."""


@contextmanager
def _one_thread() -> Iterator[None]:
    """Let torch use one thread for each operation in worker threads, which fill the cores with batches.

    The number that one thread sets is the default of all that start later, so each thread sets it back.
    """
    import torch

    if threading.current_thread() is threading.main_thread():
        yield
        return
    with _LOCK:
        if not _CALLS["running"]:
            _CALLS["threads"] = torch.get_num_threads()
        _CALLS["running"] += 1
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(_CALLS["threads"])
        with _LOCK:
            _CALLS["running"] -= 1


@contextmanager
def _told() -> Iterator[None]:
    """Tell what a model raises by its causes: torch has one class for most of them."""
    import torch

    try:
        yield
    except torch.OutOfMemoryError as error:
        raise MemoryError(str(error)) from error
    except (ValueError, RuntimeError) as error:  # torch.linalg's errors are of the latter
        if "DefaultCPUAllocator" in str(error):
            raise MemoryError(str(error)) from error
        raise PredictionError(f"the model failed: {str(error).splitlines()[0]}") from error


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
class Tile:
    """Flat window indices of a tile's context and targets, the weights of the latter, its middle in the window.

    With a `background`, of context and of targets, the values are predicted relative to it.
    """

    context: IntArray
    targets: IntArray
    weights: FloatArray
    middle: tuple[float, float]
    background: tuple[FloatArray, FloatArray] | None = None


def resolve(model: str, device: str | None, batch_size: int | None) -> tuple[Predictor, checkpoint.Card]:
    """Choose device, precision and batch size (tiles) for a model, and check that its weights load.

    Raises
    ------
    ModelError, CheckpointError
        For a model that does not exist, cannot be loaded, or is not for rasters.
    InputError
        For a device that this machine does not have.
    """
    import torch

    _, card = checkpoint.load_model(model)
    _check_rasters(card)
    device = device or ("cuda" if torch.cuda.is_available() else "cpu")
    try:
        kind = torch.device(device).type
        usable = kind in ("cpu", "cuda") and torch.empty(0, device=device) is not None
    except (RuntimeError, AssertionError) as error:
        usable, reason = False, f" ({str(error).split('.')[0].splitlines()[0]})"
    else:
        reason = ""
    if not usable:
        raise InputError(
            f"device {device!r} cannot be used here{reason}: expected cpu, or cuda on a machine with a GPU"
        )
    on_cpu = kind == "cpu"
    fast = _cpu_has_amx() if on_cpu else torch.cuda.is_bf16_supported(including_emulation=False)
    memory = _free_memory() if on_cpu else torch.cuda.mem_get_info(device)[0]
    if batch_size is None:
        batch_size = max(1, min(CPU_BATCH if on_cpu else 128, memory // 4 // batch_bytes(card.neighbourhood, 1, kind)))
        batch_size = 1 << (batch_size.bit_length() - 1)
    precision = "bf16" if fast else "float32"
    return Predictor(model, card.sha256, device, precision, batch_size, card.neighbourhood, card.classes), card


def _check_rasters(card: checkpoint.Card) -> None:
    """See that the numbers of rows and columns can be made the inputs of the model."""
    from geonp.nn.models import translation_equivariant

    axes, n = card.neighbourhood.axes, int(card.config.get("d_x", 2))
    data = card.training.get("data")
    kind = data.get("kind") if isinstance(data, dict) else None
    remedy = "choose another, for example tnpkr-sa"
    if n != len(axes or (0, 1)):
        raise ModelError(
            f"the model {card.name} fills no rasters: its inputs are {n} coordinates, and its card says how "
            f"{len(axes)} of them grow from cell to cell, expected 2 coordinates, or all of them in neighbourhood.axes "
            f"of its recipe; {remedy}"
        )
    if kind is not None and not axes:
        raise ModelError(
            f"the model {card.name} fills no rasters: it was trained on data of kind {kind}, and its card does not say "
            f"how far apart cells are in the units of these, expected neighbourhood.axes in its recipe; {remedy}"
        )
    if kind == "era5" and not translation_equivariant(card.architecture, card.config):
        raise ModelError(
            f"the model {card.name} fills no rasters: its architecture, {card.architecture}, knows places by their "
            "coordinates, which filling does not have, expected one that knows them by differences, as te-pt-tnp; "
            f"{remedy}"
        )


def _kind(device: str) -> str:
    return device.partition(":")[0]


def _cpu_has_amx() -> bool:
    """Whether the processor has matrix units for bfloat16.

    Without them the small products of a tile are no faster in it (with AVX512-BF16) or slower (where it is emulated),
    and results would depend on the shapes of batches.
    """
    import torch

    return bool(getattr(torch.cpu, "_is_amx_tile_supported", bool)())


def _free_memory() -> int:
    try:
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):  # not Linux
        return 4 * 2**30


def batch_bytes(neighbourhood: Neighbourhood, tiles: int, device: str) -> int:
    """Bytes that a batch takes in a forward pass, an upper bound: some float32 numbers for each pair of points.

    Fewer on a CPU, which holds the pairs of one tile at a time.
    """
    n_c, frame = neighbourhood.n_context, 2 * neighbourhood.overlap_px
    single, merged = (neighbourhood.tile_px + frame) ** 2, (neighbourhood.tile_px * neighbourhood.merge + frame) ** 2
    each = 60 if _kind(device) == "cpu" else 300
    return each * n_c * max(tiles * (n_c + min(TARGET_BUCKETS[-1], single)), n_c + merged)


@lru_cache(maxsize=4)
def _network(model: str, sha256: str, device: str) -> nn.Module:
    from copy import deepcopy

    network, card = checkpoint.load_model(model)
    if card.sha256 != sha256:
        raise CheckpointError(
            f"model {model!r} has other weights here than where the job was made: sha256 {card.sha256[:12]}..., "
            f"expected {sha256[:12]}...; install the same geonp, or copy the same checkpoint, everywhere"
        )
    return network if _kind(device) == "cpu" else deepcopy(network).to(device)


def batches(tiles: list[Tile], size: int) -> Iterator[list[Tile]]:
    """Tiles that share a bucket of targets, up to `size` together, fewer of those with more than common targets."""
    batch: list[Tile] = []
    for tile in tiles:
        n_t = bucket(tile.targets.size)
        full = len(batch) >= together(size, n_t)
        if batch and (full or n_t != bucket(batch[0].targets.size)):
            yield batch
            batch = []
        batch.append(tile)
    if batch:
        yield batch


def together(size: int, n_t: int) -> int:
    """How many tiles of `n_t` targets take about as much as `size` common ones."""
    return min(size, max(1, size * TARGET_BUCKETS[-1] // n_t))


def bucket(targets: int) -> int:
    """The number of targets that so many are padded to."""
    return next((b for b in TARGET_BUCKETS if targets <= b), -(-targets // BUCKET_STEP) * BUCKET_STEP)


def buckets_up_to(targets: int) -> int:
    """How many buckets so many targets and fewer are padded to."""
    return sum(b <= targets for b in TARGET_BUCKETS) + max(0, targets - TARGET_BUCKETS[-1]) // BUCKET_STEP


def gather(
    batch: list[Tile], values: FloatArray, n_context: int, standard: tuple[float, float] | tuple[()] = ()
) -> Points:
    """Pad tiles to one shape.

    Values are standardised by the mean and standard deviation in `standard`, else by those of each tile's context.
    """
    size, n_t = len(batch), bucket(batch[0].targets.size)
    flat, width = values.ravel(), values.shape[1]
    xc, xt = np.zeros((size, n_context, 2), np.float32), np.zeros((size, n_t, 2), np.float32)
    yc, mask = np.zeros((size, n_context, 1), np.float32), np.zeros((size, n_context), bool)
    loc, scale = np.zeros(size), np.ones(size)
    for k, tile in enumerate(batch):
        n = tile.context.size
        found = standardise(flat[tile.context], standard, None if tile.background is None else tile.background[0])
        xc[k, :n] = np.stack(np.divmod(tile.context, width), -1) - np.array(tile.middle)
        # padding stays on the lattice of cells, where models are quicker
        targets = np.pad(tile.targets, (0, n_t - tile.targets.size), mode="edge")
        xt[k] = np.stack(np.divmod(targets, width), -1) - np.array(tile.middle)
        yc[k, :n, 0], mask[k, :n] = found.z, True
        loc[k], scale[k] = found.loc, found.scale
    return Points(xc, yc, mask, xt, loc, scale)
