"""The paper's constants, its theorems' ceilings and bounds, and scaling laws.

`docs/paper-notes.md` explains how inconsistencies of the paper are resolved.
"""

from fedbilevel.theory.assumptions import Assumptions, combine_assumptions
from fedbilevel.theory.bounds import Bound, Start, StepCeilings
from fedbilevel.theory.constants import (
    estimator_lipschitz,
    estimator_variance,
    lower_error_factor,
    objective_smoothness,
    series_bias,
)
from fedbilevel.theory.plans import (
    Plan,
    plan_for_accuracy,
    plan_for_steps,
)
from fedbilevel.theory.scaling import (
    LOCAL_BSGM_LAW,
    LOCAL_BSGVRM_LAW,
    ScalingLaw,
)
from fedbilevel.theory.theorem_1 import (
    local_bsgm_bound,
    local_bsgm_ceilings,
)
from fedbilevel.theory.theorem_2 import (
    local_bsgvrm_bound,
    local_bsgvrm_ceilings,
)
from fedbilevel.theory.theorem_3 import (
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
    "combine_assumptions",
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
]
