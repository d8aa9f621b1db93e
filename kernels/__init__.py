"""The operations of Memory Mosaics: `memory_attention`, `key_scan` and `value_extract`.

Each has several implementations behind one function: a float64 reference, a native one in torch operations, and
(where available) Triton kernels. Importing this package needs only torch and registers the operators, nothing
else; FLOP formulas are registered by `register_flop_formulas`.
"""

from .flops import key_scan_flops, memory_attention_flops, register_flop_formulas
from .key_scan import key_scan
from .memory_attention import memory_attention
from .value_extract import value_extract

__all__ = [
    "key_scan",
    "key_scan_flops",
    "memory_attention",
    "memory_attention_flops",
    "register_flop_formulas",
    "value_extract",
]
