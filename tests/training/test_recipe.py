"""Recipes load as they are written, and errors name the key."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from geonp.errors import RecipeError
from geonp.inference.checkpoint import start_from
from geonp.inference.context import Neighbourhood
from geonp.nn.models import ARCHITECTURES, build
from geonp.training import recipe

SHIPPED = sorted(p.stem for p in (Path(__file__).parents[2] / "recipes").glob("*.toml"))
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
    with pytest.raises(RecipeError, match=rf"unknown recipe 'no_such': expected one of .*{SHIPPED[0]}"):
        recipe.load("no_such")
    with pytest.raises(RecipeError, match=rf"cannot read the recipe file {missing!r}: No such file .*{SHIPPED[0]}"):
        recipe.load(missing)
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
        ("model=3", "model: Input should be an object, got 3"),
        ("neighbourhood.tile_px=wide", r"neighbourhood\.tile_px: Input should be a valid integer"),
        ("neighbourhood.tile=8", r"neighbourhood\.tile: Unexpected keyword argument"),
        ("prior.noise=[0.1]", r"prior\.noise"),
        ("prior.gap_weights.random=often", r"prior\.gap_weights\.random: Input should be a valid number"),
        *[
            (f"training.{key}={value}", rf"training\.{key}: Input should be a valid {kind}, got {got}")
            for key, value, kind, got in [
                ("steps", '"3"', "integer", "'3'"),
                ("steps", "3.0", "integer", "3.0"),
                ("learning_rate", '"0.001"', "number", "'0.001'"),
                ("batch_size", "true", "integer", "True"),
                ("averaging", "false", "number", "False"),
                ("start", "3", "string", "3"),
            ]
        ],
        ("training.learning_rate=inf", r"training\.learning_rate: Input should be a finite number"),
        ("training.seed=-1", r"training\.seed: Input should be greater than or equal to 0"),
        ("training.seed=2147483645", r"training\.seed: Input should be less than 2147483632"),
        ("training.betas=[2,3]", r"training\.betas\.0: Input should be less than 1"),
        ("name=../../escape", r"name: expected letters, digits and _, after the first .* and \., got '\.\./"),
        ("name=.hidden", "name: expected letters"),
        ('neighbourhood.tile_px="8"', r"neighbourhood\.tile_px: Input should be a valid integer"),
        ("neighbourhood.tile_px=0", r"neighbourhood\.tile_px: got 0, expected at least 2"),
        ("neighbourhood.halos_px=[16,8]", r"neighbourhood\.halos_px: got \[16, 8\], expected increasing widths"),
        ("neighbourhood.merge=3", "neighbourhood: merge must be 1, 2, 4"),
        ("neighbourhood.min_context=999", r"neighbourhood\.min_context: got 999, expected at most n_context"),
        ("neighbourhood.thinning=0", r"neighbourhood\.thinning: got 0\.0, expected a number above 0"),
        ("neighbourhood.axes=[[1.0,0.0]]", r"neighbourhood\.axes: got 1, expected one for each of the model's 2"),
        (
            "neighbourhood.axes=[[1.0,0.0,0.0],[0.0,1.0,0.0]]",
            r"neighbourhood\.axes\.0: Tuple should have at most 2 items",
        ),
        ("neighbourhood.standard=[0,0]", r"neighbourhood\.standard: got \[0\.0, 0\.0\], expected a deviation above"),
        ("prior.p_noise=true", r"prior\.p_noise: Input should be a valid number"),
        ("prior.p_noise=2", r"prior\.p_noise: Input should be less than or equal to 1, got 2"),
        ("prior.noise=[0.7,0.1]", r"prior\.noise: got \[0\.7, 0\.1\], expected the minimum first"),
        ("prior.gap_weights.holes=1", r"prior\.gap_weights\.holes: no such kind of gaps, expected some of random"),
        ("prior.gap_weights.random=0", r"prior\.gap_weights: got .*, expected weights of at least 0"),
        ("model.architecture=foo", r"model\.architecture: got 'foo', expected one of tnp-kr, te-tnp"),
        ("model.config.foo=7", r"my\.toml: model\.config\.foo: tnp-kr has no such option, expected some of d_x"),
        ("model.config.dim=x", r"my\.toml: model\.config\.dim: expected int, got 'x'"),
        ("model.config.dim=1.5", r"model\.config\.dim: expected int, got 1\.5"),
        ("model.config.dim=-4", r"model\.config\.dim: expected at least 0, got -4"),
        ("model.config.blocks=true", r"model\.config\.blocks: expected int, got True"),
        ("model.config.min_scale=nan", r"model\.config\.min_scale: expected float, got nan"),
        ("model.config.scales=[1.0,true]", r"model\.config\.scales: expected a list of float, got \[1\.0, True\]"),
        ("training", "cannot read the override 'training': expected key=value, for example training.steps=100"),
        ("=3", "cannot read the override '=3': expected key=value"),
        (".steps=3", r"cannot read the override '\.steps=3': expected key=value"),
        (
            "training.steps=99999999999999999999999",
            r"training\.steps: Input should be less than or equal to",
        ),
        ("training.batch_size=99999999999", r"training\.batch_size: Input should be less than or equal to 1000000"),
        ("model.architecture=[1]", r"model\.architecture: Input should be a valid string"),
        ("name.first=a", "the override 'name.first=a' sets a key of 'name', which is not a table"),
    ],
)
def test_a_wrong_override_names_the_key(minimal: str, override: str, message: str) -> None:
    with pytest.raises(RecipeError, match=message):
        recipe.load(minimal, [override])


@pytest.mark.parametrize(
    ("name", "override", "message"),
    [
        (
            "gp2d_rbf",
            "data.kernel=periodic",
            r"data\.kernel: got periodic, which is a covariance in one dimension only",
        ),
        ("images_digits", "data.split=test", r"data\.split: got test, expected train"),
        ("era5", "data.split=test", r"data\.split: got test"),
        ("gp1d_rbf", "data.n_grid=1000000000", r"data\.n_grid: got 1000000000, but .* limited to 10000 locations"),
        ("gp2d_rbf", "data.n_grid=200", r"data\.n_grid: got 200, but .* limited to 10000 locations"),
        ("gp1d_rbf", "data.n_random=20000", r"data\.n_random: got 20000, but .* limited to 10000 locations"),
        ("gp1d_rbf", "data.jitter=1e-30", r"data\.jitter: Input should be greater than or equal to 0\.000000001"),
        ("gp1d_shift", "data.n_targets=99999999", r"data\.n_targets: got 99999999, but .* limited to 10000 locations"),
        (
            "gp1d_shift",
            "data.n_context=[1,20000]",
            r"data\.n_context: got \[1, 20000\], but .* limited to 10000 locations",
        ),
        ("sir", "data.side=1000000", r"data\.side: got 1000000, but all frames of an epidemic may have 2,147"),
        ("sir", "data.frames=1000000", r"data\.frames: got 1000000, but all frames"),
        ("gp1d_rbf", "model.config.min_scale=1.0", r"min_scale: expected a fraction .* than 1, got 1\.0"),
        ("gp1d_rbf", "model.config.min_scale=-0.1", r"min_scale: expected a fraction .*, got -0\.1"),
        (
            "sir",
            "model.config.scales=[0.5,-1.0]",
            r"model\.config\.scales: expected numbers above 0, got \[0\.5, -1\.0\]",
        ),
        (
            "era5",
            "data.area=[1,2,3]",
            r"era5: data\.area: got \[1, 2, 3\], expected \[float, float, float, float\] or \[\]$",
        ),
        (
            "era5",
            "data.test_area=[[1,2],[3,4]]",
            r"era5: data\.test_area: got \[\[1, 2\], \[3, 4\]\], expected \[float, float, float, float\] or \[\[",
        ),
        ("era5", "data.fraction=[0.01,0.999]", r"data\.fraction: got \[0\.01, 0\.999\], .* would have no targets"),
        ("gp1d_rbf", "model.config.likelihood=categorical", "likelihood: must be categorical if and only if the data"),
        ("era5", "data.area=[42.0,8.0,53.0,28.0]", r"data\.area: got .*, expected north, west, south, east"),
        ("era5", "data.test_area=[53.0,28.0,42.0,8.0]", r"data\.test_area: got .*, expected north, west, south, east"),
    ],
)
def test_data_that_cannot_be_is_named(name: str, override: str, message: str) -> None:
    with pytest.raises(RecipeError, match=message):
        recipe.load(name, [override])


@pytest.mark.parametrize("name", ["../pyproject", "../recipes/gp1d_rbf", "README"])
def test_what_is_no_recipe_is_not_copied(name: str, tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match="unknown recipe"):
        recipe.copy(name, tmp_path)


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


def test_files_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    (tmp_path / "my.toml").write_bytes(b"name = '\xff'")
    with pytest.raises(RecipeError, match=r"cannot read the recipe file .*my\.toml': it is not UTF-8 text"):
        recipe.load(str(tmp_path / "my.toml"))
    (tmp_path / "folder.toml").mkdir()
    with pytest.raises(RecipeError, match=r"folder\.toml': Is a directory"):
        recipe.load(str(tmp_path / "folder.toml"))


# --- another architecture ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_every_recipe_loads_with_every_architecture(architecture: str) -> None:
    for name in SHIPPED:
        own, loaded = recipe.load(name), recipe.load(name, [f"model.architecture={architecture}"])
        assert loaded.model.architecture == architecture
        assert loaded == own if own.model.architecture == architecture else not loaded.training.start
        # what both know stays, the dimensions of the data among them
        assert loaded.model.config.items() <= own.model.config.items()
        assert ("d_x" in loaded.model.config) == ("d_x" in own.model.config)


@pytest.mark.parametrize("name", [name for name in SHIPPED if recipe.load(name).training.start])
def test_recipes_start_from_shipped_weights(name: str) -> None:
    loaded = recipe.load(name)
    network = build(loaded.model.architecture, loaded.model.config)
    before = {key: value.clone() for key, value in network.state_dict().items()}
    start_from(network, loaded.training.start)
    assert any(not torch.equal(value, before[key]) for key, value in network.state_dict().items())


def test_options_that_were_given_must_be_known_by_the_other_architecture() -> None:
    loaded = recipe.load("sir", ["model.architecture=cnp", "model.config.decoder=[16, 16]"])
    assert loaded.model.config == {"d_x": 2, "d_y": 3, "likelihood": "categorical", "decoder": [16, 16]}
    for option in ("model.config.dim=16", "model.config.embed_x=false"):
        with pytest.raises(RecipeError, match=r"model\.config\.\w+: cnp has no such option, expected some of d_x, d_y"):
            recipe.load("sir", ["model.architecture=cnp", option])
