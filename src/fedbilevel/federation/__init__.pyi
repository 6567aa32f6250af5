from .answer_count import AnswerCount
from .enrolling import Enrolled, enrol
from .enrolment import EnrolledDevices, Enrolment
from .exchange_log import Exchange
from .in_process import InProcess
from .server import Federation, NoQuorumError
from .site import Site
from .site_rules import REHEARSAL, SiteRules
from .transport import Cause, Failure, RefusedError, Reply, Transport

__all__ = [
    "REHEARSAL",
    "AnswerCount",
    "Cause",
    "Enrolled",
    "EnrolledDevices",
    "Enrolment",
    "Exchange",
    "Failure",
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
