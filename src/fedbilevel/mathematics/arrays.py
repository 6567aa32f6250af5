"""The array library of a tree's leaves: JAX, NumPy or PyTorch.

Algorithms are written once. They call functions of the array API standard on the
library that `namespace` returns, and `array-api-compat` gives PyTorch that interface.
PyTorch is never imported here: a tree of tensors exists only if it has been.
"""

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
from jaxtyping import PyTree

if TYPE_CHECKING:
    from jax import Array as Array
else:
    Array = Any
"""An array of any library, for type checkers one of JAX: it has the same operators."""


def is_tensor(value: Any) -> bool:
    """Return whether a value is a tensor of PyTorch.

    Example:
        >>> is_tensor(np.ones(2))
        False
    """
    torch = sys.modules.get("torch")
    return isinstance(value, getattr(torch, "Tensor", ()))


def has_tensors(values: PyTree) -> bool:
    """Return whether a tree has a tensor of PyTorch.

    Example:
        >>> has_tensors({"a": 1.0})
        False
    """
    return "torch" in sys.modules and any(map(is_tensor, jax.tree.leaves(values)))


def namespace(*trees: PyTree) -> Any:
    """Return the array library of the leaves; JAX's without tensors.

    Example:
        >>> namespace({"a": np.ones(2)}, 1.0).__name__
        'jax.numpy'
    """
    if has_tensors(trees):
        import array_api_compat.torch

        return array_api_compat.torch
    return jnp


def _dispatched(name: str) -> Callable[..., Array]:
    def function(*arguments: Any, **settings: Any) -> Any:
        return getattr(namespace(arguments), name)(*arguments, **settings)

    function.__name__ = name
    return function


absolute = _dispatched("abs")
clip = _dispatched("clip")
cos = _dispatched("cos")
exp = _dispatched("exp")
expm1 = _dispatched("expm1")
isfinite = _dispatched("isfinite")
log = _dispatched("log")
log1p = _dispatched("log1p")
maximum = _dispatched("maximum")
mean = _dispatched("mean")
minimum = _dispatched("minimum")
sqrt = _dispatched("sqrt")
stack = _dispatched("stack")
total = _dispatched("sum")


def where(condition: Any, first: Any, second: Any) -> Array:
    """Return the first value where a condition holds, and the second elsewhere.

    Example:
        >>> float(where(jnp.array(True), 0.5, 2.0))
        0.5
    """
    xp = namespace(condition, first, second)
    if xp is not jnp and isinstance(first, float) and isinstance(second, float):
        # PyTorch would give two numbers single precision.
        first = xp.asarray(first, dtype=_floats(), device=condition.device)
    result: Array = xp.where(condition, first, second)
    return result


def sign(value: Any) -> Array:
    """Return the signs of numbers; NaN stays.

    Example:
        >>> float(sign(jnp.array(-2.0)))
        -1.0
    """
    if is_tensor(value):  # `array-api-compat` writes in place, which `vmap` refuses.
        return where(value == value, value.sign(), value)
    return jnp.sign(value)


def select(condition: Any, first: PyTree, second: PyTree) -> PyTree:
    """Return the first tree where a condition holds, in the dtypes of the second.

    Example:
        >>> select(jnp.array(True), (np.float32(1.0),), (jnp.ones((), jnp.float16),))
        (Array(1., dtype=float16),)
    """

    def choose(a: Any, b: Any) -> Any:
        if is_tensor(b):
            return where(condition, cast(a, b), b)
        return jnp.where(condition, jnp.asarray(a, jnp.result_type(b)), b)

    return jax.tree.map(choose, first, second)


def all_finite(values: PyTree) -> Array:
    """Return whether all floating-point numbers of a tree with an array are finite.

    Example:
        >>> bool(all_finite({"a": jnp.ones(2), "b": jnp.array(jnp.nan)}))
        False
    """
    leaves = jax.tree.leaves(values)
    if any(map(is_tensor, leaves)):
        checks = [leaf.isfinite().all() for leaf in leaves if leaf.is_floating_point()]
        return stack(checks).all() if checks else constant(True, like=leaves)
    floating = [
        leaf
        for leaf in map(jnp.asarray, leaves)
        if jnp.issubdtype(leaf.dtype, jnp.inexact)
    ]
    finite = [jnp.isfinite(leaf).all() for leaf in floating]
    return jnp.stack([jnp.asarray(True), *finite]).all()


def constant(value: bool | int, like: PyTree) -> Array:
    """Return a boolean or an integer as an array of the same library.

    Example:
        >>> constant(True, like=jnp.ones(3)).dtype
        dtype('bool')
    """
    tensors = [leaf for leaf in jax.tree.leaves(like) if is_tensor(leaf)]
    if not tensors:
        return jnp.asarray(value)
    dtype = None if isinstance(value, bool) else _integers()
    xp, device = namespace(tensors), tensors[0].device
    tensor: Array = xp.asarray(value, dtype=dtype, device=device)
    return tensor


def cast(value: Any, like: Any) -> Any:
    """Return a number or an array in the dtype of another array.

    Python numbers adapt to every dtype, and stay as they are.

    Example:
        >>> cast(np.float64(0.5), like=jnp.ones(1, jnp.float16)).dtype
        dtype('float16')
    """
    if is_tensor(value):
        return value.to(like.dtype)
    if isinstance(value, np.generic | jax.Array) and is_tensor(like):
        return value.item()  # A schedule of optax returns an array of JAX.
    if isinstance(value, jax.Array | np.generic):
        return value.astype(like.dtype)
    return value


def plus(array: Any, factor: float, other: Any) -> Any:
    """Return `array + factor * other`, for tensors in one operation.

    Example:
        >>> float(plus(jnp.ones(()), 2.0, jnp.ones(())))
        3.0
    """
    if is_tensor(array):
        return array.add(other, alpha=factor)
    return array + factor * other


def from_numpy(values: np.ndarray, like: Any) -> Any:
    """Return numbers of NumPy as a tensor with the dtype and device of another.

    Example:
        >>> import torch
        >>> from_numpy(np.ones(2), like=torch.zeros(3, dtype=torch.float16)).dtype
        torch.float16
    """
    torch = sys.modules["torch"]
    return torch.from_numpy(values).to(like.device, like.dtype)


def number(value: Any, like: PyTree) -> Array:
    """Return a scalar of JAX's default precision, or a tensor on the device of others.

    Example:
        >>> number(2, like=jnp.ones(3)).dtype
        dtype('float32')
    """
    xp = namespace(value, like)
    if xp is jnp:
        return jnp.asarray(value, float)
    tensors = list(filter(is_tensor, jax.tree.leaves((like, value))))
    # A count beside numbers has their precision.
    leaf = next((leaf for leaf in tensors if leaf.is_floating_point()), tensors[0])
    tensor: Array = xp.asarray(value, dtype=_wide(leaf.dtype), device=leaf.device)
    return tensor


def wide(leaf: Any) -> Any:
    """Return an array in JAX's default precision, or a tensor in single at least.

    Example:
        >>> wide(jnp.ones(2, jnp.bfloat16)).dtype
        dtype('float32')
    """
    return at_least_single(leaf) if is_tensor(leaf) else leaf.astype(float)


def at_least_single(leaf: Any) -> Any:
    """Return an array in single precision or higher.

    Example:
        >>> at_least_single(jnp.ones(2, jnp.bfloat16)).dtype
        dtype('float32')
    """
    if is_tensor(leaf):
        return leaf.to(_wide(leaf.dtype))
    return jnp.asarray(leaf, np.promote_types(jnp.result_type(leaf), np.float32))


def on_host(value: Any) -> Any:
    """Return a tensor as an array of NumPy; other values unchanged.

    Example:
        >>> import torch
        >>> on_host(torch.ones(2, dtype=torch.bfloat16)).dtype
        dtype(bfloat16)
    """
    if not is_tensor(value):
        return value
    torch = sys.modules["torch"]
    value = value.detach().cpu()
    if value.dtype == torch.bfloat16:
        return value.view(torch.uint16).numpy().view(ml_dtypes.bfloat16)
    return value.numpy()


def in_double(values: PyTree) -> PyTree:
    """Return a tree as arrays of JAX in double precision, within `jax.enable_x64`.

    Example:
        >>> with jax.enable_x64(True):
        ...     in_double(np.ones(2, np.float32)).dtype
        dtype('float64')
    """
    return jax.tree.map(lambda leaf: jnp.asarray(on_host(leaf), jnp.float64), values)


def restore(values: np.ndarray, like: Any) -> Any:
    """Return an array of NumPy as one of JAX, or as a tensor if `like` is one.

    Example:
        >>> import torch
        >>> restore(np.ones(2), like=torch.zeros(2, dtype=torch.float64))
        tensor([1., 1.], dtype=torch.float64)
    """
    if not is_tensor(like):
        return jnp.asarray(values)
    torch = sys.modules["torch"]
    if values.dtype == ml_dtypes.bfloat16:
        bits = torch.from_numpy(values.view(np.uint16).copy())
        return bits.view(torch.bfloat16).to(like.device)
    # PyTorch warns of memory that it may not change.
    return torch.from_numpy(values.copy()).to(like.device)


def canonical(values: PyTree) -> PyTree:
    """Return a tree of tensors and numbers as tensors, without gradients.

    Numbers get the widths that JAX gives them.

    Example:
        >>> import torch
        >>> canonical((torch.ones(1, requires_grad=True), 3))
        (tensor([1.]), tensor(3, dtype=torch.int32))
    """
    torch = sys.modules["torch"]

    def tensor(leaf: Any) -> Any:
        dtype = None
        if isinstance(leaf, float):
            dtype = _floats()
        elif isinstance(leaf, int) and not isinstance(leaf, bool):
            dtype = _integers()
        return torch.as_tensor(leaf, dtype=dtype).detach()

    return jax.tree.map(tensor, values)


def _integers() -> Any:
    """Return PyTorch's integers with the width of JAX's."""
    return getattr(sys.modules["torch"], jax.dtypes.canonicalize_dtype(np.int64).name)


def _floats() -> Any:
    """Return PyTorch's floating-point numbers with the width of JAX's."""
    return getattr(sys.modules["torch"], jax.dtypes.canonicalize_dtype(np.float64).name)


def _wide(dtype: Any) -> Any:
    torch = sys.modules["torch"]
    if not dtype.is_floating_point:
        return _floats()
    return torch.promote_types(dtype, torch.float32)
