"""The ``.geonp`` accessor of DataArray and Dataset: one-line delegations."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import xarray as xr

if TYPE_CHECKING:
    from geonp.evaluation.comparison import Comparison

__all__ = ["GeonpAccessor"]


@xr.register_dataset_accessor("geonp")
@xr.register_dataarray_accessor("geonp")
class GeonpAccessor:
    """What geonp does to a raster, as methods of it."""

    def __init__(self, obj: xr.DataArray | xr.Dataset) -> None:
        self._obj = obj

    def infill(self, **options: Any) -> xr.Dataset:
        """Fill missing cells, with a standard error for each; the options of :func:`geonp.filling.infill`."""
        from geonp.filling import infill

        return infill(self._obj, **options)

    def plan(self, **options: Any) -> Any:
        """What :meth:`infill` will do with the same options: a :class:`geonp.filling.FillPlan`."""
        from geonp.filling import plan

        return plan(self._obj, **options)

    def evaluate(self, **options: Any) -> Comparison:
        """Score the model on hidden cells beside classical methods; see :func:`geonp.evaluation.compare.compare`."""
        from geonp.evaluation.compare import compare

        return compare(self._obj, **options)
