from .enrolment import EnrolledDevices, Enrolment
from .exchange_counter import ExchangeCounter
from .exchange_log import Exchange
from .in_process import InProcess
from .server import Federation, NoQuorumError
from .server_enrolment import EnrolmentResult, enrol
from .site import Site
from .site_rules import REHEARSAL, SiteRules
from .transport import Failure, FailureCause, RefusedError, Reply, Transport

__all__ = [
    "REHEARSAL",
    "EnrolledDevices",
    "Enrolment",
    "EnrolmentResult",
    "Exchange",
    "ExchangeCounter",
    "Failure",
    "FailureCause",
    "Federation",
    "InProcess",
    "NoQuorumError",
    "RefusedError",
    "Reply",
    "Site",
    "SiteRules",
    "Transport",
    "enrol",
]
