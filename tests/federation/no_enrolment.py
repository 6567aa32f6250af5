"""The base of test transports whose sites are enrolled by the test."""

from collections.abc import Callable, Iterator, Sequence

from fedbilevel.federation import Reply


class NoEnrolment:
    """A transport without enrolment."""

    def enrol(self, names: Sequence[str], left: Callable[[], float]) -> Iterator[Reply]:
        raise AssertionError("sites were enrolled by hand")
