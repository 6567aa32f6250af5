"""How far devices drift apart between two averages."""

import jax

from fedbilevel.engines.round import Round


def consensus_error(finished: Round) -> float:
    """Return 1/K Σ_k ‖x_k − x̄‖² + ‖y_k − ȳ‖², as uploaded in the round's last exchange.

    Raises:
        ValueError: if the algorithm's devices upload no x and y.

    Example:
        >>> import numpy as np
        >>> from fedbilevel import Costs, Round, Upload
        >>> from fedbilevel.algorithms.momentum import MomentumUpdate
        >>> from fedbilevel.engines.protocol import Report
        >>> both, yes = np.array([0, 1]), np.array([True, True])
        >>> dispersion = Upload(MomentumUpdate(1.0, 2.0, 0.0, 0.0))
        >>> report = Report(both, yes, (yes,), {}, dispersion)
        >>> consensus_error(Round(0, None, (report,), Costs()))
        3.0
    """
    dispersion = finished.reports[-1].dispersion.update
    if not (hasattr(dispersion, "x") and hasattr(dispersion, "y")):
        raise ValueError(
            "the consensus error needs devices that upload x and y, which this "
            "algorithm's do not; read round.reports[-1].dispersion instead."
        )
    return float(sum(jax.tree.leaves((dispersion.x, dispersion.y))))
