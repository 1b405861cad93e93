"""What the papers' tables have in common: train every model at one budget, score all on the same tasks, print a table.

A benchmark is a recipe; its models differ in ``model.architecture`` and ``model.config`` alone. Runs live in
``OUT/<recipe>/<model>``, those of further seeds in folders there, and are taken up where they stopped; so are the
scores, in ``scores.json`` there, as long as the arguments that they depend on are the same. Minutes are those of the
CPU in the steps of training: making batches and validation are not counted.
"""

from __future__ import annotations

import argparse
import csv
import json
import math
import shlex
import signal
import statistics
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from matplotlib import colormaps
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from torch import nn

from geonp.inference import checkpoint
from geonp.training.data.processes import GaussianProcess
from geonp.training.loop import train
from geonp.training.recipe import Model, Recipe, load
from geonp.training.sources import draw

TEST_SEED = 2**31 - 2
"""Neither of training nor of validation."""


def _of_recipe(name: str) -> tuple[str, dict[str, Any]]:
    """Architecture and configuration of a recipe, but for what follows from its data."""
    model = load(name).model
    return model.architecture, {k: v for k, v in model.config.items() if k not in ("d_x", "d_y", "likelihood")}


MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "CNP": ("cnp", {}),
    "NP": ("np", {}),
    "CANP": ("canp", {}),
    "ANP": ("anp", {}),
    "BNP": ("bnp", {}),
    "BANP": ("banp", {}),
    "TNP-D": ("tnp-d", {}),
    "TNP-KR-DKA": ("tnp-kr", {"attention": "dka"}),
    "TNP-KR-PERF": ("tnp-kr", {"attention": "performer", "v_dim": 128, "v_hidden": 0, "embed_hidden": [512, 128]}),
    "TNP-KR-SA": ("tnp-kr", {}),
    "TNP-KR-FULL": ("tnp-kr", {"attention": "full"}),
    "TNP-KR-SA, invariant": ("tnp-kr", {"embed_x": False}),
    "TNP-KR-SA, means": _of_recipe("sir"),
    "ConvCNP": ("convcnp", {}),
    "EQTNP": ("eqtnp", {}),
    "TNP-ND": ("tnp-nd", {}),
    "TNP-A": ("tnp-a", {}),
    "LBANP": ("lbanp", {}),
    "PT-TNP": ("pt-tnp", {}),
    "RCNP": ("rcnp", {}),
    "TE-TNP": ("te-tnp", {}),
    "TE-PT-TNP": ("te-pt-tnp", {}),
    "TE-PT-TNP, kriging head": _of_recipe("era5"),
}
"""Models of the tables, cheapest first: architecture, and configuration beside the dimensions of the data."""

TRAINING = {
    "TE-TNP": [
        "training.optimiser=adamw",
        "training.learning_rate=5e-4",
        "training.weight_decay=0.01",
        "training.clip=0.5",
    ]
}
"""What a model's own paper trains it by, in the tables of the other paper too: with Yogi at 1e-3 it learns less."""

COST = ("steps x tasks", "CPU minutes")

SPREAD = "deviation over seeds"
"""Column of the standard deviation of the NLL over training seeds."""

Score = Callable[[nn.Module, Recipe], dict[str, float]]


def arguments(
    description: str, recipes: Iterable[str], models: Iterable[str], test_batches: int = 100
) -> argparse.ArgumentParser:
    """The options that all benchmarks share."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--recipe", choices=list(recipes), default=next(iter(recipes)))
    parser.add_argument("--models", nargs="*", choices=[*MODELS], default=list(models), metavar="MODEL")
    parser.add_argument("--steps", type=int, default=5000)
    parser.add_argument("--batch-size", type=int, default=0, help="tasks in a batch; default: the recipe's")
    parser.add_argument("--test-batches", type=several, default=test_batches)
    parser.add_argument(
        "--set",
        nargs="*",
        default=[],
        metavar="KEY=VALUE",
        help="overrides of the recipe; --out of their own",
    )
    parser.add_argument("--out", type=Path, default=Path("runs/papers"), help="folder of the runs")
    parser.add_argument("--pages", type=Path, help="folder of the tables and plots; default: that of the runs")
    parser.add_argument("--page", metavar="NAME", help="name of the page; default: that of the recipe or experiment")
    parser.add_argument("--only-print", action="store_true", help="print the runs that are finished, train none")
    parser.set_defaults(seeds=1)
    return parser


def add_seeds(parser: argparse.ArgumentParser) -> argparse.ArgumentParser:
    """The parser, with an option to train each model from several seeds."""
    parser.add_argument(
        "--seeds",
        type=int,
        choices=range(1, 11),
        metavar="N",
        default=1,
        help="train each model from the seeds 0 to N - 1, and average its scores",
    )
    return parser


def several(text: str) -> int:
    """A number of scores that have a standard error."""
    if not text.isdecimal() or int(text) < 2:
        raise argparse.ArgumentTypeError(f"got {text}, expected at least 2: one has no standard error")
    return int(text)


def variant(name: str, label: str, overrides: list[str], extra: Mapping[str, Any] | None = None) -> Recipe:
    """Recipe `name` for the model called `label` in the tables."""
    recipe = load(name, overrides)
    architecture, options = MODELS[label]
    config = {**getattr(recipe.data, "dimensions", {}), **options, **(extra or {})}
    return recipe.model_copy(update={"model": Model(architecture=architecture, config=config)})


def run(
    given: argparse.Namespace,
    score: Score,
    overrides: list[str],
    extra: Mapping[str, Mapping[str, Any]] | None = None,
    name: str = "scores.json",
    asked: Iterable[str] = ("test_batches",),
) -> Any:
    """Train and score what is not yet; ``{model: {score: number}}`` of what is.

    `extra` is more configuration of models, by their labels; `name` is that of the file of scores, which depend on the
    arguments `asked`.
    """
    wanted = {key: str(getattr(given, key)) for key in (*asked, *(["set"] if given.set else []))}
    overrides = [*overrides, f"training.steps={given.steps}", *given.set]
    if given.batch_size:
        overrides.append(f"training.batch_size={given.batch_size}")
    found: dict[str, dict[str, Any]] = {}
    given.unfinished = {}
    for label in given.models:
        options = [*overrides, *TRAINING.get(label, [])]
        made = []
        for seed in range(given.seeds):
            recipe = variant(given.recipe, label, [*options, f"training.seed={seed}"], (extra or {}).get(label))
            folder = run_folder(given, label, recipe.training.batch_size, seed)
            row = read_scores(folder / name, wanted)
            if not row and not given.only_print:
                row = trained(recipe, folder, score)
                write_scores(folder / name, row, wanted)
            if row:
                made.append({**row, "folder": str(folder)})
            else:
                print(f"# {label}: no scores of these arguments in {folder}", file=sys.stderr)
                run_label = f"{label}, seed {seed}" if seed else label
                steps = int(curve(folder)[-1]["step"]) if (folder / "curve.csv").exists() else 0
                given.unfinished[run_label] = steps
        if len(made) == given.seeds:
            found[label] = over_seeds(made)
    return found


def run_folder(given: argparse.Namespace, label: str, batch_size: int, seed: int) -> Path:
    """Folder of the run of a model from a seed."""
    name = label.replace(", ", "-").replace(" ", "-")
    folder: Path = given.out / f"{given.recipe}-{given.steps}x{batch_size}" / name
    return folder / f"seed-{seed}" if seed else folder


def trained(recipe: Recipe, folder: Path, score: Score) -> dict[str, Any]:
    """Train a model, or continue, and score it."""
    steps, size = recipe.training.steps, recipe.training.batch_size
    print(f"# {steps} steps of {size} tasks in {folder}", flush=True)
    with terminable():
        file = train(recipe, folder, resume=True, progress=False, workers=0)
    network, _ = checkpoint.load_model(str(file))
    minutes = 60 * float(curve(folder)[-1]["cpu_hours"])
    return {"steps": steps, "batch": size, "minutes": minutes, **score(network, recipe)}


def over_seeds(made: list[dict[str, Any]]) -> dict[str, Any]:
    """Means of the scores of several seeds, and the standard deviation of their NLL; the only ones if there is one."""
    first = made[0]
    if len(made) == 1:
        return first
    means = {key: statistics.fmean(row[key] for row in made) for key in first if isinstance(first[key], float)}
    return {**first, **means, "spread": statistics.stdev(row["nll"] for row in made)}


@contextmanager
def terminable() -> Iterator[None]:
    """Context in which SIGTERM interrupts: training saves its state."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def read_scores(file: Path, asked: Mapping[str, str]) -> dict[str, Any]:
    """Scores that were written for the same arguments; nothing where there are none."""
    made: dict[str, Any] = json.loads(file.read_text()) if file.exists() else {}
    return made if made.pop("asked", None) == asked else {}


def write_scores(file: Path, made: Mapping[str, Any], asked: Mapping[str, str]) -> None:
    """Write a file of scores, which appears when it is complete."""
    part = file.with_suffix(".part")
    part.write_text(json.dumps({**made, "asked": asked}))
    part.replace(file)


def curve(folder: Path) -> list[dict[str, str]]:
    """Rows of the learning curve of a run."""
    with (folder / "curve.csv").open(newline="") as handle:
        return list(csv.DictReader(handle))


@torch.no_grad()
def nll(network: nn.Module, recipe: Recipe, batches: int) -> dict[str, float]:
    """Mean NLL over test batches, its standard error over them, and the exact process's on the same tasks.

    ``gap_error`` is the standard error of how far the NLL is above the exact process's, batch by batch.
    """
    if hasattr(recipe.data, "held_out"):
        recipe = recipe.model_copy(update={"data": recipe.data.held_out()})
    if isinstance(recipe.data, GaussianProcess):
        # however it was trained: the tasks of all others
        recipe = recipe.model_copy(update={"data": replace(recipe.data, shared=True)})
    ours, exact = [], []
    for i in range(batches):
        batch = draw(recipe, TEST_SEED, i)
        predicted = network(batch["xc"], batch["yc"], batch["xt"], batch["context_mask"])
        ours.append(-float(predicted.log_prob(batch["yt"]).mean()))
        if hasattr(recipe.data, "exact"):
            moments = recipe.data.exact(TEST_SEED, i, recipe.training.batch_size)
            exact.append(-float(torch.distributions.Normal(*moments).log_prob(batch["yt"].double()).mean()))
    out = {"nll": statistics.fmean(ours), "error": statistics.stdev(ours) / len(ours) ** 0.5}
    if exact:
        gaps = [a - b for a, b in zip(ours, exact, strict=True)]
        out |= {"exact": statistics.fmean(exact), "gap_error": statistics.stdev(gaps) / len(gaps) ** 0.5}
    return out


def budget(given: argparse.Namespace, tasks: str = "test tasks", paper: tuple[int, int] = (100_000, 32)) -> str:
    """What all models of a table were given; `paper` are the steps and the tasks per step of the paper."""
    size = given.batch_size or load(given.recipe).training.batch_size
    options = f" with {', '.join(f'`{option}`' for option in given.set)}" if given.set else ""
    means = f"means over {given.seeds} training seeds (0 to {given.seeds - 1})"
    each = means if given.seeds > 1 else "one training seed (0)"
    share = f"{100 * given.steps * size / math.prod(paper):.2g} %"
    return (
        f"Recipe `{given.recipe}`{options}: {given.steps:,} steps of {size} tasks for every model, {share} of the tasks"
        f" that the paper trained on ({paper[0]:,} x {paper[1]}), {each}; all are scored on the same "
        f"{given.test_batches * size:,} {tasks}. Minutes are CPU time of the steps alone."
    )


def cost(row: Mapping[str, Any]) -> list[str]:
    """The cells of a row that say what it cost: see :data:`COST`."""
    return [f"{row['steps']:,} x {row['batch']}", f"{row['minutes']:.1f}"]


def mean_and_error(found: list[float]) -> str:
    """Mean and its standard error."""
    return f"{statistics.fmean(found):.3f} ± {statistics.stdev(found) / len(found) ** 0.5:.3f}"


def table(columns: list[str], rows: Iterable[Iterable[object]]) -> str:
    """A Markdown table."""
    lines = [columns, ["---"] * len(columns), *[[str(cell) for cell in row] for row in rows]]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


SECOND_HAND = "paper v2 (second-hand, not checked)"
"""Column of numbers of arXiv 2411.12502 version 2, whose tables are empty in the text that we have."""


def report(
    found: Mapping[str, Mapping[str, Any]], published: Mapping[str, Mapping[str, float]], digits: int = 3
) -> str:
    """Our NLL beside the exact process's and the paper's at 100,000 steps, by the column that says where they stand."""
    rows = [
        [
            label,
            f"{row['nll']:.{digits}f} ± {row['error']:.{digits}f}",
            *(f"{numbers[label]:.{digits}f}" if label in numbers else "-" for numbers in published.values()),
            f"{row['exact']:.{digits}f}" if "exact" in row else "-",
            gap(row, digits),
            *([f"{row['spread']:.{digits}f}"] if "spread" in row else []),
            *cost(row),
        ]
        for label, row in sorted(found.items(), key=lambda item: item[1]["nll"])
    ]
    spread = [SPREAD] * any("spread" in row for row in found.values())
    return table(["model", "NLL", *published, "exact process", "above it", *spread, *COST], rows)


def gap(row: Mapping[str, Any], digits: int) -> str:
    """How far the NLL is above the exact process's, and the standard error of that where it was kept."""
    if "exact" not in row:
        return "-"
    error = f" ± {row['gap_error']:.{digits}f}" if "gap_error" in row else ""
    return f"{row['nll'] - row['exact']:.{digits}f}{error}"


def command() -> str:
    """What makes a page of the runs that there are, but for where these and the page are."""
    words = [word for word in sys.argv[1:] if word != "--only-print"]
    for option in ("--out", "--pages"):
        if option in words:
            del words[words.index(option) : words.index(option) + 2]
    return f"python benchmarks/papers/{Path(sys.argv[0]).name} {shlex.join(words)}"


def publish(given: argparse.Namespace, found: Mapping[str, Mapping[str, Any]], name: str, *parts: str) -> None:
    """Print texts and tables, and write them as the page ``NAME.md``, or of ``--page``, beside a plot of the runs."""
    name = given.page or name
    text = "\n\n".join([*parts, *unfinished(given)])
    print(text)
    folder: Path = given.pages or given.out
    folder.mkdir(parents=True, exist_ok=True)
    plot(found, folder / f"{name}.png", name)
    curves = f"![Held-out NLL of each model against its steps of training]({name}.png)"
    which = " Curves are of seed 0." if given.seeds > 1 else ""
    made = f"Held-out tasks are those of validation, not of the table.{which} `{command()}`"
    (folder / f"{name}.md").write_text(f"# {name}\n\n{text}\n\n{curves}\n\n{made}\n", encoding="utf-8")


def unfinished(given: argparse.Namespace) -> list[str]:
    """A sentence on the models whose runs have not ended; nothing if all have."""
    steps: dict[str, int] = getattr(given, "unfinished", {})
    if not steps:
        return []
    runs = []
    for label, step in steps.items():
        done = "trained, not scored" if step == given.steps else f"{step:,} of {given.steps:,} steps"
        runs.append(f"{label} ({done if step else 'no run'})")
    return [f"Unfinished: {', '.join(runs)}."]


def plot(found: Mapping[str, Mapping[str, Any]], file: Path, title: str) -> None:
    """Held-out NLL of all runs against steps."""
    figure = Figure(figsize=(10, 5), layout="constrained")
    axes = figure.subplots()
    axes.set_prop_cycle(color=colormaps["tab20"].colors[::2] + colormaps["tab20"].colors[1::2])
    for label, row in found.items():
        points = [(int(r["step"]), float(r["nll"])) for r in curve(Path(row["folder"])) if r["nll"]]
        axes.plot(*zip(*points, strict=True), marker=".", label=label)
    axes.set(xlabel="step", ylabel="NLL of held-out tasks", title=title)
    axes.grid(alpha=0.3)
    if found:
        axes.legend(fontsize=8, loc="upper left", bbox_to_anchor=(1.01, 1.0))
    FigureCanvasAgg(figure).print_figure(str(file), dpi=70)
