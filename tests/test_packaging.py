"""What an installation contains, and what ``import geonp`` loads."""

from __future__ import annotations

import ast
import os
import re
import runpy
import shutil
import subprocess
import sys
import tomllib
import zipfile
from importlib.metadata import entry_points
from pathlib import Path

import pytest
import yaml

import geonp

ROOT = Path(__file__).parents[1]
CONFIG = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
SETUPTOOLS = CONFIG["tool"]["setuptools"]
HEAVY = {"torch", "distributed", "rasterio", "rioxarray", "zarr", "matplotlib"}


def folder(package: str) -> Path:
    return ROOT / SETUPTOOLS["package-dir"].get(package, package.replace(".", "/"))


def loaded_by(statement: str) -> set[str]:
    """Top-level modules that a fresh interpreter holds after `statement`."""
    code = f"import sys; {statement}; print(*{{name.partition('.')[0] for name in sys.modules}})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(done.stdout.split())


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Names of the files in a wheel built from the working tree."""
    out = tmp_path_factory.mktemp("wheel")
    build = "from setuptools import build_meta; import sys; build_meta.build_wheel(sys.argv[1])"
    source = tmp_path_factory.mktemp("source") / "geonp"
    copy_tree(source)
    subprocess.run([sys.executable, "-c", build, str(out)], cwd=source, capture_output=True, check=True)
    (path,) = out.glob("*.whl")
    with zipfile.ZipFile(path) as archive:
        return archive.namelist()


def copy_tree(target: Path) -> None:
    """Copy what the wheel is made of, so that the build leaves nothing behind in the working tree."""
    for name in ["pyproject.toml", "README.md", "LICENSE"]:
        target.mkdir(parents=True, exist_ok=True)
        (target / name).write_bytes((ROOT / name).read_bytes())
    for top in ["geonp", "cli", "recipes"]:
        for path in (ROOT / top).rglob("*"):
            if path.is_file() and "__pycache__" not in path.parts:
                copy = target / path.relative_to(ROOT)
                copy.parent.mkdir(parents=True, exist_ok=True)
                copy.write_bytes(path.read_bytes())


def test_package_list_equals_the_folders() -> None:
    nested = {path.parent for path in (ROOT / "geonp").rglob("*.py")}
    found = {".".join(path.relative_to(ROOT).parts) for path in nested} | {"geonp.cli", "geonp.recipes"}
    assert set(SETUPTOOLS["packages"]) == found
    assert all((folder(package) / "__init__.py").is_file() for package in SETUPTOOLS["packages"])


def test_mapped_folders_are_flat_and_have_no_twin() -> None:
    for package, name in SETUPTOOLS["package-dir"].items():
        assert not [path for path in (ROOT / name).iterdir() if path.is_dir() and path.name != "__pycache__"]
        assert not (ROOT / package.replace(".", "/")).exists()


@pytest.mark.parametrize("package", SETUPTOOLS["packages"])
def test_wheel_holds_every_file_of_a_package(package: str, wheel: list[str]) -> None:
    patterns = ["*.py", *SETUPTOOLS["package-data"].get(package, [])]
    files = [path.name for pattern in patterns for path in folder(package).glob(pattern)]
    assert {f"{package.replace('.', '/')}/{name}" for name in files} <= set(wheel)


def test_wheel_installs_geonp_alone(wheel: list[str]) -> None:
    tops = {name.partition("/")[0] for name in wheel}
    assert {top for top in tops if not top.endswith(".dist-info")} == {"geonp"}
    assert any(name.endswith(".dist-info/licenses/LICENSE") for name in wheel)


def test_every_checkpoint_ships_with_its_card(wheel: list[str]) -> None:
    weights = {name for name in wheel if name.endswith(".safetensors")}
    assert weights
    assert {name.replace(".safetensors", ".json") for name in weights} <= set(wheel)


def test_wheel_holds_recipes(wheel: list[str]) -> None:
    assert [name for name in wheel if name.startswith("geonp/recipes/") and name.endswith(".toml")]


def test_import_loads_nothing_heavy() -> None:
    assert loaded_by("import geonp") & HEAVY <= loaded_by("import xarray")


def test_heavy_imports_would_be_seen() -> None:
    assert "rasterio" in loaded_by("import rasterio") & HEAVY


FUNCTIONS = {"adapt", "evaluate", "fill_store", "infill", "interpolate", "lattice", "open_raster", "plan"}
FUNCTIONS |= {"aggregate", "cross_validate", "plot", "values_only", "write_raster"}
MODULES = {"nn", "student", "training"}


def test_the_public_names_are_these() -> None:
    classes = {name: value for name, value in vars(geonp.errors).items() if isinstance(value, type)}
    errors = {name for name, value in classes.items() if issubclass(value, Exception)}
    assert set(geonp.__all__) == {"GeonpAccessor", *FUNCTIONS, *MODULES, *errors}
    assert set(geonp.__all__) <= set(dir(geonp))
    assert all(callable(getattr(geonp, name)) for name in FUNCTIONS)


ONE_IMPORT = """
import os, sys, warnings
import geonp
for name in geonp.__all__:  # with all that these need
    getattr(geonp, name)
for name in [name for name in sys.modules if name.partition(".")[0] == "geonp"]:
    del sys.modules[name]
warnings.simplefilter("ignore")  # the accessor is registered again
for name in sys.argv[1:]:
    if os.fork() == 0:
        exec(f"from geonp import {name}; print({name}.__name__, flush=True)")
        os._exit(0)
    os.wait()
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_function_needs_one_import() -> None:
    command = [sys.executable, "-c", ONE_IMPORT, *sorted(FUNCTIONS)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.split() == sorted(FUNCTIONS), done.stderr


def test_no_submodule_takes_the_place_of_a_function() -> None:
    modules = [path.stem for path in (ROOT / "geonp").iterdir() if path.suffix == ".py" or path.is_dir()]
    assert not FUNCTIONS & {*modules, "cli", "recipes"}


def test_the_modules_of_the_documentation_need_no_import() -> None:
    code = "import geonp; print(geonp.nn.__name__, geonp.student.__name__, geonp.training.__name__)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["geonp.nn", "geonp.inference.student", "geonp.training"]


def test_version_is_the_installed_one() -> None:
    assert geonp.__version__ == CONFIG["project"]["version"]


def test_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="geonp attribute inpaint"):
        _ = geonp.inpaint


def test_entry_points_load() -> None:
    (script,) = entry_points(group="console_scripts", name="geonp")
    assert callable(script.load())


def test_every_imported_package_is_declared() -> None:
    project = CONFIG["project"]
    extras = project["optional-dependencies"].values()
    listed = [*project["dependencies"], *(line for lines in extras for line in lines)]
    named = {re.match(r"[\w-]+", line)[0].replace("-", "_") for line in listed}
    declared = named | {"geonp", "sklearn"} | sys.stdlib_module_names
    imported = set()
    for path in [*(ROOT / "geonp").rglob("*.py"), *(ROOT / "cli").glob("*.py")]:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                imported |= {alias.name.partition(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and not node.level:
                imported.add(node.module.partition(".")[0])
    assert sorted(imported - declared) == []


def test_tested_torch_is_pinned() -> None:
    pins = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    assert "torch==2.13.0" in pins


def test_the_conda_recipe_needs_what_the_wheel_needs() -> None:
    recipe = yaml.safe_load((ROOT / "packaging" / "conda" / "recipe.yaml").read_text(encoding="utf-8"))
    names = {"torch": "pytorch", "dask[array]": "dask-core"}
    needed = {tuple(line.split(">=")) for line in CONFIG["project"]["dependencies"]}
    listed = {tuple(line.split(" >=")) for line in recipe["requirements"]["run"][1:]}
    assert listed == {(names.get(name, name.lower()), bound) for name, bound in needed}
    assert CONFIG["project"]["requires-python"] == f">={recipe['context']['python_min']}"


def test_the_extras_are_in_the_page_on_installing() -> None:
    rows = re.findall(r"^\| `(\w+)` \|", (ROOT / "docs" / "install.md").read_text(encoding="utf-8"), flags=re.MULTILINE)
    assert sorted(rows) == sorted(CONFIG["project"]["optional-dependencies"])


def test_a_release_has_one_version_and_links_that_need_no_repository(tmp_path: Path) -> None:
    release = runpy.run_path(str(ROOT / "packaging" / "release.py"))
    for name in [*release["VERSIONS"], "CHANGELOG.md", "README.md"]:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(ROOT / name, tmp_path / name)
    for version in ["9.8.7", "9.9.0"]:  # the second release starts from the first one
        release["prepare"](tmp_path, version, "https://example.org/geonp", "2030-01-02")
    texts = {name: (tmp_path / name).read_text(encoding="utf-8") for name in release["VERSIONS"]}
    assert all("9.9.0" in text and "9.8.7" not in text for text in texts.values())
    urls = tomllib.loads(texts["pyproject.toml"])["project"]["urls"]
    assert urls["Repository"] == "https://example.org/geonp"
    assert yaml.safe_load(texts["CITATION.cff"])["repository-code"] == "https://example.org/geonp"
    assert yaml.safe_load(texts["packaging/conda/recipe.yaml"])["about"]["repository"] == "https://example.org/geonp"
    assert "## Unreleased\n\n## 9.9.0 (2030-01-02)\n" in (tmp_path / "CHANGELOG.md").read_text(encoding="utf-8")
    links = re.findall(r"\]\((\S+?)\)", (tmp_path / "README.md").read_text(encoding="utf-8"))
    own = [link for link in links if link.startswith("https://example.org/geonp/")]
    assert len(own) > 20
    assert all(link.startswith("https://") for link in links)
    for link in own:
        kind, tag, path = link.removeprefix("https://example.org/geonp/").split("/", 2)
        assert (kind, tag) == ("raw" if path.endswith(".jpg") else "blob", "v9.9.0")
        assert (ROOT / path.partition("#")[0]).exists()
