"""Real data sets as arrays: five by name, and any Hugging Face data set by its path."""

from fedbilevel.datasets.adult import adult
from fedbilevel.datasets.digits import digits
from fedbilevel.datasets.hub import hub
from fedbilevel.datasets.mnist import fashion_mnist, mnist
from fedbilevel.datasets.newsgroups import newsgroups
from fedbilevel.datasets.table import DataSet, GroupedDataSet, LabelledData

__all__ = [
    "DataSet",
    "GroupedDataSet",
    "LabelledData",
    "adult",
    "digits",
    "fashion_mnist",
    "hub",
    "mnist",
    "newsgroups",
]
