"""Real data sets as arrays: by name, from a table, and from the Hugging Face hub."""

from fedbilevel.datasets.adult import adult
from fedbilevel.datasets.digits import digits
from fedbilevel.datasets.fars import fars
from fedbilevel.datasets.flights import flights
from fedbilevel.datasets.hub import hub
from fedbilevel.datasets.mnist import fashion_mnist, mnist
from fedbilevel.datasets.newsgroups import newsgroups
from fedbilevel.datasets.r_sets import (
    azpro,
    contraception,
    covid_testing,
    hsb82,
    mpls_stops,
)
from fedbilevel.datasets.table import DataSet, GroupedDataSet, LabelledData
from fedbilevel.datasets.tabular import tabular

__all__ = [
    "DataSet",
    "GroupedDataSet",
    "LabelledData",
    "adult",
    "azpro",
    "contraception",
    "covid_testing",
    "digits",
    "fars",
    "fashion_mnist",
    "flights",
    "hsb82",
    "hub",
    "mnist",
    "mpls_stops",
    "newsgroups",
    "tabular",
]
