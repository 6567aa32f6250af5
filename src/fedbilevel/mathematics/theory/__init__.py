"""The paper's constants, its theorems' ceilings and bounds, and how settings scale.

Where the paper's print is inconsistent, `docs/paper-notes.md` says how it is read.
"""

from fedbilevel.mathematics.theory.assumptions import Assumptions, weakest
from fedbilevel.mathematics.theory.bounds import Bound, Start, StepCeilings
from fedbilevel.mathematics.theory.constants import (
    estimator_lipschitz,
    estimator_variance,
    lower_error_factor,
    objective_smoothness,
    series_bias,
)
from fedbilevel.mathematics.theory.plans import (
    Plan,
    plan_for_accuracy,
    plan_for_steps,
)
from fedbilevel.mathematics.theory.scaling import (
    LOCAL_BSGM_LAW,
    LOCAL_BSGVRM_LAW,
    ScalingLaw,
)
from fedbilevel.mathematics.theory.theorem_1 import (
    local_bsgm_bound,
    local_bsgm_ceilings,
)
from fedbilevel.mathematics.theory.theorem_2 import (
    local_bsgvrm_bound,
    local_bsgvrm_ceilings,
)
from fedbilevel.mathematics.theory.theorem_3 import (
    DecayingSteps,
    local_bsgvrm_decay,
    local_bsgvrm_decay_bound,
)

__all__ = [
    "LOCAL_BSGM_LAW",
    "LOCAL_BSGVRM_LAW",
    "Assumptions",
    "Bound",
    "DecayingSteps",
    "Plan",
    "ScalingLaw",
    "Start",
    "StepCeilings",
    "estimator_lipschitz",
    "estimator_variance",
    "local_bsgm_bound",
    "local_bsgm_ceilings",
    "local_bsgvrm_bound",
    "local_bsgvrm_ceilings",
    "local_bsgvrm_decay",
    "local_bsgvrm_decay_bound",
    "lower_error_factor",
    "objective_smoothness",
    "plan_for_accuracy",
    "plan_for_steps",
    "series_bias",
    "weakest",
]
