"""A real federation: one server loop and one client half, over any transport."""

from fedbilevel.engines.federation.answer_count import AnswerCount
from fedbilevel.engines.federation.engine import Federation, NoQuorumError
from fedbilevel.engines.federation.enrolment import EnrolledDevices, Enrolment
from fedbilevel.engines.federation.exchanges import Exchange
from fedbilevel.engines.federation.messages import RefusedError
from fedbilevel.engines.federation.site import Site
from fedbilevel.engines.federation.site_rules import REHEARSAL, SiteRules
from fedbilevel.engines.federation.transport import Reply, Transport

__all__ = [
    "REHEARSAL",
    "AnswerCount",
    "EnrolledDevices",
    "Enrolment",
    "Exchange",
    "Federation",
    "NoQuorumError",
    "RefusedError",
    "Reply",
    "Site",
    "SiteRules",
    "Transport",
]
