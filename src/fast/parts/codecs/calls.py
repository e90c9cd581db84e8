"""`fast.codecs`: every codec by the name that the command line, the wire and the papers use.

This is the one list of them: `CODECS` is made from it. Classes for writing one's own are in
`fast.parts.codecs`.
"""

from fast.parts.codecs.base import Codec
from fast.parts.codecs.casts import Bf16, Fp16, ScaledFp16
from fast.parts.codecs.chains import chain
from fast.parts.codecs.dgc import Dgc
from fast.parts.codecs.eight_bit import BlockInt8, Int8
from fast.parts.codecs.feedback import ErrorFeedback
from fast.parts.codecs.low_rank import Factored
from fast.parts.codecs.qsgd import Qsgd
from fast.parts.codecs.recipes import ef_sign, mxnet_two_bit, one_bit_sgd, power_sgd, strom
from fast.parts.codecs.selections import RandomK, SampledTopK, Threshold, TopK
from fast.parts.codecs.signs import ColumnMeans, ScaledSign, Sign
from fast.parts.codecs.ternary import TernGrad, TwoBit
from fast.parts.codecs.transformations import Clip

fp16, bf16, scaled_fp16 = Fp16, Bf16, ScaledFp16
int8, block_int8, qsgd = Int8, BlockInt8, Qsgd
terngrad, two_bit = TernGrad, TwoBit
sign, scaled_sign, column_means = Sign, ScaledSign, ColumnMeans
top_k, sampled_top_k, random_k, threshold = TopK, SampledTopK, RandomK, Threshold
dgc, low_rank = Dgc, Factored
error_feedback, clip = ErrorFeedback, Clip

__all__ = [
    "Codec",
    "bf16",
    "block_int8",
    "chain",
    "clip",
    "column_means",
    "dgc",
    "ef_sign",
    "error_feedback",
    "fp16",
    "int8",
    "low_rank",
    "mxnet_two_bit",
    "one_bit_sgd",
    "power_sgd",
    "qsgd",
    "random_k",
    "sampled_top_k",
    "scaled_fp16",
    "scaled_sign",
    "sign",
    "strom",
    "terngrad",
    "threshold",
    "top_k",
    "two_bit",
]
