"""Arrays of NumPy and JAX as tensors, and tensors as arrays of NumPy."""

from typing import Any

import jax
import ml_dtypes
import numpy as np
import torch
from jaxtyping import PyTree
from torch import Tensor

from fedbilevel.mathematics import arrays

BFLOAT16 = np.dtype(ml_dtypes.bfloat16)


def to_tensors(values: PyTree, widen: bool = True) -> PyTree:
    """Return a tree of arrays as tensors that share memory with them where they can.

    Integers of 32 bits become integers of 64 bits: those are what PyTorch takes as
    labels and indices, and JAX narrows them by default.

    Args:
        values: tree of arrays, numbers or tensors; tensors lose their graph.
        widen: whether integers become wider.

    Example:
        >>> to_tensors({"label": np.zeros(2, np.int32), "rate": 0.5})
        {'label': tensor([0, 0]), 'rate': tensor(0.5000)}
    """
    return jax.tree.map(lambda leaf: _to_tensor(leaf, widen), values)


def to_arrays(values: PyTree) -> PyTree:
    """Return a tree of tensors as arrays of NumPy, in the widths of JAX's settings.

    Example:
        >>> to_arrays({"steps": torch.tensor(3), "x": torch.ones(2)})
        {'steps': array(3, dtype=int32), 'x': array([1., 1.], dtype=float32)}
    """
    return jax.tree.map(_to_array, values)


def _to_tensor(leaf: Any, widen: bool) -> Tensor:
    if isinstance(leaf, Tensor):
        return leaf.detach()
    if isinstance(leaf, bool | int | float):
        tensor: Tensor = arrays.canonical(leaf)
        return tensor
    array = np.asarray(leaf)
    if array.dtype == BFLOAT16:
        return torch.from_numpy(array.view(np.uint16).copy()).view(torch.bfloat16)
    if widen and array.dtype == np.int32:
        array = array.astype(np.int64)
    # PyTorch warns of arrays that it could change, such as those of JAX.
    array = array if array.flags.writeable else array.copy()
    return torch.from_numpy(np.ascontiguousarray(array)).reshape(array.shape)


def _to_array(leaf: Any) -> np.ndarray:
    array = np.asarray(arrays.on_host(leaf))
    return array.astype(jax.dtypes.canonicalize_dtype(array.dtype), copy=False)
