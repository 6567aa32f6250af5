"""Problems of PyTorch: two losses of tensors, on the same algorithms.

`bilevel_problem` states a problem, `TensorDevices` has its data, and the engine
`TensorSimulation` runs any algorithm of the package on it. JAX compiles nothing.
"""

from fedbilevel.torch.devices import TensorDevices
from fedbilevel.torch.oracles import bilevel_problem
from fedbilevel.torch.simulation import TensorSimulation

__all__ = ["TensorDevices", "TensorSimulation", "bilevel_problem"]
