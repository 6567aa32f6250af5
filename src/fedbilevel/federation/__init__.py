"""A real federation: one server loop and one client half, over any transport."""

from fedbilevel.federation.answer_count import AnswerCount
from fedbilevel.federation.enrolment import EnrolledDevices, Enrolment
from fedbilevel.federation.exchange_log import Exchange
from fedbilevel.federation.in_process import InProcess
from fedbilevel.federation.server import Federation, NoQuorumError
from fedbilevel.federation.site import Site
from fedbilevel.federation.site_rules import REHEARSAL, SiteRules
from fedbilevel.federation.transport import Reply, Transport
from fedbilevel.federation.wire_format import RefusedError

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
