from . import nn as nn
from . import training as training
from .accessor import GeonpAccessor as GeonpAccessor
from .adaptation.adapt import adapt as adapt
from .errors import CheckpointError as CheckpointError
from .errors import ClusterError as ClusterError
from .errors import FetchError as FetchError
from .errors import GeonpError as GeonpError
from .errors import InputError as InputError
from .errors import MissingExtraError as MissingExtraError
from .errors import MissingFileError as MissingFileError
from .errors import ModelError as ModelError
from .errors import OutputError as OutputError
from .errors import PredictionError as PredictionError
from .errors import RecipeError as RecipeError
from .evaluation.compare import evaluate as evaluate
from .fill.infill import infill as infill
from .fill.outputs import values_only as values_only
from .fill.picture import plot as plot
from .fill.plan import plan as plan
from .fill.store import fill_store as fill_store
from .inference import student as student
from .io.files import open_raster as open_raster
from .io.output import write_raster as write_raster
from .scattered.interpolate import interpolate as interpolate
from .scattered.lattices import lattice as lattice

__version__: str
