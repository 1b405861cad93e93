"""``rio geonp-fill`` is ``geonp fill``."""

from __future__ import annotations

from importlib.metadata import entry_points
from pathlib import Path

import numpy as np
import rasterio
from click.testing import CliRunner
from rasterio.rio.main import main_group


def test_rio_has_the_command_and_fills(tmp_path: Path) -> None:
    (plugin,) = entry_points(group="rasterio.rio_plugins", name="geonp-fill")
    main_group.add_command(plugin.load())
    values = np.ones((16, 16), "float32")
    values[4:8, 4:8] = -9
    place = {"crs": "EPSG:32632", "transform": rasterio.transform.from_origin(5e5, 5e6, 10, 10)}
    shape = {"width": 16, "height": 16, "count": 1, "dtype": "float32"}
    with rasterio.open(tmp_path / "in.tif", "w", driver="GTiff", nodata=-9, **shape, **place) as file:
        file.write(values, 1)
    done = CliRunner().invoke(main_group, ["geonp-fill", f"{tmp_path}/in.tif", f"{tmp_path}/out.tif", "--values-only"])
    assert done.exit_code == 0, done.output
    with rasterio.open(tmp_path / "out.tif") as file:
        np.testing.assert_allclose(file.read(1), 1, atol=1e-3)
    assert "Fill the gaps of the raster IN" in CliRunner().invoke(main_group, ["geonp-fill", "--help"]).output
    assert CliRunner().invoke(main_group, ["geonp-fill", "none.tif", "out.tif"]).exit_code == 1
