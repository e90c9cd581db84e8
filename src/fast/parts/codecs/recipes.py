"""Codecs under the names of their papers: functions that put parts together."""

from __future__ import annotations

from fast.parts.codecs.base import Codec
from fast.parts.codecs.feedback import ErrorFeedback
from fast.parts.codecs.low_rank import Factored
from fast.parts.codecs.selections import Threshold
from fast.parts.codecs.signs import ColumnMeans, ScaledSign
from fast.parts.codecs.ternary import TwoBit


def one_bit_sgd() -> Codec:
    """A bit per value and two means per row, with error feedback: Seide et al., "1-Bit Stochastic
    Gradient Descent", Interspeech 2014."""
    return ErrorFeedback(ColumnMeans())


def ef_sign() -> Codec:
    """Signs times the mean magnitude of each parameter, with error feedback: Karimireddy et al., "Error
    Feedback Fixes SignSGD and other Gradient Compression Schemes", ICML 2019."""
    return ErrorFeedback(ScaledSign())


def mxnet_two_bit(threshold: float = 0.5) -> Codec:
    """Plus or minus a threshold, or nothing, in two bits, with error feedback: as MXNet does."""
    return ErrorFeedback(TwoBit(threshold))


def strom(threshold: float) -> Codec:
    """Only what has grown beyond a threshold, with error feedback: Strom, "Scalable Distributed DNN
    Training Using Commodity GPU Cloud Computing", Interspeech 2015."""
    return ErrorFeedback(Threshold(threshold))


def power_sgd(r: int = 2) -> Codec:
    """Two thin factors of each matrix, with error feedback: Vogels et al., "PowerSGD: Practical Low-Rank
    Gradient Compression for Distributed Optimization", NeurIPS 2019."""
    return ErrorFeedback(Factored(r))
