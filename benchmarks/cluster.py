"""Cost of a unit of work for the scheduler of a cluster and for the store: measured, and simulated for 100,000 units.

Run as ``python benchmarks/cluster.py [--units 2000] [--workers 1000]``. The raster has no gaps, so that the overhead
dominates. The scheduler is a separate process, whose processor time is read. Requests to the store are counted by a
server with the API of S3. In the simulation, workers fill a unit in a given time, one scheduler handles one task at a
time, and a client keeps two units for each worker in flight, as :mod:`geonp.fill.workers` does.
"""

from __future__ import annotations

import argparse
import heapq
import re
import subprocess
import sys
import tempfile
import time
from collections import Counter, deque
from pathlib import Path

import numpy as np
import psutil
import xarray as xr
from distributed import Client

from geonp.io.files import open_raster

SIDE = 32  # cells of a unit's side


def main() -> None:
    """Measure, then simulate."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--units", type=int, default=2000, help="number of units to measure")
    parser.add_argument("--workers", type=int, default=1000, help="number of workers to simulate")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        of_scheduler, of_client = processor_time(Path(folder), arguments.units)
    requests = requests_to_store()
    print("| a unit costs | |\n|---|---:|")
    print(f"| the scheduler, ms of processor time | {1e3 * of_scheduler:.2f} |")
    print(f"| the client, ms of processor time | {1e3 * of_client:.2f} |")
    print("\n".join(f"| {verb} requests to the store | {n:.2f} |" for verb, n in sorted(requests.items())))
    print(
        f"\n| 100,000 units, {arguments.workers} workers, a unit takes | hours | scheduler busy | requests a second |"
    )
    print("|---|---:|---:|---:|")
    for seconds in (1.0, 10.0, 60.0, 300.0):
        span, busy = simulate(100_000, arguments.workers, seconds, of_scheduler)
        print(f"| {seconds:.0f} s | {span / 3600:.2f} | {busy:.0%} | {1e5 * sum(requests.values()) / span:,.0f} |")


def make(path: Path | str, units: int, options: dict[str, object] | None = None) -> None:
    """Write a raster without gaps, of a number of units, in chunks of one unit."""
    rows = int(np.ceil(np.sqrt(units)))
    values = np.random.default_rng(0).random((rows * SIDE, -(-units // rows) * SIDE), np.float32)
    raster = xr.Dataset({"a": (("y", "x"), values)})
    raster.to_zarr(path, encoding={"a": {"chunks": (SIDE, SIDE)}}, storage_options=options, consolidated=False)


def processor_time(folder: Path, units: int) -> tuple[float, float]:
    """Processor time of the scheduler and of the client for one unit, in seconds."""
    make(folder / "in.zarr", units)
    command = [sys.executable, "-m", "distributed.cli.dask_scheduler", "--port", "0", "--dashboard-address", ":0"]
    file = folder / "scheduler.json"
    processes = [subprocess.Popen([*command, "--scheduler-file", str(file)], stderr=subprocess.DEVNULL)]
    while not file.exists():
        time.sleep(0.2)
    worker = [sys.executable, "-m", "distributed.cli.dask_worker", "--scheduler-file", str(file), "--no-dashboard"]
    processes.append(subprocess.Popen([*worker, "--nworkers", "2", "--nthreads", "1"], stderr=subprocess.DEVNULL))
    try:
        with Client(scheduler_file=str(file)) as client:
            client.wait_for_workers(2)
            make(folder / "small.zarr", 4)
            open_raster(folder / "small.zarr", chunks=None).geonp.fill_store(folder / "small_out.zarr", chunks=SIDE)
            watched = psutil.Process(processes[0].pid), psutil.Process()
            before = [sum(p.cpu_times()[:2]) for p in watched]
            raster = open_raster(folder / "in.zarr", chunks=None)
            report = raster.geonp.fill_store(folder / "out.zarr", chunks=SIDE)
            spent = [sum(p.cpu_times()[:2]) - b for p, b in zip(watched, before, strict=True)]
        assert not report.failed
        return spent[0] / report.units, spent[1] / report.units
    finally:
        for process in processes:
            process.terminate()


def requests_to_store() -> dict[str, float]:
    """Requests to the store for one unit, by verb: the difference between a job of 400 units and one of 100."""
    import logging

    import boto3
    from moto.server import ThreadedMotoServer

    seen: Counter[str] = Counter()

    class Count(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            request = re.search(r'"(GET|PUT|HEAD|POST|DELETE) ', record.getMessage())
            seen.update([request.group(1)] if request else [])

    log = logging.getLogger("werkzeug")
    log.handlers, log.propagate = [Count()], False
    log.setLevel(logging.INFO)
    server = ThreadedMotoServer(port=0, verbose=True)
    server.start()
    host, port = server.get_host_and_port()
    keys = {"key": "a", "secret": "b"}
    endpoint = f"http://{host}:{port}"
    options: dict[str, object] = {**keys, "endpoint_url": endpoint, "client_kwargs": {"region_name": "us-east-1"}}
    client = boto3.client(
        "s3", endpoint_url=endpoint, aws_access_key_id="a", aws_secret_access_key="b", region_name="us-east-1"
    )
    client.create_bucket(Bucket="rasters")
    counts = []
    try:
        for units in (100, 400):
            make(f"s3://rasters/in{units}.zarr", units, options)
            raster = open_raster(f"s3://rasters/in{units}.zarr", chunks=None, storage_options=options)
            seen.clear()
            raster.geonp.fill_store(
                f"s3://rasters/out{units}.zarr", chunks=SIDE, storage_options=options, source_options=options
            )
            counts.append(Counter(seen))
    finally:
        server.stop()
    return {verb: (counts[1][verb] - counts[0][verb]) / 300 for verb in counts[1]}


def simulate(units: int, workers: int, seconds: float, overhead: float) -> tuple[float, float]:
    """Duration of a job in seconds, and the share of it in which the scheduler is busy.

    A unit takes `seconds` on average, between half and twice as long. It then occupies the scheduler for `overhead`
    seconds before its worker can start the next one.
    """
    rng = np.random.default_rng(0)
    times = seconds * np.exp(rng.uniform(-np.log(2), np.log(2), units)) / 1.0820  # the mean of the factor
    waiting = deque(times)
    free, ends = 0.0, [(float(waiting.popleft()), i) for i in range(min(workers, units))]
    heapq.heapify(ends)
    last = 0.0
    while ends:
        end, worker = heapq.heappop(ends)
        last = free = max(free, end) + overhead
        if waiting:
            # the worker already has the next unit; a busy scheduler delays the one after it
            heapq.heappush(ends, (max(end, free - seconds) + float(waiting.popleft()), worker))
    return last, units * overhead / last


if __name__ == "__main__":
    main()
