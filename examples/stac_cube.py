"""A STAC search to a filled cube: a catalogue of local COGs, loaded by odc-stac, and filled along time.

Run as ``python examples/stac_cube.py [FOLDER]``. Needs ``pip install 'geonp[stac]'``. The catalogue is made here, of
three dates under clouds; with pystac-client, the items of a search of a server take its place.
"""

from __future__ import annotations

import sys
import tempfile
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
import odc.stac
import pystac
import rioxarray  # noqa: F401
import xarray as xr

import geonp

SIDE, CRS, WEST, NORTH = 64, "EPSG:32633", 500_000.0, 5_100_000.0


def write_catalogue(folder: Path) -> Path:
    """A catalogue of three dates of a vegetation index, 10 m cells, with clouds."""
    catalogue = pystac.Catalog("example", "A vegetation index under clouds")
    y, x = np.indices((SIDE, SIDE))
    rng = np.random.default_rng(0)
    for n in range(3):
        index = 0.5 + 0.2 * np.sin(x / 9) * np.cos(y / 7) + 0.05 * n + 0.01 * rng.standard_normal((SIDE, SIDE))
        cloud = np.hypot(y - 20 * (n + 1), x - 32) < 14
        values = np.where(cloud, np.nan, index).astype(np.float32)
        centres = {"y": NORTH - 10 * (np.arange(SIDE) + 0.5), "x": WEST + 10 * (np.arange(SIDE) + 0.5)}
        raster = xr.DataArray(values, centres, ("y", "x")).rio.write_crs(CRS).rio.write_nodata(np.nan)
        raster.rio.to_raster(folder / f"ndvi_{n}.tif", driver="COG")
        west, south, east, north = raster.rio.transform_bounds("EPSG:4326")
        ring = [[west, south], [east, south], [east, north], [west, north], [west, south]]
        item = pystac.Item(
            f"date-{n}",
            {"type": "Polygon", "coordinates": [ring]},
            [west, south, east, north],
            datetime(2024, 6, 1, tzinfo=UTC) + timedelta(days=5 * n),
            {"proj:code": CRS, "proj:shape": [SIDE, SIDE], "proj:transform": [10, 0, WEST, 0, -10, NORTH]},
        )
        asset = pystac.Asset(str(folder / f"ndvi_{n}.tif"), media_type=pystac.MediaType.COG, roles=["data"])
        item.add_asset("ndvi", asset)
        catalogue.add_item(item)
    catalogue.normalize_and_save(str(folder), pystac.CatalogType.SELF_CONTAINED)
    return folder / "catalog.json"


def filled_cube(catalogue: Path) -> xr.Dataset:
    """The items of a catalogue as a cube, its gaps filled from the cells around and from the other dates."""
    items = list(pystac.Catalog.from_file(str(catalogue)).get_items(recursive=True))
    cube = odc.stac.load(items, bands=["ndvi"], crs=CRS, resolution=10, chunks={"x": 64, "y": 64})
    return geonp.infill(cube, across="time")


def main() -> None:
    """Make the catalogue, fill the cube, and write it."""
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(sys.argv[1] if len(sys.argv) > 1 else temporary).resolve()
        folder.mkdir(parents=True, exist_ok=True)
        cube = filled_cube(write_catalogue(folder)).compute()
        cube.to_zarr(folder / "ndvi.zarr", mode="w")
        flags = cube["ndvi_fill_flag"]
        print(f"{dict(cube.sizes)}: {int((flags != 0).sum())} cells filled, {int(np.isnan(cube['ndvi']).sum())} empty")


if __name__ == "__main__":
    main()
