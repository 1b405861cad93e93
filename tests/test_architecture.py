"""The layer table, the homes of third-party packages and the size budget of CONTRIBUTING.md, read from syntax trees.

Every rule is a function from one module's source to the list of its violations, so each can be shown to fail.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FOLDERS = {"geonp": ROOT / "geonp", "geonp.cli": ROOT / "cli"}

MAX_MODULE_LINES = 400
MAX_FUNCTION_LINES = 60

# Imports go to a smaller number. The decimals order a layer; what is not named in nn is a family of the papers.
LAYERS = {
    "geonp.errors": 0,
    "geonp.grid": 1,
    "geonp.across": 1,
    "geonp.gaps": 1,
    "geonp.student": 1,
    "geonp.dtypes": 1,
    "geonp.thinning": 1,
    "geonp.points": 2,
    "geonp.scattered": 2,
    "geonp.tables": 2.1,
    "geonp.tiling": 2.1,
    "geonp.missing": 1.1,
    "geonp.metadata": 2,
    "geonp.classes": 2.1,
    "geonp.nn": 2.2,
    "geonp.nn.attention": 2,
    "geonp.nn.scan": 2.05,
    "geonp.nn.blocks": 1.8,
    "geonp.nn.lattice": 1.9,
    "geonp.nn.bias": 2,
    "geonp.nn.covariance": 2,
    "geonp.nn.layers": 2.1,
    "geonp.nn.likelihood": 2,
    "geonp.nn.process": 2.1,
    "geonp.nn.heads": 2.15,
    "geonp.nn.statistics": 2.15,
    "geonp.nn.models": 2.3,
    "geonp.weights": 2,
    "geonp.geotiff": 3,
    "geonp.checkpoint": 3,
    "geonp.evaluation.metrics": 3,
    "geonp.evaluation.holdout": 3,
    "geonp.evaluation.kriging": 3,
    "geonp.evaluation.baselines": 3.1,
    "geonp.evaluation.comparison": 3.1,
    "geonp.cores": 4,
    "geonp.prediction": 4,
    "geonp.windows": 4.1,
    "geonp.chunks": 4.15,
    "geonp.storage": 4,
    "geonp.training.fields": 3,
    "geonp.training.tasks": 4,
    "geonp.training.processes": 4,
    "geonp.training.epidemics": 4,
    "geonp.training.reanalysis": 4,
    "geonp.training.images": 4,
    "geonp.training.curve": 4,
    "geonp.training.objective": 4,
    "geonp.training.interrupts": 4,
    "geonp.training.limits": 4.1,
    "geonp.training.recipe": 4.2,
    "geonp.training.crops": 4.1,
    "geonp.training.optimisers": 4.3,
    "geonp.training.sources": 4.3,
    "geonp.journal": 3,
    "geonp.era5": 3.2,
    "geonp.era5_files": 3,
    "geonp.request": 4.2,
    "geonp.samples": 4.2,
    "geonp.stores": 3.1,
    "geonp.units": 4.3,
    "geonp.workers": 4.4,
    "geonp.filling": 5,
    "geonp.gridding": 5,
    "geonp.batch": 5.1,
    "geonp.training.loop": 5,
    "geonp.training.verdict": 5.1,
    "geonp.training.looks": 5.15,
    "geonp.training.adapt": 5.2,
    "geonp.evaluation.compare": 6,
    "geonp.evaluation.report": 6,
    "geonp.accessor": 6.1,
    "geonp.cli": 7,
    "geonp.testing": 7,
    "geonp": 8,
}
EMPTY_PACKAGES = {"geonp.nn", "geonp.training", "geonp.evaluation", "geonp.weights"}
"""Packages whose ``__init__`` imports nothing of geonp, so that importing one of their modules loads it alone."""

HOMES = {
    "torch": {"geonp.nn", "geonp.checkpoint", "geonp.prediction", "geonp.training"},
    "gpytorch": {"geonp.nn.gp"},
    "sklearn": {"geonp.training.images"},
    "cdsapi": {"geonp.era5"},
    "lightning_fabric": {"geonp.training.loop"},
    "safetensors": {"geonp.checkpoint"},
    "rasterio": {"geonp.geotiff", "geonp.storage", "geonp.evaluation.baselines"},
    "rioxarray": {"geonp.geotiff", "geonp.storage"},
    "zarr": {"geonp.storage", "geonp.stores"},
}
"""The only modules, or packages of them, that may import these third-party packages."""

BANNED = {"geonp.nn": {"xarray", "dask", "zarr", "rasterio", "rioxarray", "netCDF4", "pathlib"}}

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


def layer(module: str) -> float:
    """Layer of a module: its own entry, else that of its package (never that of the root)."""
    for name in (module, module.rpartition(".")[0]):
        if name in LAYERS and (name == module or name != "geonp"):
            return LAYERS[name]
    raise LookupError(f"{module} has no layer: add it to LAYERS and to CONTRIBUTING.md")


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
    found = []
    for name in imports(source, module):
        if name.partition(".")[0] != "geonp" or module == "geonp":
            continue
        same_package = module.rpartition(".")[0] == name.rpartition(".")[0] == "geonp.cli"
        if name in EMPTY_PACKAGES:
            continue
        if name == "geonp" or not (same_package or layer(name) < layer(module)):
            found.append(f"{module} (layer {layer(module)}) must not import {name}")
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
    exported = next((ast.literal_eval(n.value) for n in body if "__all__" in assigned(n)), [])
    for node, following in zip(body, [*body, None][1:], strict=True):
        documented = isinstance(following, ast.Expr) and isinstance(following.value, ast.Constant)
        names = [name for name in assigned(node) if name in exported]
        found += [f"{name} is not followed by a docstring" for name in names if not documented]
    return found


def assigned(node: ast.stmt) -> list[str]:
    """Names that a statement gives a value; an annotation without a value gives none."""
    targets = node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
    return [target.id for target in targets if isinstance(target, ast.Name) and node.value is not None]


RULES: list[Rule] = [
    upward_imports,
    homeless_imports,
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
        pytest.param(upward_imports, "geonp.grid", "import geonp.filling", id="import-up"),
        pytest.param(upward_imports, "geonp.grid", "from geonp.storage import open_raster", id="from-up"),
        pytest.param(upward_imports, "geonp.grid", "from geonp import gaps", id="sideways"),
        pytest.param(upward_imports, "geonp.errors", "from .grid import Grid", id="relative"),
        pytest.param(upward_imports, "geonp.grid", "def f():\n    from geonp.cli import app", id="inside-a-function"),
        pytest.param(upward_imports, "geonp.tiling", "import geonp", id="root"),
        pytest.param(upward_imports, "geonp.nn.bias", "from geonp.nn.layers import MLP", id="nn-order"),
        pytest.param(upward_imports, "geonp.points", "from geonp.nn.models import build", id="raster-side-knows-nn"),
        pytest.param(homeless_imports, "geonp.tiling", "import torch", id="torch"),
        pytest.param(homeless_imports, "geonp.filling", "from rasterio.fill import fillnodata", id="rasterio"),
        pytest.param(homeless_imports, "geonp.cli.fill", "def f():\n    import zarr", id="zarr-in-a-function"),
        pytest.param(homeless_imports, "geonp.nn.layers", "import xarray", id="nn-knows-xarray"),
        pytest.param(filled_packages, "geonp.nn", "from geonp.nn.models import build", id="eager-package"),
        pytest.param(prints, "geonp.filling", "print(1)", id="print"),
        pytest.param(long_modules, "geonp.grid", "\n" * (MAX_MODULE_LINES + 1), id="long-module"),
        pytest.param(long_functions, "geonp.grid", "def f():\n" + "    f()\n" * MAX_FUNCTION_LINES, id="long-function"),
        pytest.param(untyped_arguments, "geonp.grid", "def f(x, /) -> None: ...", id="untyped-argument"),
        pytest.param(untyped_arguments, "geonp.grid", "def f(*x) -> None: ...", id="untyped-arguments"),
        pytest.param(untyped_arguments, "geonp.grid", "class A:\n    def f(self): ...", id="untyped-return"),
        pytest.param(undocumented_names, "geonp.grid", "", id="undocumented-module"),
        pytest.param(undocumented_names, "geonp.grid", "'Doc.'\ndef f(): ...", id="undocumented-function"),
        pytest.param(undocumented_names, "geonp.grid", "'Doc.'\n__all__ = ['A']\nA = 1", id="undocumented-constant"),
    ],
)
def test_rule_can_fail(rule: Rule, module: str, source: str) -> None:
    assert len(rule(source, module)) == 1


@pytest.mark.parametrize(
    ("rule", "module", "source"),
    [
        pytest.param(upward_imports, "geonp.filling", "from geonp.grid import Grid", id="down"),
        pytest.param(upward_imports, "geonp.cli.app", "import geonp.cli.fill", id="within-cli"),
        pytest.param(upward_imports, "geonp.nn.tnp_kr", "from geonp.nn.layers import MLP", id="family-on-layers"),
        pytest.param(prints, "geonp.training.loop", "print(1)", id="loop-prints"),
        pytest.param(
            long_functions, "geonp.grid", "def f():\n    '''" + "\n" * 99 + "'''\n    return 1", id="long-docstring"
        ),
        pytest.param(undocumented_names, "geonp.grid", "'Doc.'\n__all__ = ['A']\nA = 1\n'One.'", id="documented"),
    ],
)
def test_rule_can_pass(rule: Rule, module: str, source: str) -> None:
    assert rule(source, module) == []


def test_a_module_without_a_layer_is_told_so() -> None:
    with pytest.raises(LookupError, match=r"geonp\.utils has no layer: add it to LAYERS"):
        layer("geonp.utils")


def test_every_layer_is_described_to_contributors() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    names = {name.removeprefix("geonp.") for name in LAYERS} - {"geonp", "testing", "weights"}
    assert [name for name in sorted(names) if f"`{name.removeprefix('nn.')}`" not in text] == []
