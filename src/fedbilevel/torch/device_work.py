"""The work of one device of a federation whose problem is one of PyTorch."""

from collections.abc import Callable
from typing import Any

import numpy as np
from jaxtyping import PyTree

from fedbilevel.algorithms.protocol import Downlink, FederatedAlgorithm, Private
from fedbilevel.data.devices import LocalExamples
from fedbilevel.engines.device_work import DeviceResult, loop_steps, run_device
from fedbilevel.engines.protocol import PhaseReference
from fedbilevel.mathematics import arrays
from fedbilevel.mathematics.keys import HostKey
from fedbilevel.mathematics.problem import BilevelProblem
from fedbilevel.torch.conversion import to_arrays, to_tensors
from fedbilevel.torch.devices import TensorDevices


class TensorWork:
    """The device's part of an exchange: arrays of NumPy in and out, tensors between.

    Args:
        problem: problem of `bilevel_problem`.
        algorithm: federated algorithm without transforms.
        examples: examples of the device.

    Example:
        >>> import torch
        >>> from fedbilevel import FedBiO
        >>> from fedbilevel.torch import bilevel_problem
        >>> loss = lambda x, y, batch: torch.mean((y - x * batch) ** 2)
        >>> held = LocalExamples(np.ones(4, np.float32), np.ones(6, np.float32))
        >>> algorithm = FedBiO(0.1)
        >>> work = TensorWork(bilevel_problem(loss, loss), algorithm, held)
        >>> one = np.float32(1.0)
        >>> server, private = algorithm.init(work.problem, one, one)
        >>> reference, key = PhaseReference(False, 0), HostKey.of(0)
        >>> downlink = reference.of(algorithm, work.problem).broadcast(server)
        >>> type(work.compute(reference, downlink, private, key).upload.update[1])
        <class 'numpy.ndarray'>
    """

    def __init__(
        self,
        problem: BilevelProblem,
        algorithm: FederatedAlgorithm,
        examples: LocalExamples,
    ) -> None:
        self.problem, self._algorithm = problem, algorithm
        # In the widths of JAX's settings, as x, y and the checks of a site.
        self._devices = TensorDevices([to_tensors(to_arrays(examples))])

    def compute(
        self,
        reference: PhaseReference,
        downlink: Downlink,
        private: Private,
        key: HostKey,
        add_terms: Callable[[Any], Any] = lambda data: data,
    ) -> DeviceResult:
        """Return upload, state and metrics of the device after an exchange.

        Args:
            reference: phase of the algorithm.
            downlink: message from the server.
            private: private state of the device.
            key: random key of the device in this exchange.
            add_terms: function that adds the number of the device and the factors of
                its losses to its data, if they depend on them.
        """
        host_key: Any = key
        result = run_device(
            reference.of(self._algorithm, self.problem),
            _tensors(downlink),
            _tensors(private),
            add_terms(self._devices.cohort(np.array(0))),
            host_key,
            repeat=loop_steps,
        )
        return DeviceResult(*map(to_arrays, result))


def _tensors(values: PyTree) -> PyTree:
    """Return messages as tensors, whose integers keep their width."""
    return arrays.canonical(to_tensors(values, widen=False))
