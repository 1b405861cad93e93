"""The forward pass of a model: a batch of points in, predictions out.

A :class:`Predictor` is a small, picklable description of weights, device and precision. Each process loads the weights
once.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
import psutil

from geonp.errors import CheckpointError, InputError, ModelError, PredictionError, reason
from geonp.inference import checkpoint
from geonp.inference.averaging import averaged
from geonp.inference.batches import BATCHES, batch_bytes
from geonp.inference.context import Neighbourhood
from geonp.inference.covariates import Columns
from geonp.inference.measurements import Measured
from geonp.raster.arrays import BoolArray, Float32Array, FloatArray, IntArray

if TYPE_CHECKING:
    from torch import Tensor, nn

    from geonp.nn.process import LocalProcess
    from geonp.nn.squares import Patch, Reading


@dataclass(frozen=True)
class Predictor:
    """Weights to run, and the device and precision to run them with; all that a worker needs.

    Attributes
    ----------
    model, sha256 : str
        Name or path of the checkpoint, and the hash that its weights must have.
    device, precision : str
        A torch device; ``"bf16"`` or ``"float32"``.
    batch_size : int
        Largest number of tiles in a forward pass.
    neighbourhood : Neighbourhood
        The context that the model was trained with.
    classes : int
        Number of classes of a classifier; 0 for a model of numbers.
    covariates : bool
        Whether the model can use covariates.
    indicators : bool
        Whether a model of numbers predicts classes, see :func:`geonp.nn.indicators.class_probabilities`.
    nearby : bool
        Whether the model can fill small gaps with readings of other tiles, see :mod:`geonp.inference.nearby`.
    """

    model: str
    sha256: str
    device: str
    precision: str
    batch_size: int
    neighbourhood: Neighbourhood
    classes: int = 0
    covariates: bool = False
    indicators: bool = False
    nearby: bool = False

    @property
    def outputs(self) -> int:
        """Numbers that are predicted for a cell: mean, standard error and tail, or a probability for each class."""
        return self.classes or 3

    @property
    def standard(self) -> tuple[float, float] | tuple[()]:
        """Fixed mean and standard deviation to standardise by; empty to use those of each context."""
        return (0.0, 1.0) if self.classes else self.neighbourhood.standard

    def rooted(self) -> Predictor:
        """The same predictor with an absolute path, for a process with another working directory."""
        path = os.path.abspath(self.model) if self.model.endswith(".safetensors") else self.model
        return replace(self, model=path)

    def __call__(self, points: Points) -> FloatArray:
        """Predict new measurements at the targets.

        Tasks with covariates and fewer context points than in training are also predicted without covariates, and both
        predictions are averaged, see :func:`averaged`; not where they are conditioned on measurements.

        Raises PredictionError if the model fails, for example on damaged weights. Raises MemoryError if the device has
        too little memory for the batch.

        Returns
        -------
        array of float64
            Mean and standard deviation in the units of the values, and tail (see :mod:`geonp.inference.student`),
            ``(3, batch, n_t)``; of a classifier, the probability of each class, ``(classes, batch, n_t)``.
        """
        from geonp.nn.heads import KRIGING

        out, density = self._predicted(points)
        if points.covariates is None or points.measured is not None or density is None:
            return out
        few = np.flatnonzero(points.mask.sum(1) < KRIGING.n_trained)
        if few.size:
            alone, of_alone = self._predicted(points.alone(few))
            assert of_alone is not None
            out[:, few] = averaged(alone, out[:, few], of_alone, density[few])
        return out

    def _predicted(self, points: Points) -> tuple[FloatArray, FloatArray | None]:
        """Predictions, and the log density of each observed context value given all others, if the model knows it."""
        import torch

        from geonp.nn.heads import Kriged, tail_of
        from geonp.nn.update import updated

        with self._inputs(points) as (network, inputs):
            if self.indicators:
                from geonp.nn.indicators import class_probabilities

                probabilities = class_probabilities(network, *inputs)
                return np.asarray(probabilities.permute(2, 0, 1).cpu(), np.float64), None
            predicted = network(*inputs, **_beside(network, points, self.device))
            if points.measured is not None:
                xc, _, xt, mask = inputs
                predicted = updated(predicted, xc, xt, mask, *_of_measured(points.measured, self.device))
        if self.classes:
            return predicted.probs.permute(2, 0, 1).cpu().numpy().astype(np.float64), None
        moments = torch.stack([predicted.mean, predicted.stddev, tail_of(predicted)])[..., 0]
        out = moments.float().cpu().numpy().astype(np.float64)
        out[:2] *= points.scale[:, None]
        out[0] += points.loc[:, None]
        if not isinstance(predicted, Kriged):
            return out, None
        density = predicted.log_density.cpu().numpy()
        # masked points come first, and some of them are left out
        return out, np.where(np.sort(points.mask)[:, -density.shape[1] :], density, np.nan)

    def process(self, points: Points) -> LocalProcess:
        """The local Gaussian process of each task, for a model with a kriging head; its errors are those of a call."""
        from geonp.nn.heads import Kriged

        with self._inputs(points) as (network, inputs):
            predicted = network(*inputs, **_beside(network, points, self.device))
            found = predicted.process() if isinstance(predicted, Kriged) else None
        if found is None:
            raise ModelError(
                f"the model {self.model} predicts cells one by one, without the Gaussian process that joint samples "
                "are drawn from; choose another, for example tnpkr-sa"
            )
        if self.neighbourhood.axes:
            axes = found.metric.new_tensor(self.neighbourhood.axes)
            found = replace(found, metric=axes.mT @ found.metric @ axes)
        return found.cpu()

    def readings(self, points: Points) -> list[Reading]:
        """The process of each task, without what varies within it."""
        from geonp.nn.nearby import readings_of

        return readings_of(self.process(points), points.mask, points.loc, points.scale)

    def fill_patch(self, patch: Patch) -> FloatArray:
        """Outputs ``(outputs, rows, cols)`` of a patch of small gaps, NaN elsewhere; for a model with `nearby`."""
        import torch

        network = network_of(self.model, self.sha256, "cpu")
        with torch.inference_mode(), one_thread(), _geonp_errors():
            return network.head.nearby.predict(patch)  # type: ignore[no-any-return, union-attr, operator]

    @contextmanager
    def _inputs(self, points: Points) -> Iterator[tuple[nn.Module, tuple[Tensor, ...]]]:
        """The network with its tensors of a batch, and the settings to call it with."""
        import torch

        network = network_of(self.model, self.sha256, self.device)
        tensors = (torch.from_numpy(a).to(self.device) for a in (points.xc, points.yc, points.xt, points.mask))
        xc, yc, xt, mask = tensors
        if self.neighbourhood.axes:
            axes = torch.tensor(self.neighbourhood.axes, device=xc.device)
            xc, xt = xc @ axes.mT, xt @ axes.mT
        if self.classes:
            yc = torch.nn.functional.one_hot(yc[..., 0].long(), self.classes).to(xc)
        autocast = torch.autocast(_kind(self.device), torch.bfloat16, enabled=self.precision == "bf16")
        with torch.inference_mode(), autocast, one_thread(), _geonp_errors():
            yield network, (xc, yc, xt, mask)


def _of_measured(measured: Measured, device: str) -> Iterator[Tensor]:
    """Values and errors of measurements, and that of their offset, on a device."""
    import torch

    return (torch.as_tensor(a).to(device) for a in (measured.values, measured.errors, measured.offset_error))


def _beside(network: nn.Module, points: Points, device: str) -> dict[str, Any]:
    """Covariates, known errors and kind of a batch as arguments of a network, where they differ from the defaults."""
    import torch

    from geonp.nn.drift import Covariates
    from geonp.nn.heads import KrigingHead

    found: dict[str, Any] = {}
    if points.covariates is not None:
        both = points.covariates.context, points.covariates.targets
        context, targets = (torch.from_numpy(a).to(device) for a in both)
        found["covariates"] = Covariates(context[0], targets[0], context[1], targets[1])
    if points.errors is not None:
        found["errors"] = torch.from_numpy(points.errors).to(device)
        found["estimated"] = points.estimated
    if points.scattered and isinstance(getattr(network, "head", None), KrigingHead):
        found["scattered"] = True
    return found


_LOCK = threading.Lock()
_CALLS = {"running": 0, "threads": 1}
"""How many worker threads predict, and how many threads an operation used before."""


@contextmanager
def one_thread() -> Iterator[None]:
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
def _geonp_errors() -> Iterator[None]:
    """Convert errors of torch to MemoryError or PredictionError; torch has one class for most causes."""
    import torch

    try:
        yield
    except torch.OutOfMemoryError as error:
        raise MemoryError(str(error)) from error
    except MemoryError:
        raise
    except Exception as error:  # of torch and its parts; an odd card leads to any type
        if "DefaultCPUAllocator" in str(error):
            raise MemoryError(str(error)) from error
        raise PredictionError(f"the model failed: {reason(error)}") from error


@dataclass(frozen=True, kw_only=True)
class Points:
    """A padded batch of tiles as the model reads it.

    Attributes
    ----------
    xc, xt : array
        ``(batch, n, 2)``: locations of context and targets.
    yc : array
        ``(batch, n_c, 1)``: standardised values of the context.
    mask : array
        ``(batch, n_c)``: True for context, False for padding.
    loc, scale : array
        ``(batch,)``: what the values were standardised by.
    covariates : Columns or None
        ``(2, batch, n, p)`` at context and targets.
    errors : array or None
        ``(batch, n_c)``: known standard errors of the standardised values.
    measured : Measured or None
        Standardised measurements at the first targets, which predictions are conditioned on.
    scattered : bool
        Whether points may be far closer to each other than the cells of a raster.
    estimated : bool
        Whether values at bounds are estimates, with `errors`.
    """

    xc: Float32Array
    yc: Float32Array
    xt: Float32Array
    mask: BoolArray
    loc: FloatArray
    scale: FloatArray
    covariates: Columns | None = None
    errors: Float32Array | None = None
    measured: Measured | None = None
    scattered: bool = False
    estimated: bool = False

    def alone(self, tasks: IntArray) -> Points:
        """Some tasks without covariates."""
        parts = {name: getattr(self, name)[tasks] for name in ("xc", "yc", "xt", "mask", "loc", "scale")}
        errors = None if self.errors is None else self.errors[tasks]
        return replace(self, **parts, covariates=None, errors=errors)


def resolve(model: str, device: str | None, batch_size: int | None) -> tuple[Predictor, checkpoint.Card]:
    """Choose the device, precision and batch size of a model, and check that its weights load.

    Raises ModelError or CheckpointError if the model does not exist, cannot be loaded, or cannot fill rasters. Raises
    InputError if the device is not available.
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
    # on CPUs with AMX fills in bfloat16 take as long, and differ from those of other machines
    rounded = not on_cpu and torch.cuda.is_bf16_supported(including_emulation=False)
    memory = psutil.virtual_memory().available if on_cpu else torch.cuda.mem_get_info(device)[0]
    if batch_size is None:
        largest = BATCHES.cpu_size if on_cpu else BATCHES.gpu_size
        batch_size = max(1, min(largest, int(BATCHES.memory * memory) // batch_bytes(card.neighbourhood, 1, kind)))
        batch_size = 1 << (batch_size.bit_length() - 1)
    precision = "bf16" if rounded else "float32"
    settings = card.neighbourhood, card.classes, card.uses_covariates
    nearby = bool(card.config.get("nearby")) and not card.classes
    return Predictor(model, card.sha256, device, precision, batch_size, *settings, nearby=nearby), card


def _check_rasters(card: checkpoint.Card) -> None:
    """Check that rows and columns can be converted to the inputs of the model."""
    from geonp.nn.models import translation_equivariant

    axes, n = card.neighbourhood.axes, int(card.config.get("d_x", 2))
    data = card.training.get("data")
    kind = data.get("kind") if isinstance(data, dict) else None
    remedy = "choose another, for example tnpkr-sa"
    if n != len(axes or (0, 1)):
        raise ModelError(
            f"the model {card.name} cannot fill rasters: it has {n} coordinates as inputs, and its card gives their "
            f"steps per cell for {len(axes)} of them; expected 2 coordinates, or all of them in neighbourhood.axes "
            f"of its recipe; {remedy}"
        )
    if kind is not None and not axes:
        raise ModelError(
            f"the model {card.name} cannot fill rasters: it was trained on data of kind {kind}, and its card does "
            f"not give the distance between cells in their units; expected neighbourhood.axes in its recipe; {remedy}"
        )
    if kind == "era5" and not translation_equivariant(card.architecture, card.config):
        raise ModelError(
            f"the model {card.name} cannot fill rasters: its architecture, {card.architecture}, depends on absolute "
            "coordinates, which a fill does not have; expected a translation-equivariant one, such as te-pt-tnp; "
            f"{remedy}"
        )


def _kind(device: str) -> str:
    return device.partition(":")[0]


@lru_cache(maxsize=4)
def network_of(model: str, sha256: str, device: str) -> nn.Module:
    """The network of a model on a device; its weights must have the hash that the fill started with."""
    from copy import deepcopy

    network, card = checkpoint.load_model(model)
    if card.sha256 != sha256:
        raise CheckpointError(
            f"model {model!r} has other weights here than where the job was created: sha256 {card.sha256[:12]}..., "
            f"expected {sha256[:12]}...; install the same geonp, or copy the same checkpoint, everywhere"
        )
    return network if _kind(device) == "cpu" else deepcopy(network).to(device)
