#!/usr/bin/env bash
# Runs the tests with the oldest or the newest versions that pyproject.toml allows, in an environment under build/.
# Needs uv. Usage: packaging/test_versions.sh oldest|newest PYTHON [ARGUMENTS OF PYTEST]
set -euo pipefail
cd "$(dirname "$0")/.."
end=$1 python=$2
shift 2
env=build/$end-$python
uv venv --quiet --clear --python "$python" "$env"
if [ "$end" = oldest ]; then
    extras=$(printf -- '--extra %s ' distributed era5 evaluate gp grib icechunk images kerchunk parquet plot s3 stac train vector)
    # shellcheck disable=SC2086
    uv pip compile --quiet --resolution lowest-direct --python-version "$python" $extras pyproject.toml -o "$env/oldest.txt"
    uv pip install --quiet --python "$env" -r "$env/oldest.txt" dask-jobqueue flask-cors geopandas hypothesis 'moto[s3]' pytest pytest-xdist scoringrules setuptools
    uv pip install --quiet --python "$env" --no-deps --editable .
    # old versions warn of what has changed in their own dependencies
    set -- -W default -W ignore::DeprecationWarning -W ignore::PendingDeprecationWarning -W ignore::FutureWarning "$@"
else
    uv pip install --quiet --python "$env" --editable '.[dev,evaluate]'
fi
OMP_NUM_THREADS=1 exec "$env/bin/pytest" -p no:cacheprovider "$@"
