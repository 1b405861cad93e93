# Every target creates .venv; only Python 3.11 or newer and make are needed.
PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
TORCH := $(shell grep '^torch==' constraints.txt)
# Most modules are never imported: the first import compiles a module, not the installation.
INSTALL := $(BIN)/python -m pip install --quiet --no-compile
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo test check docs bench bench-speed bench-against bench-accuracy bench-exact bench-seams bench-equivariance bench-cost bench-points bench-scale bench-cluster bench-across bench-beside bench-classes bench-counts bench-errors bench-adapt bench-station-days bench-with-points bench-samples bench-sphere bench-values bench-papers clean
.DEFAULT_GOAL := test

demo: $(STAMP)
	$(BIN)/python examples/demo.py

test: $(STAMP)
	OMP_NUM_THREADS=1 $(BIN)/pytest --numprocesses 2 --dist worksteal

check: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# Runs the examples of the gallery that changed; GEONP_GALLERY=False leaves them out.
docs: $(STAMP)
	OMP_NUM_THREADS=1 $(BIN)/python -m sphinx --fail-on-warning --keep-going --quiet docs build/docs

bench: bench-speed bench-accuracy bench-exact bench-seams bench-equivariance bench-cost bench-points bench-scale bench-cluster bench-across bench-adapt

bench-speed: $(STAMP)
	$(BIN)/python benchmarks/speed.py
	$(BIN)/python benchmarks/speed.py --methods --size 1000
	$(BIN)/python benchmarks/floor.py

# REV: the code to compare with
bench-against: $(STAMP)
	$(BIN)/python benchmarks/against.py $(REV)

bench-accuracy: $(STAMP)
	$(BIN)/python benchmarks/accuracy.py

bench-exact: $(STAMP)
	$(BIN)/python benchmarks/exact.py

bench-seams: $(STAMP)
	$(BIN)/python benchmarks/seams.py

bench-equivariance: $(STAMP)
	$(BIN)/python benchmarks/equivariance.py

bench-cost: $(STAMP)
	$(BIN)/python benchmarks/cost.py

bench-points: $(STAMP)
	$(BIN)/python benchmarks/points.py

bench-cluster: $(STAMP)
	$(BIN)/python benchmarks/cluster.py

bench-scale: $(STAMP)
	$(BIN)/python benchmarks/scale.py

bench-across: $(STAMP)
	$(BIN)/python benchmarks/across.py
	$(BIN)/python benchmarks/nearly_empty.py

bench-beside: $(STAMP)
	$(BIN)/python benchmarks/beside.py
	$(BIN)/python benchmarks/beside_points.py --stations
	$(BIN)/python benchmarks/whole_dates.py

bench-classes: $(STAMP)
	$(BIN)/python benchmarks/classes.py
	$(BIN)/python benchmarks/directions.py

bench-station-days: $(STAMP)
	$(BIN)/python benchmarks/station_days.py
	$(BIN)/python benchmarks/networks.py

bench-with-points: $(STAMP)
	$(BIN)/python benchmarks/with_points.py

bench-counts: $(STAMP)
	$(BIN)/python benchmarks/counts.py

bench-errors: $(STAMP)
	$(BIN)/python benchmarks/errors.py

bench-samples: $(STAMP)
	$(BIN)/python benchmarks/samples.py --fields 28
	$(BIN)/python benchmarks/regions.py

bench-values: $(STAMP)
	$(BIN)/python benchmarks/values.py

bench-sphere: $(STAMP)
	$(BIN)/python benchmarks/sphere.py

bench-wide: $(STAMP)
	$(BIN)/python benchmarks/wide.py

bench-adapt: $(STAMP)
	$(BIN)/python benchmarks/adapt.py

# Takes hours to days. Interrupted runs continue; --only-print prints what is finished. The last two need ERA5, and say
# where to get it if it is not there.
bench-papers: $(STAMP)
	for name in gp1d_rbf gp1d_periodic gp1d_matern32 gp2d_rbf images_digits images_photographs images_translated; do \
	    $(BIN)/python benchmarks/papers/gp.py --recipe $$name || exit 1; done
	$(BIN)/python benchmarks/papers/gp.py --steps 20000 --batch-size 8 --models TNP-KR-SA --test-batches 1000 \
	    --out runs/papers/own --set data.shared=false training.optimiser=adamw training.weight_decay=0.01 \
	    training.clip=1.0 training.warmup=50
	for name in gp1d_rbf gp1d_periodic gp1d_matern32; do \
	    $(BIN)/python benchmarks/papers/bayesopt.py --recipe $$name || exit 1; done
	for name in gp1d_matern32 images_digits; do \
	    $(BIN)/python benchmarks/papers/pictures.py --recipe $$name --steps 1000 --batch-size 8 || exit 1; done
	$(BIN)/python benchmarks/papers/shift.py
	$(BIN)/python benchmarks/papers/sir.py --filled 1024
	$(BIN)/python benchmarks/papers/locations.py
	$(BIN)/python benchmarks/papers/kolmogorov.py
	$(BIN)/python benchmarks/papers/scaling.py
	$(BIN)/python benchmarks/papers/era5.py --recipe era5_british_isles
	$(BIN)/python benchmarks/papers/era5.py --recipe era5_british_isles --models 'TE-PT-TNP, kriging head' \
	    --out runs/papers/own --set training.learning_rate=1e-3 training.decay=0.6 training.clip=1.0
	$(BIN)/python benchmarks/papers/era5.py

clean:
	rm -rf $(VENV) demo build dist docs/generated *.egg-info

$(STAMP): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
# takes half as long as the pip of Python 3.11
	$(INSTALL) --upgrade pip
	$(INSTALL) $(TORCH)
	$(INSTALL) --constraint constraints.txt --editable '.[dev,evaluate]'
	touch $@
