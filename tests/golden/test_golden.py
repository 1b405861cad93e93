"""What fills of every kind give stays as it is: dtypes, coordinates, attributes and encodings exactly, values nearly.

After a change of results that is meant to be one::

    python tests/golden/cases.py hash > tests/golden/hashes.json
    python tests/golden/cases.py values tests/golden/values.npz
"""

from __future__ import annotations

import importlib.util
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyproj
import pytest

HERE = Path(__file__).parent

spec = importlib.util.spec_from_file_location("golden_cases", HERE / "cases.py")
assert spec is not None
assert spec.loader is not None
cases = sys.modules["golden_cases"] = importlib.util.module_from_spec(spec)
spec.loader.exec_module(cases)

HASHES = json.loads((HERE / "hashes.json").read_text())["cases"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder with the models, and one thread."""
    path = tmp_path_factory.mktemp("golden")
    with cases.one_thread():
        cases.save_models(path)
        yield path


@pytest.fixture(scope="module")
def reference() -> dict[str, Any]:
    with np.load(HERE / "values.npz") as file:
        return dict(file)


def portable(table: dict[str, Any]) -> dict[str, Any]:
    """A table without what differs between machines and versions: computed floats, texts of PROJ and of codecs.

    So does the order in which a Zarr store lists its variables.
    """
    out, stored = {}, any("compressors" in about.get("encoding", {}) for about in table.values())
    for name, about in table.items():
        kept = dict(about)
        if not name and stored:
            kept["order"] = sorted(kept["order"].split(", "))
        if name and not (kept["coordinate"] or name.endswith("_fill_flag")):
            del kept["sha256"]
        kept["encoding"] = {key: value for key, value in kept.get("encoding", {}).items() if key != "compressors"}
        kept["attrs"] = {
            key: pyproj.CRS.from_wkt(value).to_epsg() if key in {"crs_wkt", "spatial_ref"} else value
            for key, value in kept["attrs"].items()
        }
        out[name] = kept
    return out


def assert_near(name: str, values: np.ndarray, expected: np.ndarray) -> None:
    """Within a thousandth of the range of the values; integers one off in a few cells, as rounding may make them."""
    assert values.shape == expected.shape, name
    if values.dtype.kind == "f":
        atol = 1e-3 * (np.nanmax(expected) - np.nanmin(expected)) + 1e-6
        np.testing.assert_allclose(values, expected, rtol=0, atol=atol, err_msg=name)
    else:
        off = np.abs(values.astype(np.int64) - expected)
        assert off.max() <= 1, name
        assert np.mean(off > 0) < 0.01, name


def test_every_case_has_a_reference(reference: dict[str, Any]) -> None:
    assert set(cases.CASES) == set(HASHES)
    assert {key.split("/")[0] for key in reference} == set(cases.CASES)


@pytest.mark.parametrize("name", cases.CASES)
def test_golden(name: str, folder: Path, reference: dict[str, Any]) -> None:
    found, table = cases.result(name, folder)
    differences = list(cases.differences(portable(HASHES[name]), portable(table), name))
    assert not differences, "\n".join(differences)
    values = dict(cases.values_of(found))
    assert {f"{name}/{key}" for key in values} == {key for key in reference if key.startswith(f"{name}/")}
    for key, array in values.items():
        assert_near(f"{name}/{key}", array, reference[f"{name}/{key}"])
