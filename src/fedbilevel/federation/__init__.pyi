from .computation import Computation, EnrolmentMessage
from .enrolment import EnrolledDevices, Enrolment
from .epsilon_account import SiteEpsilon
from .exchange_counter import ExchangeCounter
from .exchange_log import Exchange
from .in_process import InProcess
from .secure_sums.identity import Identity, load_kit, load_root
from .secure_sums.server import SecureSumError
from .server import Federation, NoQuorumError
from .server_enrolment import EnrolmentResult, EnrolmentTerms, enrol
from .site import Site
from .site_rules import REHEARSAL, SiteRules
from .transport import Failure, FailureCause, RefusedError, Reply, Transport

__all__ = [
    "REHEARSAL",
    "Computation",
    "EnrolledDevices",
    "Enrolment",
    "EnrolmentMessage",
    "EnrolmentResult",
    "EnrolmentTerms",
    "Exchange",
    "ExchangeCounter",
    "Failure",
    "FailureCause",
    "Federation",
    "Identity",
    "InProcess",
    "NoQuorumError",
    "RefusedError",
    "Reply",
    "SecureSumError",
    "Site",
    "SiteEpsilon",
    "SiteRules",
    "Transport",
    "enrol",
    "load_kit",
    "load_root",
]
