"""The ``.geonp`` accessor of DataArray and Dataset: one-line delegations."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import xarray as xr

if TYPE_CHECKING:
    import os
    from typing import Unpack

    from geonp.adapt.adapt import Adapted
    from geonp.evaluation.comparison import Comparison
    from geonp.fill.infill import FillPlan
    from geonp.fill.request import FillOptions
    from geonp.fill.store import Report

__all__ = ["GeonpAccessor"]


@xr.register_dataset_accessor("geonp")
@xr.register_dataarray_accessor("geonp")
class GeonpAccessor:
    """What geonp does to a raster, as methods of it."""

    def __init__(self, obj: xr.DataArray | xr.Dataset) -> None:
        self._obj = obj

    def infill(self, **options: Unpack[FillOptions]) -> xr.Dataset:
        """Fill missing cells, with a standard error for each; the options of :func:`geonp.fill.infill.infill`.

        They are ``model``, ``mask``, ``max_distance``, ``device``, ``batch_size``, ``seed``, ``nodata``, ``quantiles``,
        ``tails``, ``samples`` and ``across``.
        """
        from geonp.fill.infill import infill

        return infill(self._obj, **options)

    def fill_store(self, target: str | os.PathLike[str], **options: Any) -> Report:
        """Fill into a Zarr store, resumably, in memory that does not grow; see :func:`geonp.fill.store.fill_store`."""
        from geonp.fill.store import fill_store

        return fill_store(self._obj, target, **options)

    def plan(self, **options: Unpack[FillOptions]) -> FillPlan:
        """What :meth:`infill` will do with the same options; see :func:`geonp.fill.infill.plan`."""
        from geonp.fill.infill import plan

        return plan(self._obj, **options)

    def evaluate(self, **options: Any) -> Comparison:
        """Score the model on hidden cells beside classical methods; see :func:`geonp.evaluation.compare.compare`."""
        from geonp.evaluation.compare import compare

        return compare(self._obj, **options)

    def adapt(self, **options: Any) -> Adapted:
        """Train the model further on this raster's observed cells; see :func:`geonp.adapt.adapt.adapt`."""
        from geonp.adapt.adapt import adapt

        return adapt(self._obj, **options)
