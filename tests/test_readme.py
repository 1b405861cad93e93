"""The Python of the README runs as it stands."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
import xarray as xr

README = (Path(__file__).parents[1] / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```python\n(.*?)^```", README, flags=re.MULTILINE | re.DOTALL)


def sea() -> xr.Dataset:
    """A small sea surface temperature with a gap."""
    lat, lon = np.linspace(50, 45, 24), np.linspace(-10, -4, 32)
    sst = (285 + np.cos(lat)[:, None] + 0.1 * lon).astype(np.float32)
    sst[8:14, 10:20] = np.nan
    attrs = {"standard_name": "sea_surface_temperature", "units": "K"}
    return xr.Dataset({"sst": (("lat", "lon"), sst, attrs)}, {"lat": lat, "lon": lon})


@pytest.mark.parametrize("block", BLOCKS)
def test_block_runs(block: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    sea().to_netcdf("sst.nc", engine="netcdf4")
    exec(compile(block, "README.md", "exec"), {})
    with xr.open_zarr("filled.zarr") as filled:
        assert {"sst", "sst_standard_error", "sst_fill_flag"} <= set(filled)


def test_there_is_a_block() -> None:
    assert BLOCKS
