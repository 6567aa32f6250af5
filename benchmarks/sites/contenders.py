"""The contenders by name. A contender is a function of a task and a seed."""

from benchmarks.sites import averages, bilevel, relabelling, selection, uploads
from benchmarks.sites.results import Contender

ORACLE = "oracle: the good sites"
SIMPLE: dict[str, Contender] = {
    "FedAvg by size": averages.fedavg,
    "FedAvg of the trusted sites": averages.trusted_sites,
    "trusted examples alone": averages.trusted_alone,
    "coordinate median": averages.coordinate_median,
    "geometric median": averages.geometric_median,
    "multi-Krum": averages.multi_krum,
    "FLTrust": averages.fltrust,
    "AFL": averages.afl,
    "q-FFL": averages.qffl,
    "weights by own model's loss": selection.own_loss_weights,
    "best m by own model's loss": selection.best_by_own_loss,
    "leave-one-out weights": selection.leave_one_out,
    "greedy selection": selection.greedy,
    "best m by trusted model's loss": selection.best_by_trusted_model,
    "best m, classes balanced": selection.best_balanced,
    "weights by trusted model's loss": selection.trusted_model_weights,
    "FedCE": uploads.fedce,
    "FedLAW": uploads.fedlaw,
    "forward correction (GLC)": relabelling.forward_correction,
    "label maps by EM": relabelling.label_maps,
    "label posterior by EM": relabelling.label_posterior,
    "label posterior, one setting": relabelling.plain_posterior,
}
"""Everything but the library's own methods."""
BILEVEL: dict[str, Contender] = {
    "site weights by bilevel": bilevel.by_weights,
    "label maps by bilevel": bilevel.by_label_maps,
}
"""The library's own methods."""
BOUNDS: dict[str, Contender] = {ORACLE: averages.oracle}
"""What knows the good sites."""
CONTENDERS = {**SIMPLE, **BILEVEL, **BOUNDS}
QUICK = (
    "FedAvg by size",
    "trusted examples alone",
    "best m by trusted model's loss",
    "label posterior, one setting",
    "site weights by bilevel",
    ORACLE,
)
"""Contenders of the small version."""
