"""TNP-KR's Gaussian processes and images: every model at one budget beside the paper's numbers and the exact process.

Run as ``python benchmarks/papers/gp.py --recipe gp1d_rbf --steps 5000``. Targets are the noise-free function at 150
(2-D: 384) locations, context included; context values are noisy. The paper trains for 100,000 steps of 32 (16) tasks.
"""

from __future__ import annotations

from tables import MODELS, arguments, budget, nll, publish, report, run

PUBLISHED: dict[str, dict[str, float]] = {
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


def main() -> None:
    others = {"EQTNP", "PT-TNP", "RCNP", "TE-PT-TNP", "TE-PT-TNP, kriging head"}
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
        publish(given, found, given.recipe, budget(given), report(found, PUBLISHED[given.recipe]))


if __name__ == "__main__":
    main()
