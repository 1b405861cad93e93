"""Cost of each model as context and targets grow, and of translation-equivariant and scan attention.

Run as ``python benchmarks/cost.py [--only million attention models] [--models te-pt-tnp cnp]``: TE-PT-TNP on a million
cells without tiles, the attention of one layer, and all models. Exponents are least-squares slopes of log time against
log size, of one forward pass at published widths with the other size fixed. Linear models have exponents near 1;
quadratic terms dominate from several thousand points on.
"""

from __future__ import annotations

import argparse
import multiprocessing
import resource
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from geonp.nn.attention import dense_attention, te_attention
from geonp.nn.bias import RBFBias, rbf_bias
from geonp.nn.layers import PairMLP
from geonp.nn.models import ARCHITECTURES, build
from geonp.nn.scan import scan_attention

VARIANTS = {
    "tnp-kr (scan)": ("tnp-kr", {}),
    "tnp-kr (dka)": ("tnp-kr", {"attention": "dka"}),
    "tnp-kr (performer)": ("tnp-kr", {"attention": "performer", "v_dim": 128, "v_hidden": 0}),
    "tnp-kr (full)": ("tnp-kr", {"attention": "full"}),
    **{name: (name, {}) for name in ARCHITECTURES if name != "tnp-kr"},
}


def best(function: Callable[[], Any], repeats: int = 3) -> float:
    """Shortest processor time of several runs after a warm-up, in seconds."""
    function()
    times = []
    for _ in range(repeats):
        start = time.process_time()
        function()
        times.append(time.process_time() - start)
    return min(times)


def exponent(sizes: Sequence[int], seconds: Sequence[float]) -> float:
    """Slope of log time against log size."""
    return float(np.polyfit(np.log(sizes), np.log(seconds), 1)[0])


def forward(network: torch.nn.Module, n_c: int, n_t: int) -> Callable[[], Any]:
    """Function that predicts `n_t` targets from `n_c` context points in the square of the published benchmarks."""
    torch.manual_seed(0)
    xc, yc, xt = torch.rand(1, n_c, 2) * 4 - 2, torch.randn(1, n_c, 1), torch.rand(1, n_t, 2) * 4 - 2
    return lambda: network(xc, yc, xt)


@torch.no_grad()
def models(names: Sequence[str], sizes: Sequence[int], fixed: int) -> None:
    """Print exponents and times of the models of :data:`VARIANTS`."""
    print(f"\n| model | exponent in n_c | exponent in n_t | time at n_c = {sizes[-1]}, as a multiple of CNP's |")
    print("|---|---:|---:|---:|")
    cnp = build("cnp", {}).eval()
    reference = best(forward(cnp, sizes[-1], fixed))
    for name in names:
        architecture, config = VARIANTS[name]
        network = build(architecture, config).eval()
        context = [best(forward(network, n, fixed)) for n in sizes]
        targets = [best(forward(network, fixed, n)) for n in sizes]
        slopes = exponent(sizes, context), exponent(sizes, targets)
        print(f"| {name} | {slopes[0]:.2f} | {slopes[1]:.2f} | {context[-1] / reference:,.1f} |", flush=True)


def growth(function: Callable[[], Any]) -> float:
    """Growth of the peak memory of a forked process while it runs `function`, in MiB.

    The peak is the kernel's, which psutil does not report on Linux.
    """

    def child(sender: Any) -> None:
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        function()
        sender.send((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 2**10)

    context = multiprocessing.get_context("fork")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=child, args=(sender,))
    process.start()
    mib: float = receiver.recv()
    process.join()
    return mib


def attention(n: int, heads: int = 8, d: int = 16) -> None:
    """Print time and memory of the attention of one layer, forward only and with the backward pass."""
    torch.manual_seed(0)
    q, k, v = (torch.randn(1, heads, n, d, requires_grad=True) for _ in range(3))
    x, mask, dim = torch.rand(1, n, 2) * 8, torch.ones(1, n, dtype=torch.bool), heads * d
    bias, rho, phi = RBFBias(heads), PairMLP(2 + heads, dim, dim, heads), PairMLP(heads, dim, dim, 2)
    rbf = (bias.a, bias.b, bias.c)
    kinds: dict[str, Callable[[], torch.Tensor]] = {
        "dense, RBF bias": lambda: dense_attention(q, k, v, rbf_bias(x, x, *rbf), mask),
        "scan, RBF bias": lambda: scan_attention(q, k, v, x, x, rbf_bias, rbf, mask),
        "translation equivariant": lambda: sum(t.sum() for t in te_attention(q, k, v, x, x, rho, phi, mask)),
        "the same, all pairs at once": lambda: sum(
            t.sum() for t in te_attention(q, k, v, x, x, rho, phi, mask, max_pairs=n * n)
        ),
    }
    print(f"\n| attention, {n} queries and keys, {heads} heads of {d} | time | with gradients | MiB | with gradients |")
    print("|---|---:|---:|---:|---:|")
    reference = None
    for name, function in kinds.items():
        predict = torch.no_grad()(function)

        def learn(function: Callable[[], torch.Tensor] = function) -> None:
            function().sum().backward()

        memory = growth(predict), growth(learn)
        seconds = best(predict), best(learn)
        reference = reference or seconds
        ratios = [s / r for s, r in zip(seconds, reference, strict=True)]
        print(f"| {name} | {ratios[0]:.1f} | {ratios[1]:.1f} | {memory[0]:,.0f} | {memory[1]:,.0f} |", flush=True)


@torch.no_grad()
def million(side: int, share: float) -> None:
    """Print time and memory of TE-PT-TNP on a square raster without tiles.

    Every cell is predicted from a random `share` of the cells, by random weights of the widths of the ERA5 experiment.
    Coordinates are in the range of the paper.
    """
    network = build("te-pt-tnp", {"dim": 32, "heads": 4, "n_pseudo": 64}).eval()
    torch.manual_seed(0)
    axis = torch.linspace(-2, 2, side)
    xt = torch.cartesian_prod(axis, axis)[None]
    xc = xt[:, torch.randperm(side**2)[: round(share * side**2)]]
    yc = torch.sin(3 * xc.sum(-1, keepdim=True))
    start = time.perf_counter()
    memory = growth(lambda: network(xc, yc, xt))
    seconds = time.perf_counter() - start
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**10
    print(f"| te-pt-tnp, {xc.shape[1]:,} context points, {xt.shape[1]:,} targets | |\n|---|---:|")
    print(f"| peak memory beside libraries and points, MiB | {memory:,.0f} |")
    print(f"| of the whole process, MiB | {before + memory:,.0f} |\n| cells a second | {side**2 / seconds:,.0f} |")


PARTS = ("million", "attention", "models")


def main() -> None:
    """Run the benchmarks."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", type=int, nargs="+", default=[512, 1024, 2048, 4096], help="points")
    parser.add_argument("--fixed", type=int, default=64, help="fixed number of the other points")
    parser.add_argument("--models", nargs="*", default=list(VARIANTS), help="names of models")
    parser.add_argument("--pairs", type=int, default=1024, help="number of queries and keys of the attention")
    parser.add_argument("--side", type=int, default=1000, help="rows and columns of the raster without tiles")
    parser.add_argument("--share", type=float, default=0.1, help="share of its cells that are context")
    parser.add_argument("--only", nargs="+", choices=PARTS, default=PARTS, help="parts to run")
    arguments = parser.parse_args()
    torch.set_num_threads(1)  # forked processes cannot use the threads of their parent
    # memory first: later forks would reuse memory that this process has freed
    if "million" in arguments.only:
        million(arguments.side, arguments.share)
    if "attention" in arguments.only:
        attention(arguments.pairs)
    if "models" in arguments.only:
        models(arguments.models, arguments.sizes, arguments.fixed)


if __name__ == "__main__":
    main()
