"""The consensus error: the drift of devices between two averages."""

import jax

from fedbilevel.engines.round import Round


def consensus_error(finished: Round) -> float:
    """Return 1/K Σ_k ‖x_k − x̄‖² + ‖y_k − ȳ‖², as uploaded in the round's last exchange.

    Raises:
        ValueError: if the devices of the algorithm do not upload x and y.

    Example:
        >>> import numpy as np
        >>> from fedbilevel import Costs, Round, Upload
        >>> from fedbilevel.algorithms.momentum import MomentumUpdate
        >>> from fedbilevel.engines.protocol import Report
        >>> devices, present = np.array([0, 1]), np.array([True, True])
        >>> dispersion = Upload(MomentumUpdate(1.0, 2.0, 0.0, 0.0))
        >>> report = Report(devices, present, (present,), {}, dispersion)
        >>> consensus_error(Round(0, None, (report,), Costs()))
        3.0
    """
    dispersion = finished.reports[-1].dispersion.update
    if not (hasattr(dispersion, "x") and hasattr(dispersion, "y")):
        raise ValueError(
            "The devices of this algorithm do not upload x and y, so there is no "
            "consensus error. Read round.reports[-1].dispersion instead."
        )
    return float(sum(jax.tree.leaves((dispersion.x, dispersion.y))))
