"""Types of NumPy arrays, as signatures name them."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
BoolArray = npt.NDArray[np.bool_]
IntArray = npt.NDArray[np.intp]
AnyIntArray = npt.NDArray[np.integer]
FloatArray = npt.NDArray[np.floating]
StructArray = npt.NDArray[np.void]
Float32Array = npt.NDArray[np.float32]
Float64Array = npt.NDArray[np.float64]
