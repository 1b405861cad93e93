"""Recipes load as they are written, and errors name the key."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from geonp.errors import RecipeError
from geonp.nn.models import build
from geonp.points import Neighbourhood
from geonp.training import recipe

SHIPPED = sorted(p.stem for p in (Path(__file__).parents[1] / "recipes").glob("*.toml"))
MINIMAL = 'name = "a"\ndescription = "b"\n[model]\narchitecture = "tnp-kr"\n[training]\nsteps = 3\n'


@pytest.fixture
def minimal(tmp_path: Path) -> str:
    (tmp_path / "my.toml").write_text(MINIMAL)
    return str(tmp_path / "my.toml")


def test_all_recipes_of_the_folder_are_shipped() -> None:
    assert SHIPPED
    assert list(recipe.available()) == SHIPPED


@pytest.mark.parametrize("name", SHIPPED)
def test_shipped_recipes_load_and_build(name: str) -> None:
    loaded = recipe.load(name)
    assert loaded.description == recipe.available()[name]
    assert sum(p.numel() for p in build(loaded.model.architecture, loaded.model.config).parameters()) > 0
    assert recipe.Recipe.model_validate_json(loaded.model_dump_json()) == loaded


@pytest.mark.parametrize("name", SHIPPED)
def test_a_copied_recipe_is_the_same_and_never_overwrites(name: str, tmp_path: Path) -> None:
    by_folder, by_name = recipe.copy(name, tmp_path), recipe.copy(name, tmp_path / "my.toml")
    assert (by_folder, by_name) == (tmp_path / f"{name}.toml", tmp_path / "my.toml")
    assert recipe.load(str(by_folder)) == recipe.load(str(by_name)) == recipe.load(name)
    by_name.write_text("mine")
    for destination in (tmp_path, by_name):
        with pytest.raises(RecipeError, match=r"\.toml exists: choose another destination, or remove it first"):
            recipe.copy(name, destination)
    assert by_name.read_text() == "mine"


def test_unknown_recipes(tmp_path: Path) -> None:
    missing = str(tmp_path / "none.toml")
    for name in ("no_such", missing):
        with pytest.raises(RecipeError, match=rf"unknown recipe {name!r}: expected one of .*{SHIPPED[0]}"):
            recipe.load(name)
    with pytest.raises(RecipeError, match="unknown recipe 'no_such'"):
        recipe.copy("no_such", tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_defaults(minimal: str) -> None:
    loaded = recipe.load(minimal)
    assert loaded.neighbourhood == Neighbourhood()
    assert loaded.training == recipe.Training(steps=3)
    assert loaded.model.config == {}


def test_overrides(minimal: str) -> None:
    overrides = [
        "training.steps=7",
        "training.learning_rate=2e-4",
        "training.precision=float32",  # no quotes: the shell eats them
        'description="x = y"',
        "neighbourhood.halos_px=[8, 16]",
        "prior.noise=[0.1, 0.2]",
        "model.config.dim=32",
        "training.steps=8",
    ]
    loaded = recipe.load(minimal, overrides)
    assert loaded.training == recipe.Training(steps=8, learning_rate=2e-4, precision="float32")
    assert loaded.description == "x = y"
    assert loaded.neighbourhood == Neighbourhood(halos_px=(8, 16))
    assert loaded.prior.noise == (0.1, 0.2)
    assert loaded.model.config == {"dim": 32}


@given(st.integers(1, 10**9), st.floats(1e-9, 1e9))
def test_any_number_can_be_overridden(tmp_path_factory: pytest.TempPathFactory, steps: int, rate: float) -> None:
    file = tmp_path_factory.getbasetemp() / "minimal.toml"
    file.write_text(MINIMAL)
    loaded = recipe.load(str(file), [f"training.steps={steps}", f"training.learning_rate={rate!r}"])
    assert (loaded.training.steps, loaded.training.learning_rate) == (steps, rate)


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("training.stps=3", r"training\.stps: Extra inputs are not permitted"),
        ("speed=3", "speed: Extra inputs are not permitted"),
        ("training.steps=many", r"training\.steps: Input should be a valid integer"),
        ("training.steps=0", r"training\.steps: Input should be greater than 0"),
        ("training.decay=1.5", r"training\.decay: Input should be less than or equal to 1"),
        ("training.precision=fp8", r"training\.precision: Input should be 'float32' or 'bf16'"),
        ("model=3", "model: Input should be a valid dictionary or instance of Model"),
        ("neighbourhood.tile_px=wide", r"neighbourhood\.tile_px: Input should be a valid integer"),
        ("neighbourhood.tile=8", r"neighbourhood\.tile: Unexpected keyword argument"),
        ("prior.noise=[0.1]", r"prior\.noise"),
        ("prior.gap_weights.random=often", r"prior\.gap_weights\.random: Input should be a valid number"),
        ("training", "cannot read the override 'training': expected key=value, for example training.steps=100"),
        ("=3", "cannot read the override '=3': expected key=value"),
        ("name.first=a", "the override 'name.first=a' goes below 'name', which is not a table"),
    ],
)
def test_a_wrong_override_names_the_key(minimal: str, override: str, message: str) -> None:
    with pytest.raises(RecipeError, match=message):
        recipe.load(minimal, [override])


def test_all_wrong_keys_are_named_at_once(minimal: str) -> None:
    with pytest.raises(RecipeError, match=r"recipe .*my\.toml: training\.steps: .*; training\.speed: Extra"):
        recipe.load(minimal, ["training.steps=x", "training.speed=1"])


def test_a_missing_key_is_named(tmp_path: Path) -> None:
    (tmp_path / "my.toml").write_text(MINIMAL.replace("steps = 3", ""))
    with pytest.raises(RecipeError, match=r"training\.steps: Field required"):
        recipe.load(str(tmp_path / "my.toml"))


def test_broken_toml_is_named(tmp_path: Path) -> None:
    (tmp_path / "my.toml").write_text("[model]\nname = = 1\n")
    with pytest.raises(RecipeError, match=r"my\.toml: not valid TOML: .*line 2"):
        recipe.load(str(tmp_path / "my.toml"))
