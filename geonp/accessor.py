"""The ``.geonp`` accessor of DataArray and Dataset: the functions of geonp as methods of a raster."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import xarray as xr

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Hashable, Mapping, Sequence

    import numpy as np
    import numpy.typing as npt

    from geonp.adapt.adapt import Adapted
    from geonp.evaluation.comparison import Comparison
    from geonp.fill.plan import FillPlan
    from geonp.fill.store import Report
    from geonp.io.journal import Record

__all__ = ["GeonpAccessor"]


@xr.register_dataset_accessor("geonp")
@xr.register_dataarray_accessor("geonp")
class GeonpAccessor:
    """Methods of a raster: fill it, plan a fill, evaluate a model on it, adapt a model to it."""

    def __init__(self, obj: xr.DataArray | xr.Dataset) -> None:
        self._obj = obj

    def infill(
        self,
        *,
        model: str | os.PathLike[str] = "tnpkr-sa",
        mask: xr.DataArray | npt.NDArray[np.bool_] | None = None,
        max_distance: float | None = None,
        device: str | None = None,
        batch_size: int | None = None,
        seed: int = 0,
        nodata: float | None = None,
        quantiles: Sequence[float] = (),
        tails: bool = False,
        samples: int = 0,
        across: Hashable | None = None,
    ) -> xr.Dataset:
        """Fill the missing cells, with a standard error for each; see :func:`geonp.infill`.

        Parameters
        ----------
        model : str or path
            Name of a shipped model (``geonp models``), or path of a ``.safetensors`` checkpoint.
        mask : DataArray or array of bool, optional
            Valid domain, ``(rows, columns)``, True where the raster is valid. Missing cells outside the domain stay
            empty; observed cells outside keep their value, but are not used as context.
        max_distance : float, optional
            Largest distance to an observation, in cells, at which a cell is filled. Cells farther away stay empty.
        device : str, optional
            Torch device, such as ``cpu`` or ``cuda``. By default a GPU if there is one.
        batch_size : int, optional
            Number of tiles in one forward pass. By default chosen from the free memory.
        seed : int
            Seed for sampling distant context points.
        nodata : float, optional
            Value of missing cells, used instead of the declared one.
        quantiles : sequence of float
            Probabilities between 0 and 1 of the quantiles to add. ``[0.05, 0.95]`` gives the ends of the 90 % interval.
        tails : bool
            Add the tail of the predictive distribution of each cell. With the mean and the standard error it defines
            the whole distribution, see :mod:`geonp.student`.
        samples : int
            Number of joint samples of the filled cells to add. A sample is a possible raster: neighbouring cells vary
            together, as needed for quantities of several cells (the mean over a gap, a slope, a flow). Cells are drawn
            one after another, each given all before it, so gaps must be small: see :data:`geonp.fill.samples.MAX_GAP`.
            Each slice is held in memory as a whole, `samples` times.
        across : hashable, optional
            Dimension along which slices are filled from each other, such as ``time`` or ``band``. A missing cell that
            some of the eight nearest slices observe is predicted from these slices and from its surroundings, and from
            its surroundings alone; the prediction with the smaller standard error is kept, see
            :mod:`geonp.inference.stack`. A slice without any observed cell stays empty. A model for which
            :func:`geonp.adapt` has found a dimension useful has it as its default, except for samples.

        Returns
        -------
        Dataset
            For each variable ``<name>``: the filled one, ``<name>_standard_error``, ``<name>_fill_flag``, and the
            results that were asked for. Lazy where the raster is.
        """
        from geonp.fill.infill import infill

        return infill(
            self._obj,
            model=model,
            mask=mask,
            max_distance=max_distance,
            device=device,
            batch_size=batch_size,
            seed=seed,
            nodata=nodata,
            quantiles=quantiles,
            tails=tails,
            samples=samples,
            across=across,
        )

    def plan(
        self,
        *,
        model: str | os.PathLike[str] = "tnpkr-sa",
        mask: xr.DataArray | npt.NDArray[np.bool_] | None = None,
        max_distance: float | None = None,
        device: str | None = None,
        batch_size: int | None = None,
        seed: int = 0,
        nodata: float | None = None,
        quantiles: Sequence[float] = (),
        tails: bool = False,
        samples: int = 0,
        across: Hashable | None = None,
    ) -> FillPlan:
        """Plan what :meth:`infill` will do with the same arguments; see :func:`geonp.plan`."""
        from geonp.fill.plan import plan

        return plan(
            self._obj,
            model=model,
            mask=mask,
            max_distance=max_distance,
            device=device,
            batch_size=batch_size,
            seed=seed,
            nodata=nodata,
            quantiles=quantiles,
            tails=tails,
            samples=samples,
            across=across,
        )

    def fill_store(
        self,
        target: str | os.PathLike[str],
        *,
        chunks: int | None = None,
        unit: int | None = None,
        shards: bool = False,
        zarr_format: Literal[2, 3] = 3,
        resume: bool = False,
        overwrite: bool = False,
        workers: int | None = None,
        scheduler: str | None = None,
        storage_options: Mapping[str, Any] | None = None,
        source_options: Mapping[str, Any] | None = None,
        progress: Callable[[Record, int, int], object] | None = None,
        model: str | os.PathLike[str] = "tnpkr-sa",
        mask: xr.DataArray | npt.NDArray[np.bool_] | None = None,
        max_distance: float | None = None,
        device: str | None = None,
        batch_size: int | None = None,
        seed: int = 0,
        nodata: float | None = None,
        quantiles: Sequence[float] = (),
        tails: bool = False,
        samples: int = 0,
        across: Hashable | None = None,
    ) -> Report:
        """Fill the raster into a Zarr store, unit by unit, in bounded memory; see :func:`geonp.fill_store`.

        Parameters
        ----------
        target : str or path
            Path or URL of the store, such as ``s3://bucket/out.zarr``.
        chunks, unit : int, optional
            Rows and columns of a stored chunk, and of a unit of work, a multiple of it.
        shards : bool
            Store each unit as one shard.
        zarr_format : {3, 2}
            GDAL before 3.11 reads format 2 only.
        resume : bool
            Continue an unfinished store; start a new one where there is none.
        overwrite : bool
            Replace what is at `target`.
        workers : int, optional
            Number of processes to start on this machine.
        scheduler : str, optional
            Address of a running Dask scheduler.
        storage_options, source_options : mapping, optional
            Options of the file systems of `target` and of the source of the raster, for fsspec.
        progress : callable, optional
            Called after each unit with its record, the number of finished units, and the number of all.
        model, mask, max_distance, device, batch_size, seed, nodata, quantiles, tails, samples, across
            As in :meth:`infill`.

        Returns
        -------
        Report
            Numbers of cells by variable, and units that failed.
        """
        from geonp.fill.store import fill_store

        return fill_store(
            self._obj,
            target,
            chunks=chunks,
            unit=unit,
            shards=shards,
            zarr_format=zarr_format,
            resume=resume,
            overwrite=overwrite,
            workers=workers,
            scheduler=scheduler,
            storage_options=storage_options,
            source_options=source_options,
            progress=progress,
            model=model,
            mask=mask,
            max_distance=max_distance,
            device=device,
            batch_size=batch_size,
            seed=seed,
            nodata=nodata,
            quantiles=quantiles,
            tails=tails,
            samples=samples,
            across=across,
        )

    def evaluate(self, **options: Any) -> Comparison:
        """Score the model on hidden cells beside classical methods; see :func:`geonp.evaluation.compare.compare`."""
        from geonp.evaluation.compare import compare

        return compare(self._obj, **options)

    def adapt(self, **options: Any) -> Adapted:
        """Train the model further on this raster's observed cells; see :func:`geonp.adapt.adapt.adapt`."""
        from geonp.adapt.adapt import adapt

        return adapt(self._obj, **options)
