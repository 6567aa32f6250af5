"""Real data sets, as arrays: digits, MNIST, Fashion-MNIST, Adult, 20 newsgroups."""

from fedbilevel.datasets.adult import adult
from fedbilevel.datasets.digits import digits
from fedbilevel.datasets.mnist import fashion_mnist, mnist
from fedbilevel.datasets.newsgroups import newsgroups
from fedbilevel.datasets.table import DataSet, GroupedDataSet, Labelled

__all__ = [
    "DataSet",
    "GroupedDataSet",
    "Labelled",
    "adult",
    "digits",
    "fashion_mnist",
    "mnist",
    "newsgroups",
]
