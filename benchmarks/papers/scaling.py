"""Time and memory of every model against the numbers of points (TNP-KR v1, tables 1 and 2, figures 3 and 4).

Run as ``python benchmarks/papers/scaling.py [--limit 4]``, in one thread, or on a GPU if there is one. Weights are
random and widths are published ones; the other number of points is 100, as in the paper. A size is left out when it is
expected to take longer than ``--limit`` seconds. Memory is the growth of the peak of a process during the prediction.

Scan attention alone is run for 100,000 keys and a few thousand of a million queries, as a layer of TNP-KR-SA would;
the time of all queries, of the keys among themselves and of six layers is extrapolated, as it is proportional to the
number of pairs. The second version claims that such a prediction takes less than a minute on a GPU of 24 GB.
"""

from __future__ import annotations

import argparse
import multiprocessing
import resource
import time
from collections.abc import Callable
from pathlib import Path

import torch
from matplotlib import colormaps
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from tables import table
from torch import nn

from geonp.nn.bias import RBFBias, rbf_bias
from geonp.nn.models import ARCHITECTURES, build
from geonp.nn.scan import scan_attention

MODELS = {
    "tnp-kr, SA": ("tnp-kr", {}),
    "tnp-kr, DKA": ("tnp-kr", {"attention": "dka"}),
    "tnp-kr, PERF": ("tnp-kr", {"attention": "performer", "v_dim": 128, "v_hidden": 0, "embed_hidden": [512, 128]}),
    "tnp-kr, full": ("tnp-kr", {"attention": "full"}),
    **{name: (name, {}) for name in ARCHITECTURES if name != "tnp-kr"},
}
LEFT_OUT = "Weights are random. A dash is a size that was expected to take longer than the limit, in seconds."

SIZES = tuple(10**i for i in range(7))
FIXED = 100
Table = dict[str, dict[int, tuple[float, float]]]
"""Seconds and MiB by model and number of points."""


def measured(function: Callable[[], object], device: str) -> tuple[float, float]:
    """Seconds and growth of the peak memory in MiB; on a CPU, those of a forked process."""
    if device == "cuda":
        function()
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before, start = torch.cuda.memory_allocated(), time.perf_counter()
        function()
        torch.cuda.synchronize()
        return time.perf_counter() - start, (torch.cuda.max_memory_allocated() - before) / 2**20

    def child(sender: object) -> None:
        before, start = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.process_time()
        function()
        first, start = time.process_time() - start, time.process_time()
        if first < 1:  # without what the first call sets up
            function()
        seconds = time.process_time() - start if first < 1 else first
        sender.send((seconds, (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 2**10))  # type: ignore[attr-defined]

    context = multiprocessing.get_context("fork")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=child, args=(sender,))
    process.start()
    found: tuple[float, float] = receiver.recv()
    process.join()
    return found


def grow(network: nn.Module, grows: str, limit: float, device: str) -> dict[int, tuple[float, float]]:
    """Measure one model for growing numbers of context points or targets, until it would exceed `limit` seconds."""
    found: dict[int, tuple[float, float]] = {}
    for n in SIZES:
        times = [seconds for seconds, _ in found.values()]
        if (
            times
            and times[-1] * max(10.0, times[-1] / times[-2] if len(times) > 1 and times[-2] > 0.05 else 10.0) > limit
        ):
            break
        n_c, n_t = (n, FIXED) if grows == "context" else (FIXED, n)
        torch.manual_seed(0)
        xc, yc, xt = (
            t.to(device) for t in (torch.rand(1, n_c, 2) * 4 - 2, torch.randn(1, n_c, 1), torch.rand(1, n_t, 2) * 4 - 2)
        )
        found[n] = measured(lambda xc=xc, yc=yc, xt=xt: network(xc, yc, xt), device)
    return found


def scan(n_c: int, n_t: int, queries: int, device: str) -> dict[str, float]:
    """Scan attention of one layer of TNP-KR-SA with its RBF bias, and what it extrapolates to."""
    torch.manual_seed(0)
    heads, d = 4, 32
    q, k, v = (torch.randn(1, heads, n, width, device=device) for n, width in ((queries, d), (n_c, d), (n_c, 16)))
    xq, xk = (torch.rand(1, n, 2, device=device) * 4 - 2 for n in (queries, n_c))
    bias = RBFBias(heads).to(device)
    seconds, mib = measured(lambda: scan_attention(q, k, v, xq, xk, rbf_bias, (bias.a, bias.b, bias.c)), device)
    rate = queries * n_c / seconds
    return {"seconds": seconds, "mib": mib, "pairs": rate, "hours": 6 * (n_t + n_c) * n_c / rate / 3600}


def plot(results: dict[str, Table], file: Path) -> None:
    """Time and memory against numbers of points."""
    figure = Figure(figsize=(12, 8), layout="constrained")
    for row, (what, unit) in zip(figure.subplots(2, 2, sharex=True), (("time", "s"), ("memory", "MiB")), strict=True):
        for axes, (grows, by_model) in zip(row, results.items(), strict=True):
            axes.set_prop_cycle(color=colormaps["tab20"].colors)
            for name, by_size in by_model.items():
                values = [point[what == "memory"] for point in by_size.values()]
                axes.plot(list(by_size), [max(value, 1e-4) for value in values], marker=".", label=name)
            axes.set(xscale="log", yscale="log", xlabel=f"{grows} points", ylabel=f"{what}, {unit}")
            axes.grid(alpha=0.3)
    figure.legend(*axes.get_legend_handles_labels(), loc="outside right upper", fontsize=8)
    FigureCanvasAgg(figure).print_figure(str(file), dpi=70)


def main() -> None:
    """Measure all models, then scan attention, and write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="*", choices=MODELS, default=list(MODELS), metavar="MODEL")
    parser.add_argument("--limit", type=float, default=4.0, help="longest prediction, seconds")
    parser.add_argument("--queries", type=int, default=4096, help="queries of scan attention that are measured")
    parser.add_argument("--pages", type=Path, default=Path("runs/papers"), help="folder of the page")
    given = parser.parse_args()
    torch.set_num_threads(1)  # forked processes cannot use the threads of their parent
    device = "cuda" if torch.cuda.is_available() else "cpu"
    results: dict[str, Table] = {"context": {}, "test": {}}
    with torch.no_grad():
        alone = scan(100_000, 1_000_000, given.queries, device)
        for name in given.models:
            architecture, config = MODELS[name]
            network = build(architecture, config).eval().to(device)
            for grows, by_model in results.items():
                by_model[name] = grow(network, grows, given.limit, device)
            print(f"# {name}", flush=True)
    given.pages.mkdir(parents=True, exist_ok=True)
    page = "scaling" if device == "cpu" else "scaling-gpu"
    plot(results, given.pages / f"{page}.png")
    unit = "One thread of a CPU" if device == "cpu" else f"One {torch.cuda.get_device_name()}"
    parts = [f"# {page}", f"{unit}; `python benchmarks/papers/scaling.py --limit {given.limit:g}`. {LEFT_OUT}"]
    for grows, by_model in results.items():
        parts.append(f"Milliseconds (MiB) of a prediction by the number of {grows} points, with {FIXED} of the others:")
        rows = [
            [name, *(f"{1e3 * by_size[n][0]:,.3g} ({by_size[n][1]:,.0f})" if n in by_size else "-" for n in SIZES)]
            for name, by_size in by_model.items()
        ]
        parts.append(table(["model", *(f"{n:,}" for n in SIZES)], rows))
    rate = 1e6 / alone["hours"] / 3600
    whole = f"{alone['hours']:,.1f} hours" if alone["hours"] >= 1 else f"{60 * alone['hours']:.1f} minutes"
    parts.append(
        f"Scan attention alone, 4 heads, 100,000 keys: {given.queries:,} queries take {alone['seconds']:.1f} s and "
        f"{alone['mib']:,.0f} MiB, {alone['pairs'] / 1e6:,.0f} million pairs a second. Extrapolated: six layers of "
        f"100,000 context points and a million targets take {whole} ({rate:,.0f} targets a second) "
        "in constant memory beside the tokens. The second version (abstract) has less than a minute on a GPU of 24 GB."
    )
    parts.append(
        "The first version's tables 1 and 2 have microseconds on an RTX 4090, with TNP-D at 45,000 for 10,000 test "
        "points and out of memory from 100,000 on; TNP-D here has no masked products, so it grows as TNP-KR does."
    )
    parts.append(f"![Time and memory of each model against the numbers of points]({page}.png)")
    (given.pages / f"{page}.md").write_text("\n\n".join(parts) + "\n", encoding="utf-8")
    print("\n\n".join(parts))


if __name__ == "__main__":
    main()
