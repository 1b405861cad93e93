"""Fill a raster of any size as a batch job: on this machine, through SLURM, or on Kubernetes.

::

    python examples/cluster.py in.zarr out.zarr                          # processes of this machine
    python examples/cluster.py in.zarr out.zarr --where slurm --jobs 20  # needs dask-jobqueue
    python examples/cluster.py s3://bucket/in.zarr s3://bucket/out.zarr --where kubernetes --jobs 20 --image ...

Interrupted jobs, by a walltime too, continue with the same command. The process that runs this needs little: it may
be a SLURM job of one core and 2 GB, or a pod.
"""

from __future__ import annotations

import argparse
import os
import sys
from typing import Any

from distributed import Client, LocalCluster

from geonp.io.files import open_raster

MEMORY_PER_CORE_GB = 2  # `geonp fill --dry-run` prints what a unit takes


def main() -> int:
    """Start a cluster, fill, and report the result."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", help="raster: a path or URL that all workers can read")
    parser.add_argument("target", help="Zarr store: a path or URL that all workers can write")
    parser.add_argument("--where", choices=["local", "slurm", "kubernetes"], default="local")
    parser.add_argument("--jobs", type=int, default=2, help="jobs, pods or local processes")
    parser.add_argument("--cores", type=int, default=1, help="cores of each")
    parser.add_argument("--walltime", default="04:00:00", help="of a SLURM job, hh:mm:ss")
    parser.add_argument("--image", default="", help="container with geonp and dask, for Kubernetes")
    parser.add_argument("--show", action="store_true", help="print what would be submitted, and submit nothing")
    arguments = parser.parse_args()
    cluster = {"local": local, "slurm": slurm, "kubernetes": kubernetes}[arguments.where](arguments)
    if arguments.show:
        print(cluster.job_script() if arguments.where == "slurm" else cluster)
        cluster.close()
        return 0
    with cluster, Client(cluster) as client:
        print(f"dashboard: {client.dashboard_link}")
        raster = open_raster(arguments.source, chunks=None)
        report = raster.geonp.fill_store(arguments.target, resume=True, progress=show)
    for unit, reason in report.failed.items():
        print(f"failed: {unit}: {reason}", file=sys.stderr)
    print(f"{report.units} units, {report.reused} of them from before")
    return 1 if report.failed else 0


def local(arguments: argparse.Namespace) -> Any:
    """Processes of this machine."""
    return LocalCluster(n_workers=arguments.jobs, threads_per_worker=arguments.cores)


def slurm(arguments: argparse.Namespace) -> Any:
    """SLURM jobs of workers that leave a quarter of an hour before the walltime, when they have finished a unit."""
    from dask_jobqueue import SLURMCluster

    hours, minutes, seconds = map(int, arguments.walltime.split(":"))
    lifetime = max(3600 * hours + 60 * minutes + seconds - 900, 300)
    cluster = SLURMCluster(
        cores=arguments.cores,
        processes=1,
        memory=f"{MEMORY_PER_CORE_GB * arguments.cores}GB",
        walltime=arguments.walltime,
        worker_extra_args=["--lifetime", f"{lifetime}s", "--lifetime-stagger", "5m"],
        job_script_prologue=["export OMP_NUM_THREADS=1"],
    )
    if not arguments.show:
        cluster.scale(jobs=arguments.jobs)
    return cluster


def kubernetes(arguments: argparse.Namespace) -> Any:
    """Pods of a cluster that runs the Dask operator; credentials for the store come from their environment."""
    from dask_kubernetes.operator import KubeCluster

    size = {"cpu": str(arguments.cores), "memory": f"{MEMORY_PER_CORE_GB * arguments.cores}Gi"}
    return KubeCluster(
        name=f"geonp-{os.getpid()}",
        image=arguments.image,
        n_workers=arguments.jobs,
        resources={"requests": size, "limits": size},
        env={"OMP_NUM_THREADS": "1"},
    )


def show(record: dict[str, Any], done: int, units: int) -> None:
    """A line for every hundredth unit, for logs."""
    if done % 100 == 0 or done == units:
        print(f"{done} of {units} units", flush=True)


if __name__ == "__main__":
    sys.exit(main())
