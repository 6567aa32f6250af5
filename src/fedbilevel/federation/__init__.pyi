from .answer_count import AnswerCount
from .enrolment import EnrolledDevices, Enrolment
from .exchange_log import Exchange
from .in_process import InProcess
from .server import Federation, NoQuorumError
from .site import Site
from .site_rules import REHEARSAL, SiteRules
from .transport import Reply, Transport
from .wire_format import RefusedError

__all__ = [
    "REHEARSAL",
    "AnswerCount",
    "EnrolledDevices",
    "Enrolment",
    "Exchange",
    "Federation",
    "InProcess",
    "NoQuorumError",
    "RefusedError",
    "Reply",
    "Site",
    "SiteRules",
    "Transport",
]
