"""Codecs: how values become fewer bytes.

A codec is a frozen value that says how, and a `Coder` is one at work on tensors of one layout.
`CODECS` has all of them by name, `codec_of` builds one from plain data.
"""

from fast.parts.codecs.base import Codec, Coder, NonFinite, State, Workspace
from fast.parts.codecs.casts import Bf16, Fp16, ScaledFp16
from fast.parts.codecs.catalogue import CODECS, TRANSFORMATIONS, codec_of
from fast.parts.codecs.chains import chain
from fast.parts.codecs.dgc import Dgc
from fast.parts.codecs.eight_bit import BlockInt8, Int8
from fast.parts.codecs.feedback import ErrorFeedback
from fast.parts.codecs.low_rank import Factored, InRounds
from fast.parts.codecs.qsgd import Qsgd
from fast.parts.codecs.recipes import ef_sign, mxnet_two_bit, one_bit_sgd, power_sgd, strom
from fast.parts.codecs.selections import RandomK, SampledTopK, Threshold, TopK
from fast.parts.codecs.signs import ColumnMeans, ScaledSign, Sign
from fast.parts.codecs.sparse import Pairs, Sparse
from fast.parts.codecs.ternary import TernGrad, TwoBit
from fast.parts.codecs.transformations import Clip, Transformation

__all__ = [
    "CODECS",
    "TRANSFORMATIONS",
    "Bf16",
    "BlockInt8",
    "Clip",
    "Codec",
    "Coder",
    "ColumnMeans",
    "Dgc",
    "ErrorFeedback",
    "Factored",
    "Fp16",
    "InRounds",
    "Int8",
    "NonFinite",
    "Pairs",
    "Qsgd",
    "RandomK",
    "SampledTopK",
    "ScaledFp16",
    "ScaledSign",
    "Sign",
    "Sparse",
    "State",
    "TernGrad",
    "Threshold",
    "TopK",
    "Transformation",
    "TwoBit",
    "Workspace",
    "chain",
    "codec_of",
    "ef_sign",
    "mxnet_two_bit",
    "one_bit_sgd",
    "power_sgd",
    "strom",
]
