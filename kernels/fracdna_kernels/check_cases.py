"""Small inputs with awkward sizes, on which every operator is held against its reference form.

B batch   T length   H heads   V value width   M modes   D channels   W filter width, S = W - 1
N sequences   G channels of a group   O outputs   K key width   R rank   C = R K   P = K / 4 pairs
E mixtures
"""

import math
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

SIZES = {
    "B": 1, "T": 70, "H": 2, "V": 16, "M": 8, "D": 24, "W": 4, "S": 3, "N": 1, "G": 8, "O": 12,
    "K": 16, "R": 1, "C": 16, "P": 4, "E": 3,
}  # fmt: skip
JUMP = 1e4
SLOWEST = 2.0**17


@dataclass(frozen=True)
class Case:
    """One call of an operator.

    Attributes:
        name: in words.
        sizes: of axes, where they differ from SIZES.
        axes: of tensors beside those that the operator cannot do without, or instead of them.
        options: keyword arguments that are no tensors; what is None here gets no tensor.
        bounds: of packed sequences.
        jumps: the clock advances by JUMP and more now and then.
        gradients: whether they are looked at too.
        compiled: too large for the interpreter.
    """

    name: str
    sizes: dict[str, int] = field(default_factory=dict)
    axes: dict[str, str] = field(default_factory=dict)
    options: dict[str, Any] = field(default_factory=dict)
    bounds: tuple[int, ...] | None = None
    jumps: bool = False
    gradients: bool = True
    compiled: bool = False


@dataclass(frozen=True)
class Operator:
    """What an operator takes and gives.

    Attributes:
        inputs: axes of the tensors that it cannot do without.
        outputs: their names.
        cases: the first one is the quick one.
        exact: inputs that stay in float32 beside tensors in bfloat16.
    """

    inputs: dict[str, str]
    outputs: tuple[str, ...]
    cases: tuple[Case, ...]
    exact: frozenset[str] = frozenset({"weight", "bias", "skip_factor", "initial_state", "log_tau"})


_PAIR = {"B": 2, "N": 2}
_ALONE = {"T": 1} | _PAIR
_PACKED = {"N": 4}
_BOUNDS = (0, 1, 1, 64, 68)  # a single position, nothing, two chunks, less than a tile; 2 spare
_SCAN_STATE = {"initial_state": "NHMV"}
_FILTER_STATE = {"initial_state": "NDS"}
_KEY_STATE = {"initial_state": "NHKV"}
_KEY_DECAY = {"g": "BTHK"}
_UNIT_KEYS = {"l2norm": True}  # longer ones make the memory grow
_HEADS = {"H": 8, "V": 64, "D": 512}
_MIXED_RANKS = {"gate_mix": "HRV", "output_mix": "HRV"}
_TURNED = {"B": 2, "T": 1000, "H": 8, "K": 128, "C": 128, "P": 32}
_MIXED_VALUES = {"first_values": "BTD", "share_logits": "BTD"}
_SKIP = {"skip_values": "BTD", "skip_factor": "D"}

OPERATORS = {
    "add_rms_norm": Operator(
        {"x": "BTD", "residual": "BTD", "weight": "D"},
        ("normed", "stream"),
        (
            Case("70 positions"),
            Case("1 position", _ALONE),
            Case("nothing to add, 70 channels", {"T": 63, "D": 70}, options={"residual": None}),
            Case("256 channels", _PAIR | {"D": 256}, compiled=True),
            Case("2048 channels", _PAIR | {"D": 2048}, compiled=True),
        ),
    ),
    "decay_attention": Operator(
        {"q": "BTHK", "k": "BTHK", "v": "BTHV", "g": "BTH"},
        ("output", "final_state"),
        (
            Case("70 positions"),
            Case("1 position", _ALONE, _KEY_STATE),
            Case(
                "decays jump", {"T": 63, "K": 24, "V": 40}, _KEY_STATE, {"scale": 0.5}, jumps=True
            ),
            Case("decays of keys jump", {"T": 63, "K": 24}, _KEY_STATE | _KEY_DECAY, jumps=True),
            Case("shared keys", {"G": 1}, {"q": "BTGK", "k": "BTGK"} | _KEY_DECAY),
            Case("packed", _PACKED, _KEY_STATE, bounds=_BOUNDS, jumps=True),
            *(
                Case(
                    f"{keys} keys, {width} columns, pieces{', by key' * len(decay)}",
                    {"T": 600, "K": keys, "V": width},
                    _KEY_STATE | decay,
                    jumps=True,
                    compiled=True,
                )
                for keys, width in ((32, 32), (64, 64), (128, 128), (256, 200))
                for decay in ({}, _KEY_DECAY)
            ),
        ),
        frozenset({"g", "initial_state"}),
    ),
    "delta_rule": Operator(
        {"q": "BTHK", "k": "BTHK", "v": "BTHV", "beta": "BTH", "g": "BTH"},
        ("output", "final_state"),
        (
            Case("70 positions", options=_UNIT_KEYS),
            Case("1 position", _ALONE, _KEY_STATE, _UNIT_KEYS),
            Case("decays jump", {"T": 63, "K": 24, "V": 40}, _KEY_STATE, _UNIT_KEYS, jumps=True),
            Case("packed", _PACKED, _KEY_STATE, _UNIT_KEYS, _BOUNDS, jumps=True),
            *(
                Case(
                    f"{keys} keys, {width} columns, pieces",
                    {"T": 600, "K": keys, "V": width},
                    _KEY_STATE,
                    _UNIT_KEYS,
                    jumps=True,
                    compiled=True,
                )
                for keys, width in ((32, 32), (64, 64), (128, 128), (128, 256))
            ),
        ),
        frozenset({"g", "initial_state"}),
    ),
    "dplr_delta_rule": Operator(
        {"q": "BTHK", "k": "BTHK", "v": "BTHV", "a": "BTHK", "b": "BTHK", "g": "BTHK"},
        ("output", "final_state"),
        (
            Case("70 positions"),
            Case("1 position", _ALONE, _KEY_STATE),
            Case(
                "decays jump", {"T": 63, "K": 24, "V": 40}, _KEY_STATE, {"scale": 0.5}, jumps=True
            ),
            Case("packed", _PACKED, _KEY_STATE, bounds=_BOUNDS, jumps=True),
            *(
                Case(
                    f"{keys} keys, {width} columns, pieces",
                    {"T": 600, "K": keys, "V": width},
                    _KEY_STATE,
                    jumps=True,
                    compiled=True,
                )
                for keys, width in ((32, 32), (64, 64), (128, 128), (64, 200))
            ),
        ),
        frozenset({"g", "initial_state"}),
    ),
    "dplr_gates": Operator(
        {
            "k": "BTD",
            "v": "BTD",
            "rate_logits": "BTD",
            "decay_logits": "BTD",
            "removal_scale": "D",
            "rate_scale": "D",
        },
        ("keys", "values", "a", "b", "g"),
        (
            Case("70 positions", axes=_MIXED_VALUES, options={"head_width": 8}),
            Case("1 position, one head", _ALONE),
            Case(
                "heads of 7 channels, bias",
                {"T": 63, "D": 21},
                _MIXED_VALUES | {"decay_bias": "D"},
                {"head_width": 7},
            ),
            *(
                Case(
                    f"heads of {width} channels",
                    _PAIR | {"D": 4 * width, "T": 600},
                    _MIXED_VALUES | {"decay_bias": "D"},
                    {"head_width": width},
                    compiled=True,
                )
                for width in (64, 128)
            ),
        ),
        frozenset({"decay_logits", "removal_scale", "rate_scale", "decay_bias"}),
    ),
    "exact_linear": Operator(
        {"x": "BTD", "weight": "OD", "bias": "O"},
        ("output",),
        (
            Case("70 positions"),
            Case("1 position, no bias", _ALONE, options={"bias": None}),
            Case("70 channels, 3 outputs", {"T": 63, "D": 70, "O": 3}),
            Case("256 channels", _PAIR | {"D": 256}, compiled=True),
            Case("320 channels, 48 outputs", _PAIR | {"D": 320, "O": 48}, compiled=True),
        ),
    ),
    "frac_gates": Operator(
        {
            "delta": "BTH",
            "alpha": "BTH",
            "lam": "BTH",
            "read_logits": "BTHM",
            "write_logits": "BTHM",
            "log_tau": "M",
            "dt_bias": "H",
            "read_gain": "",
            "write_gain": "",
        },
        ("u", "read", "write"),
        (
            Case("70 positions"),
            Case("1 position", _ALONE | {"M": 16, "H": 3}),
            Case("clock jumps", {"T": 63, "M": 16}, jumps=True),
            Case(
                "zoh, alpha 1, no prior",
                {"M": 16},
                options={"gain": "zoh", "alpha": None, "read_prior": False, "write_prior": False},
            ),
            Case("4 heads", _PAIR | {"H": 4, "M": 16, "T": 1000}, compiled=True),
            Case("16 heads, 32 modes", {"H": 16, "M": 32}, compiled=True),
        ),
        frozenset({"delta", "alpha", "lam", "log_tau", "dt_bias", "read_gain", "write_gain"}),
    ),
    "frac_scan": Operator(
        {"values": "BTHV", "write": "BTHM", "read": "BTHM", "u": "BTH", "log_tau": "M"},
        ("output", "final_state"),
        (
            Case("70 positions"),
            Case("1 position", _ALONE),
            Case("decoding", _ALONE | {"M": 16, "V": 40}, _SCAN_STATE, gradients=False),
            Case(
                "decoding in place",
                _ALONE,
                _SCAN_STATE,
                options={"inplace_state": True},
                gradients=False,
            ),
            Case(
                "clock jumps",
                {"T": 63, "M": 16, "V": 40},
                _SCAN_STATE,
                jumps=True,
            ),
            Case("pieces", {"M": 16}, _SCAN_STATE, {"segment_length": 32}, jumps=True),
            Case("packed", _PACKED, _SCAN_STATE, {"segment_length": 32}, _BOUNDS, jumps=True),
            *(
                Case(
                    f"{modes} modes, {width} columns",
                    _PAIR | {"M": modes, "V": width},
                    _SCAN_STATE,
                    {"segment_length": 32},
                    jumps=True,
                    compiled=True,
                )
                for modes, width in ((16, 32), (16, 64), (16, 128), (16, 256), (32, 128), (32, 256))
            ),
        ),
        frozenset({"u", "initial_state", "log_tau"}),
    ),
    "gated_head_norm": Operator(
        {
            "x": "BTHV",
            "r": "BTHV",
            "k": "BTHV",
            "v": "BTHV",
            "gate": "BTD",
            "weight": "D",
            "bias": "D",
            "bonus": "D",
        },
        ("output",),
        (
            Case("70 positions", {"V": 12}),
            Case("1 position", _ALONE | {"V": 12}),
            Case("3 heads of 7 channels", {"T": 63, "H": 3, "V": 7, "D": 21}),
            Case("4 heads of 64 channels", {"T": 600, "H": 4, "V": 64, "D": 256}, compiled=True),
            Case("2 heads of 128 channels", {"T": 600, "V": 128, "D": 256}, compiled=True),
        ),
        frozenset({"weight", "bias", "bonus"}),
    ),
    "gated_rms_norm": Operator(
        {"x": "BTD", "gate": "BTD", "weight": "D"},
        ("output",),
        (
            Case("70 positions"),
            Case("1 position", _ALONE),
            Case("skip, 70 channels", {"T": 63, "D": 70}, _SKIP, {"gate_bias": 0.5}),
            Case(
                "norm first, in groups",
                axes={"weight": "G"},
                options={"order": "norm_first", "group_size": SIZES["G"]},
            ),
            Case("512 channels", _PAIR | {"D": 512}, _SKIP, compiled=True),
            Case("2048 channels", _PAIR | {"D": 2048}, compiled=True),
        ),
    ),
    "gated_skip": Operator(
        {"x": "BTRHV", "values": "BTRHV", "factor": "BTHRR", "gate": "BTD"},
        ("output",),
        (
            Case("70 positions", {"V": 12}),
            Case("1 position", _ALONE | {"V": 12}),
            Case("3 heads of 23 channels", {"T": 33, "H": 3, "V": 23, "D": 69}),
            Case("rank 2, mixed", {"T": 33, "R": 2, "V": 12}, _MIXED_RANKS),
            Case("8 heads of 64 channels", _PAIR | _HEADS, compiled=True),
            Case("rank 4, mixed", _PAIR | _HEADS | {"R": 4}, _MIXED_RANKS, compiled=True),
        ),
        frozenset({"factor", "gate_mix", "output_mix"}),
    ),
    "rotary_norm": Operator(
        {
            "queries": "BTC",
            "keys": "BTC",
            "query_weight": "K",
            "key_weight": "K",
            "query_bias": "HRK",
            "key_bias": "HRK",
            "angle": "BTHP",
            "key_factor": "BTH",
        },
        ("q", "k", "products"),
        (
            Case("70 positions"),
            Case("1 position, no factor", _ALONE, options={"key_factor": None}),
            Case("3 heads of 24 keys", {"T": 33, "H": 3, "K": 24, "C": 24, "P": 6}),
            Case("rank 2, pairs apart", {"T": 33, "R": 2, "C": 32}, options={"neighbours": False}),
            Case("8 heads of 128 keys", _TURNED, compiled=True),
            Case(
                "8 heads of 128 keys, rank 4",
                _TURNED | {"R": 4, "C": 512},
                options={"neighbours": False},
                compiled=True,
            ),
        ),
        frozenset({"query_weight", "key_weight", "query_bias", "key_bias", "angle", "key_factor"}),
    ),
    "selective_angles": Operator(
        {"delta": "BTH", "speed": "BTP"},
        ("angle",),
        # so few angles that rounding moves none from half a turn to minus half a turn
        (
            Case("70 positions"),
            Case("1 position", _ALONE, {"start": "BHP"}),
            Case("6 pairs, from a start", {"T": 130, "P": 6, "B": 2}, {"start": "BHP"}),
            Case("more chunks than are carried at once", {"T": 2200, "H": 1, "P": 2}),
            Case("4 heads, 32 pairs", {"T": 100, "H": 4, "P": 32}, compiled=True),
        ),
        frozenset({"delta", "speed", "start"}),
    ),
    "shifted_layer_norm": Operator(
        {"x": "BTD", "weight": "D", "bias": "D", "shares": "ED"},
        ("first", "second", "third", "token"),
        (
            Case("70 positions"),
            Case("1 position, continued", _ALONE, {"last": "BD"}),
            Case("a sum, 70 channels", _PAIR | {"T": 63, "D": 70}, {"addend": "BTD"}),
            Case("packed", bounds=_BOUNDS),
            *(
                Case(
                    f"{width} channels",
                    _PAIR | {"D": width, "T": 600},
                    {"addend": "BTD", "last": "BD"},
                    compiled=True,
                )
                for width in (256, 2048)
            ),
        ),
        frozenset({"weight", "bias", "shares", "last"}),
    ),
    "short_convolution": Operator(
        {"x": "BTD", "weight": "DW", "bias": "D"},
        ("output", "final_state"),
        (
            Case("70 positions"),
            Case("1 position", _ALONE, _FILTER_STATE),
            Case(
                "63 positions, 70 channels",
                {"T": 63, "D": 70},
                options={"activation": "silu"},
            ),
            Case("no bias, 3 taps", {"T": 2, "W": 3, "S": 2}, _FILTER_STATE, {"bias": None}),
            Case("packed", _PACKED, _FILTER_STATE, {"activation": "silu"}, _BOUNDS),
            Case("300 channels", _PAIR | {"D": 300}, options={"activation": "silu"}, compiled=True),
            Case("512 channels", _PAIR | {"D": 512}, options={"activation": "silu"}, compiled=True),
        ),
    ),
    "squared_relu": Operator(
        {"x": "BTD"},
        ("output",),
        (
            Case("70 positions"),
            Case("1 position", _ALONE),
            Case("several blocks", {"T": 190}),
            Case("1024 channels", _PAIR | {"D": 1024}, compiled=True),
        ),
    ),
}


def make_inputs(name: str, case: Case, dtype: torch.dtype = torch.float32) -> dict[str, Tensor]:
    """Random tensors of a case, the same at every call.

    Args:
        name: of the operator.
        case: one of its cases.
        dtype: what the tensors must hold exactly, except those that stay in float32.

    Returns:
        float64 tensors on the CPU.
    """
    generator = torch.Generator().manual_seed(0)
    sizes = SIZES | case.sizes
    tensors = {}
    for key, axes in (OPERATORS[name].inputs | case.axes).items():
        shape = [sizes[axis] for axis in axes]
        x = torch.randn(shape, generator=generator, dtype=torch.float32, device="cpu")
        if key in case.options:
            continue
        if key == "log_tau":
            x = torch.linspace(0, math.log(SLOWEST), sizes["M"], dtype=torch.float32, device="cpu")
        x = x.abs() if key == "u" else -x.abs() if key == "g" else x
        x = x.sigmoid() if key == "beta" else x
        if key in ("a", "b"):  # of length 1: what replaces the memory must not make it grow
            x = torch.nn.functional.normalize(x, dim=-1)
        if case.jumps:
            _jump(key, x)
        tensors[key] = (x if key in OPERATORS[name].exact else x.to(dtype)).double()
    return tensors


def _jump(key: str, x: Tensor) -> None:
    """Every 31st advance of the clock is JUMP; that of the gates is lam^(1 / alpha), nearly 1e6."""
    far = {"u": JUMP, "g": -JUMP, "lam": 6.0, "alpha": -6.0}
    if key in far:
        x[:, ::31] = far[key]
