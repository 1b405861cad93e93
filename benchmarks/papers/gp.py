"""TNP-KR's Gaussian processes and images: every model at one budget beside the paper's numbers and the exact process.

Run as ``python benchmarks/papers/gp.py --recipe gp1d_rbf --steps 5000``. Targets are the noise-free function at 150
(2-D: 384) locations, context included; context values are noisy. The paper trains for 100,000 steps of 32 (16) tasks.
"""

from __future__ import annotations

from tables import MODELS, SECOND_HAND, add_seeds, arguments, budget, nll, publish, report, run

MODELS_1D = ("NP", "CNP", "BNP", "ANP", "CANP", "BANP", "ConvCNP", "TNP-D", "TNP-KR-PERF", "TNP-KR-FULL")
FIRST: dict[str, dict[str, float]] = {
    "gp1d_matern32": dict(
        zip(MODELS_1D, (0.638, 0.547, 0.523, 0.043, 0.047, 0.023, -0.018, -0.023, -0.006, -0.024), strict=True)
    ),
    "gp1d_periodic": dict(
        zip(MODELS_1D, (1.342, 1.165, 1.165, 0.829, 0.818, 0.761, 0.543, 0.516, 0.562, 0.516), strict=True)
    ),
    "gp1d_rbf": dict(
        zip(MODELS_1D, (0.338, 0.238, 0.165, -0.341, -0.310, -0.347, -0.456, -0.455, -0.425, -0.453), strict=True)
    ),
    "gp2d_rbf": {
        "NP": 1.209,
        "CNP": 1.174,
        "ANP": 0.753,
        "CANP": 0.611,
        "TNP-D": 0.484,
        "TNP-KR-PERF": 0.554,
        "TNP-KR-FULL": 0.482,
    },
}
"""NLL at 100,000 steps, arXiv 2411.12502 version 1, table 3, two dimensions table 5; its "Fast" is PERF."""

SECOND: dict[str, dict[str, float]] = {
    "gp1d_rbf": {
        "TNP-KR-DKA": -0.464,
        "TNP-KR-SA": -0.462,
        "TNP-KR-PERF": -0.459,
        "ConvCNP": -0.454,
        "TNP-D": -0.454,
        "BANP": -0.335,
        "ANP": -0.298,
    },
    "gp1d_periodic": {"TNP-KR-SA": 0.491, "TNP-D": 0.536, "ConvCNP": 0.551},
    "gp1d_matern32": {"TNP-KR-SA": -0.027, "TNP-D": -0.020},
    "gp2d_rbf": {"TNP-KR-SA": 0.460, "ConvCNP": 0.466},
    "images_digits": {},
    "images_photographs": {},
    "images_translated": {},
}
"""The same of version 2, second-hand and not checked. Its images are others."""

TABLES = {"gp1d": "table 3", "gp2d": "table 5"}


TRANSLATED = {"CNP": -0.64, "RCNP": -1.04, "ConvCNP": -1.20, "PT-TNP": -1.14, "TE-PT-TNP": -1.18}
"""Negated log-likelihood of T-MNIST, TE-TNP (ICML 2024), table 1, with 64 pseudo-tokens: other images."""

EXTRA: dict[str, dict[str, dict[str, object]]] = {
    "images_digits": {label: {"min_scale": 0.05} for label in MODELS},
    "images_photographs": {label: {"min_scale": 0.05} for label in MODELS},
    "images_translated": {
        "CNP": {"encoder": [32] * 6, "decoder": [32] * 5},
        "RCNP": {"dim": 32},
        "PT-TNP": {"dim": 32, "heads": 4, "n_pseudo": 64},
        "TE-PT-TNP": {"dim": 32, "heads": 4, "n_pseudo": 64},
    },
}
"""Options of models for a recipe: the bound of the scale, or the widths of TE-TNP's section F.2."""


def published(recipe: str) -> dict[str, dict[str, float]]:
    """Numbers of both versions of the paper by the columns that say where they stand."""
    if recipe == "images_translated":
        return {"paper, T-MNIST, table 1": TRANSLATED}
    columns = {f"paper v1, {TABLES[recipe[:4]]}": FIRST[recipe]} if recipe in FIRST else {}
    return {**columns, SECOND_HAND: SECOND[recipe]} if SECOND[recipe] else columns


TE_TNP_NOTE = "TE-TNP is trained as in its own paper but for the recipe's falling rate: AdamW, 5e-4, clipped at 0.5."

NOTES = {
    "images_digits": "The best step of each run is chosen by tasks of the same few images that it is scored on.",
}
"""What else the page of a recipe has to say."""


def main() -> None:
    others = {"EQTNP", "TNP-ND", "TNP-A", "LBANP", "PT-TNP", "RCNP", "TE-PT-TNP", "TE-PT-TNP, kriging head"}
    others |= {"TNP-KR-SA, invariant", "TNP-KR-SA, means"}
    models = [name for name in MODELS if name not in others]
    more = ["EQTNP", "LBANP", "PT-TNP", "TNP-ND", "TNP-A"]
    given = add_seeds(arguments(__doc__ or "", SECOND, models)).parse_args()
    if given.recipe == "images_translated" and given.models == models:
        given.models = list(EXTRA[given.recipe])
    if given.recipe == "gp1d_matern32" and given.models == models:
        given.models = [*models, *more]
    every = max(1, given.steps // 20)
    found = run(
        given,
        lambda network, recipe: nll(network, recipe, given.test_batches),
        [f"training.validate_every={every}", "training.validation_batches=16", "training.save_every_s=60"],
        EXTRA.get(given.recipe),
    )
    if found or given.unfinished:
        tnp_kr, te_tnp = (100_000, 32 if given.recipe.startswith("gp1d") else 16), (500_000, 8)
        paper = te_tnp if given.recipe == "images_translated" else tnp_kr
        note = f"{budget(given, paper=paper)} {NOTES.get(given.recipe, '')}".rstrip()
        note += f" {TE_TNP_NOTE}" if "TE-TNP" in found else ""
        publish(given, found, given.recipe, note, report(found, published(given.recipe)))


if __name__ == "__main__":
    main()
