"""The layer table, the homes of third-party packages and the size budget of CONTRIBUTING.md, read from syntax trees.

Every rule is a function from one module's source to the list of its violations, so each can be shown to fail.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FOLDERS = {"geonp": ROOT / "geonp", "geonp.cli": ROOT / "cli"}

MAX_MODULE_LINES = 400
MAX_FUNCTION_LINES = 60

ORDER = "raster -> io, nn -> inference -> fill, training -> scattered -> adaptation, evaluation -> accessor, cli"
"""A module imports from its own package or from one farther to the left; everything may import ``geonp.errors``."""

LEVELS = {f"geonp.{name}": level for level, names in enumerate(ORDER.split(" -> ")) for name in names.split(", ")}
TOP_MODULES = {"geonp", "geonp.__main__", "geonp.accessor", "geonp.errors"}
MOST_ROOMS = 18
"""Packages and top-level modules together."""
MOST_LOOSE_NUMBERS = 45
"""Numeric constants of modules: definitions, as the radius of the Earth, not numbers that someone could tune."""

EMPTY_PACKAGES = {"geonp.weights", *LEVELS} - {"geonp.accessor", "geonp.cli"} | {"geonp.nn.zoo", "geonp.training.data"}
"""Packages whose ``__init__`` imports nothing of geonp, so that importing one of their modules loads it alone."""

HOMES = {
    "torch": {
        "geonp.nn",
        "geonp.inference.checkpoint",
        "geonp.inference.predictor",
        "geonp.training",
        "geonp.adaptation",
    },
    "gpytorch": {"geonp.nn.zoo.gp"},
    "sklearn": {"geonp.training.data.images"},
    "cdsapi": {"geonp.training.data.era5"},
    "lightning_fabric": {"geonp.training.loop"},
    "safetensors": {"geonp.inference.checkpoint"},
    "rasterio": {"geonp.io", "geonp.evaluation.baselines"},
    "rioxarray": {"geonp.io"},
    "pyogrio": {"geonp.io"},
    "shapely": {"geonp.io"},
    "zarr": {"geonp.io"},
}
"""The only modules, or packages of them, that may import these third-party packages."""

BANNED = {"geonp.nn": {"xarray", "dask", "zarr", "rasterio", "rioxarray", "netCDF4", "pathlib"}}

ZOO, ZOO_KEEPERS = "geonp.nn.zoo", {"geonp.nn.models", "geonp.nn.zoo"}
"""The papers' other architectures, and the modules that may import them."""

PRINTERS = {"geonp.cli", "geonp.training.loop"}

Rule = Callable[[str, str], list[str]]
Function = ast.FunctionDef | ast.AsyncFunctionDef


def discover() -> dict[str, Path]:
    found = {}
    for package, folder in FOLDERS.items():
        for path in sorted(folder.rglob("*.py")):
            parts = [part for part in path.relative_to(folder).with_suffix("").parts if part != "__init__"]
            found[".".join([package, *parts])] = path
    return found


MODULES = discover()


def within(module: str, homes: set[str]) -> bool:
    return any(module == home or module.startswith(home + ".") for home in homes)


def package_of(module: str) -> str:
    """The package of ``ORDER`` that a module belongs to: ``geonp.nn`` for ``geonp.nn.zoo.cnp``."""
    found = ".".join(module.split(".")[:2])
    if found not in LEVELS:
        raise LookupError(f"{found} is not in the layer rule: add it to ORDER and to CONTRIBUTING.md")
    return found


def imports(source: str, module: str) -> Iterator[str]:
    """Absolute names of the modules that `source` imports, at any depth of the code."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            start = module.split(".")[: -node.level] if node.level else []
            origin = ".".join([*start, *filter(None, [node.module])])
            for alias in node.names:
                name = f"{origin}.{alias.name}"
                yield name if name in MODULES else origin


def functions(source: str) -> Iterator[Function]:
    return (node for node in ast.walk(ast.parse(source)) if isinstance(node, Function))


def upward_imports(source: str, module: str) -> list[str]:
    if module in {"geonp", "geonp.__main__", "geonp.weights"}:
        return []
    found = []
    for name in imports(source, module):
        if name.partition(".")[0] != "geonp" or name == "geonp.errors":
            continue
        if module == "geonp.errors" or name == "geonp":
            found.append(f"{module} must not import {name}")
            continue
        own, other = package_of(module), package_of(name)
        if own != other and LEVELS[other] >= LEVELS[own]:
            found.append(f"{module} must not import {name}: {ORDER}")
    return found


def homeless_imports(source: str, module: str) -> list[str]:
    roots = {name.partition(".")[0] for name in imports(source, module)}
    found = [
        f"{root} belongs to {sorted(HOMES[root])}" for root in roots & set(HOMES) if not within(module, HOMES[root])
    ]
    for package, banned in BANNED.items():
        if within(module, {package}):
            found += [f"{package} must not know {root}" for root in roots & banned]
    return found


def zoo_imports(source: str, module: str) -> list[str]:
    names = [] if within(module, ZOO_KEEPERS) else [name for name in imports(source, module) if within(name, {ZOO})]
    return [f"{module} must not import {name}: build it by name with geonp.nn.models" for name in names]


def filled_packages(source: str, module: str) -> list[str]:
    inner = [name for name in imports(source, module) if name.partition(".")[0] == "geonp"]
    return [f"the __init__ of {module} must not import {name}" for name in inner if module in EMPTY_PACKAGES]


def prints(source: str, module: str) -> list[str]:
    calls = (node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Call))
    lines = [call.lineno for call in calls if isinstance(call.func, ast.Name) and call.func.id == "print"]
    return [] if within(module, PRINTERS) else [f"print in line {line}" for line in lines]


def long_modules(source: str, module: str) -> list[str]:
    lines = len(source.splitlines())
    return [f"{module} has {lines} lines, at most {MAX_MODULE_LINES}"] if lines > MAX_MODULE_LINES else []


def long_functions(source: str, module: str) -> list[str]:
    found = []
    for node in functions(source):
        first = node.body[0]
        described = ast.get_docstring(node) is not None
        lines = node.end_lineno - node.lineno + 1 - (first.end_lineno - first.lineno + 1 if described else 0)
        if lines > MAX_FUNCTION_LINES:
            found.append(f"{node.name} has {lines} lines beside its docstring, at most {MAX_FUNCTION_LINES}")
    return found


def untyped_arguments(source: str, module: str) -> list[str]:
    found = []
    for node in functions(source):
        given = node.args
        every = [*given.posonlyargs, *given.args, *given.kwonlyargs, *filter(None, [given.vararg, given.kwarg])]
        names = [arg.arg for arg in every if arg.annotation is None and arg.arg not in {"self", "cls"}]
        found += [f"{node.name}: argument {name} has no type" for name in names]
        found += [f"{node.name} has no return type"] if node.returns is None else []
    return found


def undocumented_names(source: str, module: str) -> list[str]:
    body = ast.parse(source).body
    found = [] if ast.get_docstring(ast.parse(source)) else [f"{module} has no docstring"]
    for node in body:
        if isinstance(node, ast.ClassDef | Function) and not node.name.startswith("_") and not ast.get_docstring(node):
            found.append(f"{node.name} has no docstring")
    for node, following in zip(body, [*body, None][1:], strict=True):
        documented = isinstance(following, ast.Expr) and isinstance(following.value, ast.Constant)
        # instances of settings are described by their class, which comes before them
        names = [] if is_settings(node) else [name for name in assigned(node) if re.fullmatch("[A-Z][A-Z_0-9]+", name)]
        found += [f"{name} is not followed by a docstring" for name in names if not documented]
    return found


def assigned(node: ast.stmt) -> list[str]:
    """Names that a statement gives a value; an annotation without a value gives none."""
    targets = node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
    return [target.id for target in targets if isinstance(target, ast.Name) and node.value is not None]


def is_settings(node: ast.stmt) -> bool:
    """Whether a statement gives a name to an instance of a settings class."""
    return isinstance(node, ast.Assign) and ast.unparse(node.value).partition("(")[0].endswith("Settings")


def loose_numbers(source: str) -> list[str]:
    """Module constants that are numbers or tuples of numbers; those of settings objects are not among them."""
    found = []
    for node in ast.parse(source).body:
        names, value = assigned(node), getattr(node, "value", None)
        if names and isinstance(value, ast.expr):
            parts = value.elts if isinstance(value, ast.Tuple) else [value]
            found += names if all(map(is_number, parts)) else []
    return found


def is_number(node: ast.expr) -> bool:
    if isinstance(node, ast.BinOp):
        return is_number(node.left) and is_number(node.right)
    if isinstance(node, ast.UnaryOp):
        return is_number(node.operand)
    return isinstance(node, ast.Constant) and type(node.value) in (int, float)


RULES: list[Rule] = [
    upward_imports,
    homeless_imports,
    zoo_imports,
    filled_packages,
    prints,
    long_modules,
    long_functions,
    untyped_arguments,
    undocumented_names,
]


@pytest.mark.parametrize("module", MODULES)
def test_module_keeps_the_rules(module: str) -> None:
    source = MODULES[module].read_text(encoding="utf-8")
    assert [violation for rule in RULES for violation in rule(source, module)] == []


@pytest.mark.parametrize(
    ("rule", "module", "source"),
    [
        pytest.param(upward_imports, "geonp.raster.grid", "import geonp.fill.infill", id="import-up"),
        pytest.param(upward_imports, "geonp.raster.grid", "from geonp.io.files import open_raster", id="from-up"),
        pytest.param(upward_imports, "geonp.io.files", "from geonp.nn import models", id="sideways"),
        pytest.param(upward_imports, "geonp.errors", "from .raster.grid import Grid", id="relative"),
        pytest.param(upward_imports, "geonp.io.files", "def f():\n    from geonp.cli import app", id="in-a-function"),
        pytest.param(upward_imports, "geonp.inference.tiling", "import geonp", id="root"),
        pytest.param(upward_imports, "geonp.raster.grid", "from geonp.nn.models import build", id="raster-knows-nn"),
        pytest.param(homeless_imports, "geonp.inference.tiling", "import torch", id="torch"),
        pytest.param(homeless_imports, "geonp.fill.infill", "from rasterio.fill import fillnodata", id="rasterio"),
        pytest.param(homeless_imports, "geonp.cli.fill", "def f():\n    import zarr", id="zarr-in-a-function"),
        pytest.param(homeless_imports, "geonp.nn.layers", "import xarray", id="nn-knows-xarray"),
        pytest.param(zoo_imports, "geonp.training.loop", "from geonp.nn.zoo.cnp import CNP", id="zoo"),
        pytest.param(filled_packages, "geonp.nn", "from geonp.nn.models import build", id="eager-package"),
        pytest.param(prints, "geonp.fill.infill", "print(1)", id="print"),
        pytest.param(long_modules, "geonp.raster.grid", "\n" * (MAX_MODULE_LINES + 1), id="long-module"),
        pytest.param(
            long_functions, "geonp.raster.grid", "def f():\n" + "    f()\n" * MAX_FUNCTION_LINES, id="long-function"
        ),
        pytest.param(untyped_arguments, "geonp.raster.grid", "def f(x, /) -> None: ...", id="untyped-argument"),
        pytest.param(untyped_arguments, "geonp.raster.grid", "def f(*x) -> None: ...", id="untyped-arguments"),
        pytest.param(untyped_arguments, "geonp.raster.grid", "class A:\n    def f(self): ...", id="untyped-return"),
        pytest.param(undocumented_names, "geonp.raster.grid", "", id="undocumented-module"),
        pytest.param(undocumented_names, "geonp.raster.grid", "'Doc.'\ndef f(): ...", id="undocumented-function"),
        pytest.param(undocumented_names, "geonp.raster.grid", "'Doc.'\nNODATA = 1", id="undocumented-constant"),
    ],
)
def test_rule_can_fail(rule: Rule, module: str, source: str) -> None:
    assert len(rule(source, module)) == 1


@pytest.mark.parametrize(
    ("rule", "module", "source"),
    [
        pytest.param(upward_imports, "geonp.fill.infill", "from geonp.raster.grid import Grid", id="down"),
        pytest.param(upward_imports, "geonp.cli.app", "import geonp.cli.fill", id="within-cli"),
        pytest.param(upward_imports, "geonp.nn.tnp_kr", "from geonp.nn.layers import MLP", id="family-on-layers"),
        pytest.param(prints, "geonp.training.loop", "print(1)", id="loop-prints"),
        pytest.param(
            long_functions,
            "geonp.raster.grid",
            "def f():\n    '''" + "\n" * 99 + "'''\n    return 1",
            id="long-docstring",
        ),
        pytest.param(undocumented_names, "geonp.raster.grid", "'Doc.'\nNODATA = 1\n'One.'\n_OWN = 2", id="documented"),
    ],
)
def test_rule_can_pass(rule: Rule, module: str, source: str) -> None:
    assert rule(source, module) == []


def test_a_package_outside_of_the_rule_is_refused() -> None:
    with pytest.raises(LookupError, match=r"geonp\.utils is not in the layer rule: add it to ORDER"):
        package_of("geonp.utils.text")


def test_the_top_level_holds_packages_and_three_modules() -> None:
    tops = {name for name, path in MODULES.items() if path.parent == ROOT / "geonp"}
    assert tops == TOP_MODULES
    rooms = {path.parent for path in MODULES.values()} - {ROOT / "geonp"}
    assert len(tops) + len(rooms) + 1 <= MOST_ROOMS  # one for the recipes


def test_tuning_numbers_are_in_settings_objects() -> None:
    """Where this fails, put the new number into a frozen dataclass, with the reason for its value."""
    module = "C = -2.0**3\nD = (1, 2)\nE = True\nF = f(1)\n@dataclass\nclass S:\n    g: int = 1"
    assert loose_numbers(module) == ["C", "D"]
    found = [name for path in MODULES.values() for name in loose_numbers(path.read_text(encoding="utf-8"))]
    assert len(found) <= MOST_LOOSE_NUMBERS, found


def test_each_package_says_what_lives_there() -> None:
    packages = {path.parent for path in MODULES.values()} - {ROOT / "geonp", ROOT / "cli"}
    words = {
        path: ast.get_docstring(ast.parse((path / "__init__.py").read_text(encoding="utf-8"))) for path in packages
    }
    assert [path.name for path, text in words.items() if not text or "import" not in text] == []


def test_contributors_read_the_same_rule() -> None:
    assert ORDER in (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
