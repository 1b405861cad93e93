"""TNP-KR's Gaussian processes and images: every model at one budget beside the paper's numbers and the exact process.

Run as ``python benchmarks/papers/gp.py --recipe gp1d_rbf --steps 5000``. Targets are the noise-free function at 150
(2-D: 384) locations, context included; context values are noisy. The paper trains for 100,000 steps of 32 (16) tasks.
"""

from __future__ import annotations

from tables import MODELS, arguments, budget, nll, publish, report, run

FIRST = {
    "gp1d_rbf": {"NP": 0.338, "CNP": 0.238, "BNP": 0.165, "CANP": -0.310},
    "gp1d_periodic": {
        "NP": 1.342,
        "CNP": 1.165,
        "BNP": 1.165,
        "ANP": 0.829,
        "CANP": 0.818,
        "BANP": 0.761,
        "TNP-KR-PERF": 0.562,
    },
    "gp1d_matern32": {
        "NP": 0.638,
        "CNP": 0.547,
        "BNP": 0.523,
        "ANP": 0.043,
        "CANP": 0.047,
        "BANP": 0.023,
        "ConvCNP": -0.018,
        "TNP-KR-PERF": -0.006,
    },
    "gp2d_rbf": {"NP": 1.209, "CNP": 1.174, "ANP": 0.753, "CANP": 0.611, "TNP-D": 0.484, "TNP-KR-PERF": 0.554},
}
"""NLL at 100,000 steps of the first version of the paper (tables 3 and 5), where the second's is not known."""

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
}
"""NLL at 100,000 steps, arXiv 2411.12502 version 2, whose images are others."""

PUBLISHED: dict[str, dict[str, float | str]] = {
    name: {**{label: f"{nll:.3f} (v1)" for label, nll in FIRST.get(name, {}).items()}, **found}
    for name, found in SECOND.items()
}

NOTES = {
    "gp1d_rbf": "TE-TNP is trained as in its own paper but for the recipe's falling rate: AdamW, 5e-4, clipped at 0.5.",
    "images_digits": "The best step of each run is chosen by tasks of the same few images that it is scored on.",
}
"""What else a page has to say."""


def main() -> None:
    others = {"EQTNP", "TNP-ND", "TNP-A", "LBANP", "PT-TNP", "RCNP", "TE-PT-TNP", "TE-PT-TNP, kriging head"}
    others |= {"TNP-KR-SA, invariant", "TNP-KR-SA, means"}
    models = [name for name in MODELS if name not in others]
    given = arguments(__doc__ or "", PUBLISHED, models).parse_args()
    every = max(1, given.steps // 20)
    found = run(
        given,
        lambda network, recipe: nll(network, recipe, given.test_batches),
        [f"training.validate_every={every}", "training.validation_batches=16", "training.save_every_s=60"],
        {key: {"min_scale": 0.05} for key in given.models} if given.recipe == "images_digits" else None,
    )
    if found:
        note = f"{budget(given)} {NOTES.get(given.recipe, '')}".rstrip()
        publish(given, found, given.recipe, note, report(found, PUBLISHED[given.recipe]))


if __name__ == "__main__":
    main()
