from .assumptions import Assumptions, combine_assumptions
from .bounds import Bound, Start, StepCeilings
from .constants import (
    estimator_lipschitz,
    estimator_variance,
    lower_error_factor,
    objective_smoothness,
    series_bias,
)
from .plans import (
    Plan,
    plan_for_accuracy,
    plan_for_steps,
)
from .scaling import (
    LOCAL_BSGM_LAW,
    LOCAL_BSGVRM_LAW,
    ScalingLaw,
)
from .theorem_1 import (
    local_bsgm_bound,
    local_bsgm_ceilings,
)
from .theorem_2 import (
    local_bsgvrm_bound,
    local_bsgvrm_ceilings,
)
from .theorem_3 import (
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
