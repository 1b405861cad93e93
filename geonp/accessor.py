"""The ``.geonp`` accessor of DataArray and Dataset: the functions of geonp as methods of a raster.

Methods have a signature and a description, and no body: they call the function of the same name.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING, Any, Literal, TypeVar, Unpack

import xarray as xr

from geonp.fill.signatures import FillKeywords, takes_fill_options
from geonp.raster.arrays import BoolArray

if TYPE_CHECKING:
    import os
    from collections.abc import Hashable, Mapping, Sequence

    import numpy.typing as npt
    import pandas as pd
    from matplotlib.figure import Figure

    from geonp.adaptation.adapt import Adapted
    from geonp.evaluation.comparison import Comparison
    from geonp.fill.missing import MissingLike
    from geonp.fill.options import Bounds
    from geonp.fill.plan import FillPlan
    from geonp.fill.report import Report
    from geonp.io.engines import Session
    from geonp.io.journal import Record
    from geonp.raster.covariates import CovariateLike

Method = TypeVar("Method", bound=Callable[..., object])


def _forwards_to(module: str) -> Callable[[Method], Method]:
    """Let a method without a body call the function of its name in `module`, which is imported only then."""

    def decorated(method: Method) -> Method:
        @functools.wraps(method)
        def call(self: GeonpAccessor, *args: Any, **options: Any) -> Any:
            return getattr(import_module(module), method.__name__)(self._obj, *args, **options)

        return call  # type: ignore[return-value]

    return decorated


@xr.register_dataset_accessor("geonp")
@xr.register_dataarray_accessor("geonp")
class GeonpAccessor:
    """Methods of a raster: fill gaps, plan a fill, evaluate a model, adapt a model, aggregate and plot a result."""

    def __init__(self, obj: xr.DataArray | xr.Dataset) -> None:
        self._obj = obj

    @_forwards_to("geonp.fill.infill")
    @takes_fill_options
    def infill(
        self,
        *,
        at: xr.DataArray | xr.Dataset | None = None,
        support: Literal["point", "cell"] = "point",
        **options: Unpack[FillKeywords],
    ) -> xr.Dataset:
        """Fill the missing cells, with a standard error for each; see :func:`geonp.infill`.

        Parameters
        ----------
        at : DataArray or Dataset, optional
            Another grid to fill onto: values at the centres of its cells. By default the grid of the raster.
        support : {"point", "cell"}
            On the grid of `at`, predict values at points, or means over its cells.
        **options
            Options of the fill, see :class:`geonp.fill.options.FillOptions`.

        Returns
        -------
        Dataset
            For each variable ``<name>``: the filled values, ``<name>_standard_error``, ``<name>_fill_flag``, and the
            results of the options. Lazy if the raster is.

        Examples
        --------
        >>> dem = xr.DataArray(np.hypot(*np.mgrid[:24, :32]), dims=("y", "x"), name="height")
        >>> dem = dem.where((dem < 20) | (dem > 24))
        >>> filled = dem.geonp.infill(quantiles=(0.05, 0.95))
        >>> filled["height_quantile"].dims
        ('quantile', 'y', 'x')
        """

    @_forwards_to("geonp.fill.plan")
    @takes_fill_options
    def plan(self, **options: Unpack[FillKeywords]) -> FillPlan:
        """Plan what :meth:`infill` will do with the same arguments; see :func:`geonp.plan`.

        Parameters
        ----------
        **options
            Options of the fill, see :class:`geonp.fill.options.FillOptions`.

        Examples
        --------
        >>> dem = xr.DataArray(np.hypot(*np.mgrid[:24, :32]), dims=("y", "x"), name="height")
        >>> dem.where(dem < 30).geonp.plan(device="cpu").missing
        {'height': 119}
        """

    @_forwards_to("geonp.fill.store")
    @takes_fill_options
    def fill_store(
        self,
        target: str | os.PathLike[str] | Session,
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
        **options: Unpack[FillKeywords],
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
        **options
            Options of the fill, as for :meth:`infill`.

        Returns
        -------
        Report
            Numbers of cells by variable, and units that failed.

        Examples
        --------
        >>> dem = xr.DataArray(np.hypot(*np.mgrid[:24, :32]), dims=("y", "x"), name="height")
        >>> dem.where(dem < 30).geonp.fill_store("filled.zarr").variables["height"]["filled"]
        119
        """

    @_forwards_to("geonp.fill.outputs")
    def values_only(self) -> xr.Dataset:
        """Select the filled values of the result of :meth:`infill`; see :func:`geonp.values_only`.

        Examples
        --------
        >>> dem = xr.DataArray(np.hypot(*np.mgrid[:24, :32]), dims=("y", "x"), name="height")
        >>> list(dem.where(dem < 30).geonp.infill().geonp.values_only())
        ['height']
        """

    @_forwards_to("geonp.fill.picture")
    def plot(
        self,
        *,
        variable: Hashable | None = None,
        index: Mapping[Hashable, int] | None = None,
        slices: int = 6,
        points: tuple[npt.ArrayLike, npt.ArrayLike, npt.ArrayLike] | None = None,
    ) -> Figure:
        """Draw a fill: observed and filled values, standard errors and flags; see :func:`geonp.plot`.

        Parameters
        ----------
        variable : hashable, optional
            Variable to draw. By default the first that was filled.
        index : mapping of hashable to int, optional
            Position of the slice along non-spatial dimensions, counted from 0. By default a strip of slices.
        slices : int
            Largest number of slices in a strip.
        points : tuple of array, optional
            Coordinates x and y, and values, of the measurements that the raster was interpolated from.

        Returns
        -------
        matplotlib.figure.Figure
            To write it to a file: ``figure.savefig("fill.png")``.

        Examples
        --------
        >>> dem = xr.DataArray(np.hypot(*np.mgrid[:24, :32]), dims=("y", "x"), name="height")
        >>> dem.where(dem < 30).geonp.infill().geonp.plot().savefig("dem.png")
        """

    @_forwards_to("geonp.fill.aggregate")
    def aggregate(
        self,
        regions: Any,
        statistic: Literal["mean", "sum", "integral", "fraction"] = "mean",
        *,
        threshold: float | None = None,
        names: str | None = None,
        layer: str | None = None,
        all_touched: bool = False,
        samples: int = 200,
        model: str | os.PathLike[str] | None = None,
        across: Hashable | Sequence[Hashable] | None = None,
        empty_slices: bool = False,
        mask: xr.DataArray | BoolArray | None = None,
        max_distance: float | None = None,
        device: str | None = None,
        batch_size: int | None = None,
        seed: int = 0,
        nodata: float | None = None,
        bounds: Bounds | None = None,
        covariates: CovariateLike | Sequence[CovariateLike] | None = None,
        covariate_resampling: str | None = None,
        errors: CovariateLike | None = None,
    ) -> pd.DataFrame:
        """Compute means, sums or fractions of regions with standard errors; see :func:`geonp.aggregate`.

        Parameters
        ----------
        regions : GeoDataFrame, polygons, DataArray, path, int or tuple of int
            Polygons, labels on the grid of the raster, or rows and columns of blocks of cells.
        statistic : {"mean", "sum", "integral", "fraction"}
            Statistic of the values of the cells in a region.
        threshold : float, optional
            Value to exceed, for ``"fraction"``.
        names, layer : str, optional
            Column with the names of the regions, and layer of the file of polygons.
        all_touched : bool
            Use all cells that a polygon touches, not only those whose centre is inside.
        samples : int
            Number of samples to draw if the raster has none.
        model : str or path, optional
            Model to fill and draw with. By default the one that filled the raster.
        across, empty_slices, mask, max_distance, device, batch_size, seed, nodata, bounds, covariates
            As for :meth:`infill`. By default `across` and `empty_slices` are those of the filled raster.
        covariate_resampling, errors
            As for :meth:`infill`.

        Returns
        -------
        DataFrame
            A row for each variable, slice and region.

        Examples
        --------
        >>> dem = xr.DataArray(np.hypot(*np.mgrid[:24, :32]), dims=("y", "x"), name="height")
        >>> dem.where(dem < 30).geonp.infill(samples=30).geonp.aggregate((12, 16))["filled"].tolist()
        [0, 29, 0, 90]
        """

    @_forwards_to("geonp.evaluation.compare")
    def evaluate(
        self,
        *,
        model: str | os.PathLike[str] = "tnpkr-sa",
        holdout: str = "clouds",
        fraction: float = 0.25,
        baselines: Sequence[str] | None = None,
        index: Mapping[Hashable, int] | None = None,
        size: int = 512,
        seed: int = 0,
        nodata: float | None = None,
        missing: MissingLike | Sequence[MissingLike] | None = None,
        device: str | None = None,
        batch_size: int | None = None,
        across: Hashable | Sequence[Hashable] | None = None,
        empty_slices: bool = False,
        bounds: Bounds | None = None,
        covariates: CovariateLike | Sequence[CovariateLike] | None = None,
        covariate_resampling: str | None = None,
        progress: Callable[[str], object] | None = None,
    ) -> Comparison:
        """Score the model and baselines on observed cells that are hidden; see :func:`geonp.evaluate`.

        Parameters
        ----------
        model : str or path
            Name of a shipped model, or path of a ``.safetensors`` checkpoint.
        holdout : {"clouds", "blocks", "stripes", "swath", "random", "gaps", "slice"}
            Cells to hide: simulated gaps; ``"gaps"``, the gaps of the raster, moved to observed cells; or ``"slice"``,
            the whole slice.
        fraction : float
            Share of the cells to hide, between 0 and 1.
        baselines : sequence of str, optional
            Methods to compare with. By default all.
        index : mapping of hashable to int, optional
            Position of the evaluated slice along the non-spatial dimensions, counted from 0.
        size : int
            Largest number of rows and of columns evaluated.
        seed : int
            Seed for the hold-out and for every method.
        nodata, missing, device, batch_size, across, empty_slices, bounds, covariates, covariate_resampling
            As for :meth:`infill`.
        progress : callable, optional
            Called with the name of each method before it starts.

        Returns
        -------
        Comparison
            Predictions and scores of all methods. It prints as tables.

        Examples
        --------
        >>> dem = xr.DataArray(np.hypot(*np.mgrid[:24, :32]), dims=("y", "x"), name="height")
        >>> list(dem.geonp.evaluate(holdout="random", baselines=["nearest"]).predictions)
        ['geonp', 'nearest']
        """

    @_forwards_to("geonp.adaptation.adapt")
    def adapt(
        self,
        *,
        out: str | os.PathLike[str] = "adapted.safetensors",
        model: str | os.PathLike[str] = "tnpkr-sa",
        minutes: float = 5.0,
        steps: int | None = None,
        closer: bool = True,
        mask: xr.DataArray | BoolArray | str | os.PathLike[str] | None = None,
        nodata: float | None = None,
        missing: MissingLike | Sequence[MissingLike] | None = None,
        device: str | None = None,
        seed: int = 0,
        across: Hashable | Sequence[Hashable] | None = None,
        covariates: CovariateLike | Sequence[CovariateLike] | None = None,
        covariate_resampling: str | None = None,
        overwrite: bool = False,
        progress: Callable[[float, float], object] | None = None,
    ) -> Adapted:
        """Fine-tune a model on the observed cells, and write it as a checkpoint; see :func:`geonp.adapt`.

        Parameters
        ----------
        out : str or path
            The ``.safetensors`` file to write.
        model : str or path
            Model to start from.
        minutes : float
            Longest wall-clock time to take.
        steps : int, optional
            Number of training steps, instead of a time.
        closer : bool
            Also try smaller tiles with less context, which fill more slowly.
        mask, nodata, missing, device
            As for :meth:`infill`.
        seed : int
            Seed for the hold-out and for the training, at least 0.
        across : hashable or sequence of hashable, optional
            Dimensions along which regression on other slices is tried. By default all of the raster.
        covariates, covariate_resampling
            As for :meth:`infill`.
        overwrite : bool
            Replace `out` if it exists.
        progress : callable, optional
            Called with the share that is done, and the CRPS relative to that of the model.

        Returns
        -------
        Adapted
            Scores before and after; can be passed as `model` to any function of geonp.

        Examples
        --------
        >>> y, x = np.mgrid[:48, :56]
        >>> dem = xr.DataArray(np.sin(y / 5) * np.cos(x / 7), dims=("y", "x"), name="height")
        >>> dem.geonp.adapt(out="my.safetensors", minutes=10).file.name
        'my.safetensors'
        """
