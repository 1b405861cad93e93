"""The QGIS algorithm, with a stand-in of the classes that it uses, and in a QGIS without windows where there is one."""

from __future__ import annotations

import importlib
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest
import rasterio

FOLDER = Path(__file__).parents[2] / "integrations" / "qgis"
GEONP = Path(sys.executable).with_name("geonp")


class Algorithm:
    """What QGIS does for an algorithm."""

    def parameterAsRasterLayer(self, parameters: dict, name: str, _: object) -> object:  # noqa: N802
        return SimpleNamespace(source=lambda: parameters[name])

    def parameterAsOutputLayer(self, parameters: dict, name: str, _: object) -> str:  # noqa: N802
        return parameters[name]

    def parameterAsString(self, parameters: dict, name: str, _: object) -> str:  # noqa: N802
        return parameters.get(name, "")

    def parameterAsBool(self, parameters: dict, name: str, _: object) -> bool:  # noqa: N802
        return parameters.get(name, False)


class StandInError(Exception):
    """QgsProcessingException."""


@pytest.fixture
def fill(monkeypatch: pytest.MonkeyPatch) -> object:
    core = ModuleType("qgis.core")
    for name in ("Boolean", "Number", "RasterDestination", "RasterLayer", "String"):
        setattr(core, f"QgsProcessingParameter{name}", SimpleNamespace())
    core.QgsProcessingAlgorithm, core.QgsProcessingException = Algorithm, StandInError
    monkeypatch.setitem(sys.modules, "qgis", ModuleType("qgis"))
    monkeypatch.setitem(sys.modules, "qgis.core", core)
    monkeypatch.syspath_prepend(str(FOLDER))
    monkeypatch.setenv("GEONP", str(GEONP))
    yield importlib.import_module("geonp_provider.fill").Fill()
    for name in [name for name in sys.modules if name.startswith("geonp_provider")]:
        del sys.modules[name]


@pytest.fixture
def source(tmp_path: Path) -> Path:
    values = np.add.outer(np.arange(20.0), np.arange(20.0)).astype("int16")
    values[5:9, 5:9] = -1
    place = {"crs": "EPSG:32632", "transform": rasterio.transform.from_origin(5e5, 5e6, 10, 10)}
    with rasterio.open(
        tmp_path / "in.tif", "w", driver="GTiff", width=20, height=20, count=1, dtype="int16", nodata=-1, **place
    ) as file:
        file.write(values, 1)
    return tmp_path / "in.tif"


def test_the_algorithm_fills_a_layer_and_says_what_went_wrong(fill: object, source: Path) -> None:
    lines: list[str] = []
    feedback = SimpleNamespace(pushInfo=lines.append, isCanceled=lambda: False)
    parameters = {"INPUT": str(source), "OUTPUT": str(source.with_name("out.tif")), "VALUES_ONLY": True}
    assert fill.processAlgorithm(parameters, None, feedback) == {"OUTPUT": parameters["OUTPUT"]}
    with rasterio.open(parameters["OUTPUT"]) as file:
        assert file.dtypes == ("int16",)
        assert abs(file.read(1)[7, 7] - 14) <= 1
    assert "--values-only" in lines[0]
    with pytest.raises(StandInError, match=r"none\.tif"):
        fill.processAlgorithm(parameters | {"INPUT": "none.tif"}, None, feedback)
    fill.call(["true"], feedback)
    with pytest.raises(StandInError, match=r"'/none/geonp' cannot be started .*set the variable GEONP"):
        fill.call(["/none/geonp"], feedback)


def test_the_example_without_windows_gives_parameters_of_the_algorithm() -> None:
    (line,) = re.findall(r"^qgis_process run geonp:fill -- (.*)$", (FOLDER / "README.md").read_text(), re.MULTILINE)
    code = (FOLDER / "geonp_provider" / "fill.py").read_text()
    known = set(re.findall(r'QgsProcessingParameter\w+\(\s*"(\w+)"', code))
    given = {word.partition("=")[0] for word in line.split()}
    assert {"INPUT", "OUTPUT"} <= given <= known


IN_QGIS = """
import sys
from qgis.core import QgsApplication
application = QgsApplication([], False)
application.initQgis()
sys.path += ["/usr/share/qgis/python/plugins", sys.argv[1]]
import processing
from processing.core.Processing import Processing
Processing.initialize()
from geonp_provider import classFactory
plugin = classFactory(None)
plugin.initProcessing()
print(processing.run("geonp:fill", {"INPUT": sys.argv[2], "OUTPUT": sys.argv[3], "VALUES_ONLY": True}))
"""
SYSTEM = "/usr/bin/python3"
"""The Python that Debian's QGIS is built for."""


@pytest.mark.skipif(shutil.which("qgis_process") is None or not Path(SYSTEM).exists(), reason="needs QGIS")
def test_the_algorithm_runs_in_qgis(source: Path, tmp_path: Path) -> None:
    environment = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "QT_QPA_PLATFORM": "offscreen"}
    command = [SYSTEM, "-c", IN_QGIS, FOLDER, source, tmp_path / "out.tif"]
    done = subprocess.run(command, env=environment | {"GEONP": str(GEONP)}, capture_output=True, text=True, timeout=300)
    assert "'OUTPUT'" in done.stdout, done.stderr
    with rasterio.open(tmp_path / "out.tif") as file:
        assert abs(file.read(1)[7, 7] - 14) <= 1
