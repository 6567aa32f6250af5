"""Problems of PyTorch: two losses of tensors, on the same algorithms.

`bilevel_problem` states a problem, `SplitModule` takes x and y from a module,
`TensorDevices` has the data, and the engine `TensorSimulation` runs any algorithm of
the package on it. JAX compiles nothing.
"""

from fedbilevel.torch.devices import OnDemandTensors, TensorDevices
from fedbilevel.torch.modules import SplitModule
from fedbilevel.torch.oracles import bilevel_problem
from fedbilevel.torch.simulation import TensorSimulation

__all__ = [
    "OnDemandTensors",
    "SplitModule",
    "TensorDevices",
    "TensorSimulation",
    "bilevel_problem",
]
