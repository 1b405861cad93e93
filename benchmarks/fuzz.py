"""Damaged files: mutated rasters, stores, tables, recipes, cards and journals are given to the command line.

Run as ``python benchmarks/fuzz.py [--cases 2000] [--seed 0] [--only 17]``. Each case takes a valid file, changes it
(bits, lengths, swapped parts, values and attributes of odd types) and runs a command on it in a forked process with
limits of time and memory. A command may do its work or refuse it in a message. Faults are

* a traceback, a process that dies, or one that takes more than 60 s of processor time or 10 minutes;
* an output that looks complete after an error, or that cannot be read after none;
* temporary files that are left behind.

Messages about an exception that no code of geonp foresaw (``geonp fill stopped: ...``) are counted as *unforeseen*. A
recipe may ask for days of training: what takes too long there is counted as *long*, and is no fault.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import resource
import shutil
import signal
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import rasterio
import torch
import xarray as xr
import zarr
from click.testing import CliRunner
from rasterio.enums import ColorInterp

from geonp.cli.app import main as geonp
from geonp.evaluation import compare, report  # noqa: F401  (imported before the fork)
from geonp.fill.store import fill_store
from geonp.inference import checkpoint
from geonp.io import measurements  # noqa: F401  (imported before the fork)
from geonp.io.files import open_raster
from geonp.nn.models import build
from geonp.recipes import __path__ as recipes
from geonp.scattered import interpolate  # noqa: F401  (imported before the fork)
from geonp.training import loop, recipe  # noqa: F401

PROCESSOR_S, LIMIT_S, MEMORY = 60, 600, 8 * 2**30
FAULTS = ("traceback", "died", "hang", "half-written", "left behind")
ODD: tuple[Any, ...] = (
    *(None, True, False, "", "x", "\\frac{m}{s}", "$^{", "\x1b[2J", "nan", "1e999", [], {}, [[1, 2], [3]], ["a", 1]),
    *(0, -1, 1, 2**31, 2**63, 2**64, -(2**63), 10**30, 0.0, -0.5, 1e-320, 1e308, float("nan"), float("inf")),
    *("days since 0000-00-00", "months since 2000-01-01", "EPSG:999999", "µ" * 300, "time", "../../x", "/", "\x00"),
)

Case = Callable[[np.random.Generator, Path, Path], tuple[list[str], Path | None]]
"""Changes the copy of the seed files, and returns a command and its output."""


# --- seeds ------------------------------------------------------------------------------------------------------------


def make_seeds(folder: Path) -> None:
    """Write a valid file of each kind."""
    rng = np.random.default_rng(0)
    y, x = np.indices((24, 30))
    values = (20 + 5 * np.sin(y / 5) + 4 * np.cos(x / 7) + rng.standard_normal((24, 30))).astype("f4")
    values[rng.random(values.shape) < 0.2] = np.nan
    coords = {"y": np.arange(24)[::-1] * 30.0, "x": np.arange(30) * 30.0}
    attrs = {"units": "m", "long_name": "height", "grid_mapping": "crs"}
    crs = xr.DataArray(0, attrs={"crs_wkt": rasterio.CRS.from_epsg(32633).wkt})
    ds = xr.Dataset({"a": (("y", "x"), values, attrs), "crs": crs}, coords)
    packed = ds.assign(a=ds.a.copy(data=values)).assign_attrs(title="packed")
    packed["a"].encoding = {"dtype": "i2", "scale_factor": 0.01, "add_offset": 20.0, "_FillValue": -9999}
    stack = xr.concat([ds.a, ds.a + 1], xr.Variable("time", [0, 1], {"units": "days since 2020-01-01"})).to_dataset()
    ds.to_netcdf(folder / "a.nc")
    packed.to_netcdf(folder / "packed.nc")
    stack.to_netcdf(folder / "stack.nc", format="NETCDF3_64BIT")
    ds.to_zarr(folder / "v3.zarr", zarr_format=3, consolidated=False, encoding={"a": {"chunks": (10, 10)}})
    packed.to_zarr(folder / "v2.zarr", zarr_format=2, encoding={"a": {"chunks": (12, 30)}})
    tiles = {"compress": "deflate", "tiled": True, "blockxsize": 16, "blockysize": 16}
    layouts: tuple[dict[str, Any], ...] = (tiles, {})
    for name, profile in zip(("tiled.tif", "strips.tif"), layouts, strict=True):
        profile |= {"driver": "GTiff", "width": 30, "height": 24, "count": 2, "dtype": "int16", "nodata": -99}
        profile |= {"crs": "EPSG:32633", "transform": rasterio.Affine(30, 0, 0, 0, -30, 720)}
        with rasterio.open(folder / name, "w", **profile) as f:
            f.write(np.nan_to_num(np.stack([values, values + 1]), nan=-99).astype("i2"))
            f.colorinterp = [ColorInterp.gray, ColorInterp.undefined]
            f.update_tags(TITLE="a")
            f.scales, f.offsets = (0.1, 0.1), (0.0, 0.0)
    rows = "".join(f"{rng.uniform(0, 10):.3f},{rng.uniform(40, 50):.3f},{rng.normal():.3f}\n" for _ in range(40))
    (folder / "points.csv").write_text(f"lon,lat,height\n{rows}")
    rows = "".join(f"{rng.uniform(0, 900):.1f},{rng.uniform(0, 720):.1f},{rng.normal():.3f}\n" for _ in range(40))
    (folder / "metres.csv").write_text(f"x,y,height\n{rows}")
    shutil.copy(Path(next(iter(recipes))) / "gp1d_rbf.toml", folder / "recipe.toml")
    torch.manual_seed(0)
    options = {"dim": 16, "heads": 2, "blocks": 1, "qk_dim": 16, "v_dim": 16, "v_hidden": 0, "ff_dim": 16}
    options |= {"embed_x": False, "kernels": "dictionary", "scales": [1.0, 4.0], "head": "kriging", "n_refine": 8}
    context: Any = {"tile_px": 8, "halos_px": [8, 16], "n_context": 32, "min_context": 4, "merge": 2}
    about = {"name": "tiny", "version": "1", "description": "", "training": {}, "scores": {}}
    network = build("tnp-kr", options)
    model = folder / "tiny.safetensors"
    checkpoint.save(network, model, architecture="tnp-kr", config=options, neighbourhood=context, **about)
    progress = _stop_after(2)
    with contextlib.suppress(InterruptedError):
        fill_store(
            open_raster(folder / "v3.zarr", chunks=None),
            folder / "begun.zarr",
            chunks=12,
            model=model,
            progress=progress,
        )


def _stop_after(n: int) -> Callable[..., None]:
    def progress(_: object, done: int, total: int) -> None:
        if done >= n:
            raise InterruptedError

    return progress


# --- mutations --------------------------------------------------------------------------------------------------------


def change_bytes(rng: np.random.Generator, file: Path) -> None:
    """Flip, cut, insert, repeat or swap bytes, more often those of the header."""
    data = bytearray(file.read_bytes())
    for _ in range(int(rng.integers(1, 6))):
        size = max(1, len(data))
        at = int(rng.integers(size) if rng.random() < 0.4 else rng.integers(min(size, 600)))
        part = int(rng.integers(1, 64))
        match int(rng.integers(7)):
            case 0 | 1 | 2 if data:
                data[min(at, len(data) - 1)] ^= 1 << int(rng.integers(8))
            case 3:
                del data[at : None if rng.random() < 0.5 else at + part]
            case 4:
                data[at:at] = rng.bytes(part)
            case 5:
                data[at : at + part] = bytes([int(rng.choice([0, 255, 127, 128]))]) * part
            case _:
                other = int(rng.integers(size))
                data[at : at + part], data[other : other + part] = data[other : other + part], data[at : at + part]
    file.write_bytes(bytes(data))


def change_json(rng: np.random.Generator, file: Path) -> None:
    """Replace, remove or rename a value of a JSON file, or swap two."""
    try:
        tree = json.loads(file.read_text())
    except ValueError:
        return change_bytes(rng, file)
    places = list(_places(tree))
    for _ in range(int(rng.integers(1, 3))):
        if not places:
            break
        parent, key = places[int(rng.integers(len(places)))]
        try:
            match int(rng.integers(5)):
                case 0 | 1:
                    parent[key] = _odd(rng)
                case 2:
                    del parent[key]
                case 3 if isinstance(parent[key], int | float):
                    parent[key] = parent[key] * int(rng.choice([-1, 0, 2, 1000, 10**9]))
                case _:
                    other, name = places[int(rng.integers(len(places)))]
                    parent[key], other[name] = other[name], parent[key]
        except (LookupError, TypeError):
            continue
    try:
        file.write_text(json.dumps(tree))
    except (ValueError, RecursionError):  # a value that was swapped into itself
        change_bytes(rng, file)
    return None


def _places(tree: Any) -> Any:
    items = tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ()
    for key, value in items:
        yield tree, key
        yield from _places(value)


def _odd(rng: np.random.Generator) -> Any:
    return ODD[int(rng.integers(len(ODD)))]


ATTRIBUTES = (
    *("units", "_FillValue", "missing_value", "scale_factor", "add_offset", "valid_range", "valid_min", "flag_values"),
    *(
        "flag_masks",
        "flag_meanings",
        "grid_mapping",
        "coordinates",
        "calendar",
        "nodata",
        "crs",
        "crs_wkt",
        "_Unsigned",
    ),
    *("GeoTransform", "spatial_ref", "standard_name", "axis", "bounds", "dtype", "positive", "cell_methods", "history"),
)


def change_attributes(rng: np.random.Generator, file: Path) -> None:
    """Give attributes of a NetCDF file or Zarr store odd values."""
    chosen = [
        (str(rng.choice(["a", "y", "x", "crs", "time", ""])), str(rng.choice(ATTRIBUTES)), _odd(rng)) for _ in range(2)
    ]
    if file.suffix == ".zarr":
        group = zarr.open_group(file, mode="r+", use_consolidated=False)
        for name, key, value in chosen:
            target = group if not name else group.get(name)
            if target is not None:
                target.attrs[key] = value
        return
    import netCDF4

    with netCDF4.Dataset(file, "a") as ds:
        for name, key, value in chosen:
            target = ds.variables.get(name, ds)
            try:
                target.setncattr(key, np.int64(value) if isinstance(value, bool) else value)
            except Exception:  # what the library does not write
                continue


COMMANDS = {"fill": 0.45, "info": 0.25, "evaluate": 0.06, "adapt": 0.06}
COMMANDS |= {"grid --like": 0.06, "fill --mask": 0.06, "fill --covariate": 0.06}
"""Commands that are given a raster, and how often."""

# --- cases ------------------------------------------------------------------------------------------------------------


def raster(*names: str, suffix: str) -> Case:
    """A raster is described, filled, evaluated or adapted to, or is the grid, mask or covariate of a fill."""

    def case(rng: np.random.Generator, seeds: Path, folder: Path) -> tuple[list[str], Path | None]:
        name = str(rng.choice(names))
        source = folder / name
        if (seeds / name).is_dir():
            shutil.copytree(seeds / name, source)
            files = sorted(path for path in source.rglob("*") if path.is_file())
            if rng.random() < 0.3:
                change_attributes(rng, source)
            else:
                part = files[int(rng.integers(len(files)))]
                is_json = part.suffix == ".json" or part.name.startswith(".z")
                (change_json if is_json and rng.random() < 0.8 else change_bytes)(rng, part)
        else:
            shutil.copy(seeds / name, source)
            (change_attributes if name.endswith(".nc") and rng.random() < 0.5 else change_bytes)(rng, source)
        out = folder / f"out{suffix if rng.random() < 0.6 else rng.choice(['.tif', '.nc', '.zarr'])}"
        model = ["--model", str(seeds / "tiny.safetensors")]
        whole = str(seeds / "a.nc")
        match str(rng.choice(list(COMMANDS), p=list(COMMANDS.values()))):
            case "info":
                return ["info", str(source), "--json"], None
            case "evaluate":
                page = ["--report", str(folder / "report.html")] if rng.random() < 0.5 else []
                return ["evaluate", str(source), "--baseline", "nearest", *model, *page], None
            case "adapt":
                out = out.with_suffix(".safetensors")
                return ["adapt", str(source), "--out", str(out), "--steps", "1", "--no-closer", *model], out
            case "grid --like":
                return ["grid", str(seeds / "metres.csv"), str(out), "--like", str(source), *model], out
            case "fill --mask":
                return ["fill", whole, str(out), "--mask", str(source), *model], out
            case "fill --covariate":
                command = ["fill", whole, str(out), "--covariate", str(source), "--covariate-resampling", "bilinear"]
                return [*command, "--model", "tnpkr-sa"], out
            case _:
                return ["fill", str(source), str(out), *model], out

    return case


def table(rng: np.random.Generator, seeds: Path, folder: Path) -> tuple[list[str], Path | None]:
    """Measurements are interpolated."""
    source, out = folder / "points.csv", folder / "out.nc"
    text = (seeds / "points.csv").read_text()
    if rng.random() < 0.5:
        lines = [line.split(",") for line in text.splitlines()]
        for _ in range(int(rng.integers(1, 5))):
            line = lines[int(rng.integers(len(lines)))]
            line[int(rng.integers(len(line)))] = str(_odd(rng))
        source.write_text("\n".join(map(",".join, lines)))
    else:
        source.write_text(text)
        change_bytes(rng, source)
    return ["grid", str(source), str(out), "--resolution", "1", "--model", str(seeds / "tiny.safetensors")], out


def trained(rng: np.random.Generator, seeds: Path, folder: Path) -> tuple[list[str], Path | None]:
    """A recipe is trained for a step."""
    source = folder / "recipe.toml"
    lines = (seeds / "recipe.toml").read_text().splitlines()
    if rng.random() < 0.6:
        keyed = [n for n, line in enumerate(lines) if "=" in line]
        n = int(rng.choice(keyed))
        lines[n] = f"{lines[n].partition('=')[0]}= {json.dumps(_odd(rng))}"
        source.write_text("\n".join(lines))
    else:
        source.write_text("\n".join(lines))
        change_bytes(rng, source)
    small = [f"training.{key}=1" for key in ("steps", "batch_size", "validate_every", "validation_batches")]
    return ["train", str(source), *small, "--out", str(folder / "run"), "--workers", "0", "--no-progress"], None


def card(rng: np.random.Generator, seeds: Path, folder: Path) -> tuple[list[str], Path | None]:
    """A raster is filled by a model with another card, often one whose hash its author renewed."""
    model, out = folder / "m.safetensors", folder / "out.nc"
    for suffix in (".safetensors", ".json"):
        shutil.copy(seeds / f"tiny{suffix}", model.with_suffix(suffix))
    if rng.random() < 0.1:
        change_bytes(rng, model)
    else:
        path = model.with_suffix(".json")
        fields = json.loads(path.read_text())
        part = {key: fields[key] for key in ("config", "neighbourhood")}
        path.write_text(json.dumps(part if rng.random() < 0.7 else fields))
        change_json(rng, path)
        with contextlib.suppress(ValueError, TypeError):
            fields.update(json.loads(path.read_text()))
        if rng.random() < 0.7:
            fields["settings_sha256"] = ""
        path.write_text(json.dumps(fields))
    return ["fill", str(seeds / "a.nc"), str(out), "--model", str(model)], out


def journal(rng: np.random.Generator, seeds: Path, folder: Path) -> tuple[list[str], Path | None]:
    """A job with a changed journal is described, resumed or overwritten."""
    out = folder / "begun.zarr"
    shutil.copytree(seeds / "begun.zarr", out)
    shutil.copytree(seeds / "begun.zarr.journal", folder / "begun.zarr.journal")
    files = sorted(path for path in (folder / "begun.zarr.journal").rglob("*") if path.is_file())
    file = files[int(rng.integers(len(files)))]
    (change_json if file.suffix == ".json" and rng.random() < 0.7 else change_bytes)(rng, file)
    command = str(rng.choice(["info", "--resume", "--resume", "--overwrite"]))
    if command == "info":
        return ["info", str(out)], None
    model = str(seeds / "tiny.safetensors")
    return ["fill", str(seeds / "v3.zarr"), str(out), "--chunks", "12", "--model", model, command], out


KINDS: dict[str, Case] = {
    "GeoTIFF": raster("tiled.tif", "strips.tif", suffix=".tif"),
    "NetCDF": raster("a.nc", "packed.nc", "stack.nc", suffix=".nc"),
    "Zarr": raster("v3.zarr", "v2.zarr", suffix=".zarr"),
    "CSV": table,
    "recipe": trained,
    "card": card,
    "journal": journal,
}


# --- running ----------------------------------------------------------------------------------------------------------


def run_case(number: int, seed: int, seeds: Path, folder: Path) -> tuple[str, str]:
    """What a case ended in, and what it printed; in this process."""
    rng = np.random.default_rng([seed, number])
    kind = list(KINDS)[number % len(KINDS)]
    command, out = KINDS[kind](rng, seeds, folder)
    before = {path.name for path in folder.iterdir()}
    done = CliRunner().invoke(geonp, command)
    text = f"{' '.join(command)}\n{done.output}"
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        return "traceback", text + "".join(traceback.format_exception(done.exception))
    if "Traceback" in done.output:
        return "traceback", text
    allowed = {out.name, f"{out.name}.journal"} if out is not None else {"run", "report.html"}
    if out is not None and out.suffix == ".safetensors":
        allowed = {out.name, out.with_suffix(".json").name}
    if left := {path.name for path in folder.iterdir()} - before - allowed:
        return "left behind", f"{text}\nleft: {left}"
    if out is not None and (problem := _problem(out, done.exit_code)):
        return "half-written", f"{text}\n{problem}"
    if done.exit_code == 0:
        return "done", text
    return ("unforeseen" if " stopped: " in done.output else "refused"), text


def _problem(out: Path, code: int) -> str:
    """What is wrong with an output, given the exit code."""
    try:
        if out.suffix == ".safetensors":
            checkpoint.load_model(str(out))
            return ""
        ds = open_raster(out)
    except Exception as error:  # it is not there, unfinished, or broken
        return f"an output was announced, but {error}" if code == 0 else ""
    return (
        ""
        if code == 0 or ds.attrs.get("title") == "kept"
        else "an output that looks complete, although the command failed"
    )


def forked(number: int, seed: int, seeds: Path, folder: Path) -> tuple[str, str]:
    """As :func:`run_case`, in a process of its own with limits."""
    printed = folder.with_suffix(".txt")
    child = os.fork()
    if child == 0:
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
        resource.setrlimit(resource.RLIMIT_CPU, (PROCESSOR_S, PROCESSOR_S + 5))
        null = os.open(os.devnull, os.O_WRONLY)
        for stream in (1, 2):
            os.dup2(null, stream)
        try:
            outcome = run_case(number, seed, seeds, folder)
        except BaseException:
            outcome = ("traceback", traceback.format_exc())
        printed.write_text("\n".join(outcome), errors="backslashreplace")
        os._exit(0)
    deadline = time.monotonic() + LIMIT_S
    status = None
    while time.monotonic() < deadline and status is None:
        pid, code = os.waitpid(child, os.WNOHANG)
        status = code if pid else time.sleep(0.01)
    if status is None:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        return "hang", ""
    if not printed.exists():
        code = os.waitstatus_to_exitcode(status)
        return ("hang" if code == -signal.SIGXCPU else "died"), f"status {code}"
    outcome, _, text = printed.read_text().partition("\n")
    return outcome, text


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=int, default=2000)
    parser.add_argument("--first", type=int, default=0, help="number of the first case")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", type=int, help="run one case, and print what it printed")
    parser.add_argument("-v", "--verbose", action="store_true", help="also print what was unforeseen")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    counts = {kind: Counter[str]() for kind in KINDS}
    with tempfile.TemporaryDirectory() as temporary:
        seeds = Path(temporary) / "seeds"
        seeds.mkdir()
        if os.fork() == 0:  # threads and open files of this process would be those of all cases
            make_seeds(seeds)
            os._exit(0)
        os.wait()
        numbers = range(options.first, options.first + options.cases) if options.only is None else [options.only]
        for number in numbers:
            folder = Path(temporary) / f"case{number}"
            folder.mkdir()
            kind = list(KINDS)[number % len(KINDS)]
            outcome, text = forked(number, options.seed, seeds, folder)
            outcome = "long" if (kind, outcome) == ("recipe", "hang") else outcome
            counts[kind][outcome] += 1
            shown = outcome in FAULTS or (options.verbose and outcome == "unforeseen")
            if shown or options.only is not None:
                print(f"case {number}, {kind}: {outcome}\n{text}\n", flush=True)
            shutil.rmtree(folder)
    columns = ("done", "refused", "unforeseen", "long", *FAULTS)
    print(f"{'':10}" + "".join(f"{name:>13}" for name in columns))
    for kind, found in counts.items():
        print(f"{kind:10}" + "".join(f"{found[name]:13}" for name in columns))
    return int(any(found[name] for found in counts.values() for name in FAULTS))


if __name__ == "__main__":
    sys.exit(main())
