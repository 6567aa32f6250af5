"""The sources of all data sets that are read from files."""

from fedbilevel.datasets.adult import ADULT
from fedbilevel.datasets.fars import FARS
from fedbilevel.datasets.flights import FLIGHTS
from fedbilevel.datasets.mnist import FASHION_MNIST, MNIST
from fedbilevel.datasets.newsgroups import NEWSGROUPS
from fedbilevel.datasets.r_sets import (
    AZPRO,
    CONTRACEPTION,
    COVID_TESTING,
    HSB82,
    MPLS_STOPS,
)

R_SOURCES = (AZPRO, HSB82, MPLS_STOPS, CONTRACEPTION, COVID_TESTING)
SOURCES = (MNIST, FASHION_MNIST, ADULT, NEWSGROUPS, FARS, FLIGHTS, *R_SOURCES)
