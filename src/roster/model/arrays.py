"""Types of the numpy arrays that the pure rooms exchange."""

from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

Int32: TypeAlias = npt.NDArray[np.int32]
Int64: TypeAlias = npt.NDArray[np.int64]
UInt64: TypeAlias = npt.NDArray[np.uint64]
Float64: TypeAlias = npt.NDArray[np.float64]
Bool: TypeAlias = npt.NDArray[np.bool_]
UInt8: TypeAlias = npt.NDArray[np.uint8]
Array: TypeAlias = npt.NDArray[Any]
"""An array of any type."""
