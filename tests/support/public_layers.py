"""Our layers beside those of flash-linear-attention 0.6 that hold the same weights.

Not among them is Mamba-3: there the public layer has no form of its own, and runs on the kernels of
mamba_ssm alone.
"""

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple
from unittest.mock import patch

import pytest
import torch
from models import lively
from torch import Tensor, nn

from fracdna.mixers.gdn import GDN
from fracdna.mixers.gla import GLA
from fracdna.mixers.low_rank import LowRank
from fracdna.mixers.mamba2 import Mamba2
from fracdna.mixers.retnet import RetNet
from fracdna.mixers.rwkv7 import RWKV7

D = 128
LAYERS = 2  # of RWKV-7, whose first layer differs from those after it


class Pair(NamedTuple):
    """Two stacks of one or two layers, and how to run either on (batch, length, D)."""

    ours: nn.ModuleList  # float64
    public: nn.ModuleList  # float32
    run_ours: Callable[[nn.ModuleList, Tensor], Tensor]
    run_public: Callable[[nn.ModuleList, Tensor], Tensor]


def _ours(*layers: Callable[[], nn.Module]) -> nn.ModuleList:
    """Layers in float64 with weights that bfloat16 holds and of which none is without effect."""
    torch.set_default_dtype(torch.float64)
    try:
        stack = nn.ModuleList(lively(layer()) for layer in layers).eval()
    finally:
        torch.set_default_dtype(torch.float32)
    with torch.no_grad():
        for module in stack.modules():
            # as drawn, maps of width 128 shrink what they are given, some of them to almost 0
            if isinstance(module, nn.Linear):
                maps = [module.weight]
            elif isinstance(module, LowRank):
                maps = [module.down, module.up]
            else:
                maps = [getattr(module, "conv_weight", torch.empty(0, 1))]
            for weight in maps:
                weight.normal_(std=weight.shape[-1] ** -0.5)
        for parameter in stack.parameters():
            parameter.copy_(parameter.bfloat16())
    return stack


def _same(ours: nn.Module, public: nn.Module, weights: dict[str, Tensor]) -> nn.ModuleList:
    """The public layer with these weights, which are all that it has and all of ours."""
    count = sum(parameter.numel() for parameter in ours.parameters())
    assert sum(weight.numel() for weight in weights.values()) == count
    shapes = {name: parameter.shape for name, parameter in public.named_parameters()}
    # of the same size, so that only axes of length 1 come and go
    fitted = {name: weight.detach().reshape(shapes[name]) for name, weight in weights.items()}
    public.load_state_dict(fitted, strict=True)
    return nn.ModuleList([public]).eval()


def _one(stack: nn.ModuleList, x: Tensor) -> Tensor:
    return stack[0](x)


def _one_public(stack: nn.ModuleList, x: Tensor) -> Tensor:
    return stack[0](x)[0]


def _gdn(negative: bool) -> Pair:
    from fla.layers import GatedDeltaNet

    options = {"num_heads": 2, "key_width": 64, "value_width": 128}
    stack = _ours(lambda: GDN(D, **options, negative_eigenvalues=negative))
    ours = stack[0]
    public = GatedDeltaNet(
        D, num_heads=2, head_dim=64, expand_v=2, allow_neg_eigval=negative, layer_idx=0
    )
    q, k, v = ours.qkv_projection.weight.split([128, 128, 256])
    q_taps, k_taps, v_taps = ours.conv_weight.split([128, 128, 256])
    beta, steps = ours.dynamics.weight.chunk(2)
    weights = {
        "q_proj.weight": q,
        "k_proj.weight": k,
        "v_proj.weight": v,
        "q_conv1d.weight": q_taps,
        "k_conv1d.weight": k_taps,
        "v_conv1d.weight": v_taps,
        "b_proj.weight": beta,
        "a_proj.weight": steps,
        "A_log": ours.A_log,
        "dt_bias": ours.dt_bias,
        "g_proj.weight": ours.gate_projection.weight,
        "o_norm.weight": ours.norm_weight,
        "o_proj.weight": ours.out_projection.weight,
    }
    return Pair(stack, _same(ours, public, weights), _one, _one_public)


def _linear_attention(ours: nn.Module) -> dict[str, Tensor]:
    """What GLA and RetNet have in common."""
    return {
        "q_proj.weight": ours.q_projection.weight,
        "k_proj.weight": ours.k_projection.weight,
        "v_proj.weight": ours.v_projection.weight,
        "g_proj.weight": ours.gate_projection.weight,
        "g_norm_swish_gate.weight": ours.norm_weight,
        "o_proj.weight": ours.out_projection.weight,
    }


def _gla() -> Pair:
    from fla.layers import GatedLinearAttention

    stack = _ours(lambda: GLA(D, num_heads=2, key_width=32, value_width=64))
    ours = stack[0]
    public = GatedLinearAttention(
        hidden_size=D, num_heads=2, expand_k=0.5, expand_v=1.0, layer_idx=0
    )
    weights = _linear_attention(ours) | {
        "gk_proj.0.weight": ours.decay_down.weight,
        "gk_proj.1.weight": ours.decay_up.weight,
        "gk_proj.1.bias": ours.decay_up.bias,
    }
    return Pair(stack, _same(ours, public, weights), _one, _one_public)


def _retnet() -> Pair:
    from fla.layers import MultiScaleRetention

    stack = _ours(lambda: RetNet(D, num_heads=2, key_width=64, value_width=128))
    public = MultiScaleRetention(
        hidden_size=D, num_heads=2, expand_k=1.0, expand_v=2.0, layer_idx=0
    )
    same = _same(stack[0], public, _linear_attention(stack[0]))
    return Pair(stack, same, _one, _one_public)


def _mamba2() -> Pair:
    from fla.layers import Mamba2 as PublicMamba2

    # one group: without mamba_ssm the public layer gives groups to heads in turn, and with it, as
    # here and in the release, to as many heads in a row
    stack = _ours(lambda: Mamba2(D, num_heads=4, state_width=64))
    ours = stack[0]
    public = PublicMamba2(
        hidden_size=D, num_heads=4, head_dim=64, state_size=64, chunk_size=64, layer_idx=0
    )
    maps = (ours.gate_projection, ours.in_projection, ours.dt_projection)
    weights = {
        "in_proj.weight": torch.cat([linear.weight for linear in maps]),
        "conv1d.weight": ours.conv_weight,
        "conv1d.bias": ours.conv_bias,
        "A_log": ours.A_log,
        "dt_bias": ours.dt_bias,
        "D": ours.skip,
        "norm.weight": ours.norm_weight,
        "out_proj.weight": ours.out_projection.weight,
    }
    return Pair(stack, _same(ours, public, weights), _one, _one_public)


def _rwkv7() -> Pair:
    """Whole blocks, since our mixer holds both mixes and their norms."""
    from fla.models.rwkv7.configuration_rwkv7 import RWKV7Config
    from fla.models.rwkv7.modeling_rwkv7 import RWKV7Block

    options = {"head_width": 64, "mlp_width": 256, "num_layers": LAYERS}
    stack = _ours(*(lambda n=n: RWKV7(D, layer_index=n, **options) for n in range(LAYERS)))
    config = RWKV7Config(
        hidden_size=D, head_dim=64, intermediate_size=256, num_hidden_layers=LAYERS,
        decay_low_rank_dim=32, a_low_rank_dim=32, v_low_rank_dim=32, gate_low_rank_dim=64,
        fuse_norm=False,  # fused, the length of a key counts from 1e-6, released and here from 0
    )  # fmt: skip
    public = nn.ModuleList()
    for number, ours in enumerate(stack):
        weights = {
            "attn_norm": ours.time_norm,
            "ffn_norm": ours.channel_norm,
            "attn.r_proj": ours.r_projection,
            "attn.k_proj": ours.k_projection,
            "attn.v_proj": ours.v_projection,
            "attn.o_proj": ours.out_projection,
            "ffn.key": ours.up_projection,
            "ffn.value": ours.down_projection,
        }
        if ours.embedding_norm is not None:
            weights["pre_norm"] = ours.embedding_norm
        weights = {
            f"{theirs}.{name}": parameter
            for theirs, module in weights.items()
            for name, parameter in module.named_parameters()
        }
        weights |= {
            f"attn.x_{letter}": share
            for letter, share in zip("rwkvag", ours.time_shares, strict=True)
        }
        low_rank = {"w": ours.decay, "a": ours.rate, "g": ours.gate}
        if ours.value_share is not None:
            low_rank["v"] = ours.value_share
        for letter, module in low_rank.items():
            weights[f"attn.{letter}_lora.lora.0.weight"] = module.down
            weights[f"attn.{letter}_lora.lora.2.weight"] = module.up
            if module.bias is not None:
                weights[f"attn.{letter}_lora.lora.2.bias"] = module.bias
        weights |= {
            "attn.w_lora.lora.2.bias": ours.decay_bias,
            "attn.k_k": ours.removal_scale,
            "attn.k_a": ours.rate_scale,
            "attn.r_k": ours.bonus,
            "attn.g_norm.weight": ours.head_norm_weight,
            "attn.g_norm.bias": ours.head_norm_bias,
            "ffn.x_k": ours.channel_share,
        }
        public.extend(_same(ours, RWKV7Block(config, number), weights))
    return Pair(stack, public, _rwkv7_ours, _rwkv7_public)


def _rwkv7_ours(stack: nn.ModuleList, x: Tensor) -> Tensor:
    """The stream after both layers."""
    shared: dict[str, Tensor] = {}
    for layer in stack:
        x = x + layer(x, shared=shared)
    return x


def _rwkv7_public(stack: nn.ModuleList, x: Tensor) -> Tensor:
    from fla.layers import rwkv7
    from fla.ops.rwkv7 import chunk_rwkv7

    def exact_chunks(**options: Any) -> tuple[Tensor, Tensor | None]:
        # as the layer calls it, it inverts triangles in float16 whatever its inputs
        exact = {"safe_gate": False, "lower_bound": None, "chunk_size": 16}
        return chunk_rwkv7(**options | exact)

    first: Any = None
    chunks = exact_chunks if x.dtype == torch.float32 else chunk_rwkv7
    with patch.object(rwkv7, "chunk_rwkv7", chunks):
        for block in stack:
            x, _, _, first = block(x, v_first=first)
    return x


PAIRS: dict[str, Callable[[], Pair]] = {
    "gdn": lambda: _gdn(negative=False),
    "gdn negative": lambda: _gdn(negative=True),
    "gla": _gla,
    "retnet": _retnet,
    "mamba2": _mamba2,
    "rwkv7": _rwkv7,
}


@contextmanager
def exact_products() -> Iterator[None]:
    """Public layers that multiply float32 as exactly as ours while this lasts.

    By default their kernels round the factors to the 11 bits of tf32; tf32x3 sums three products of
    such parts. Of the many launches that they would compile and time, the first two are enough.
    """
    import triton
    from fla.ops.gated_delta_rule import chunk_fwd

    tuner = triton.runtime.autotuner.Autotuner
    all_launches = tuner.prune_configs

    def two_launches(self: Any, arguments: dict[str, Any]) -> list[Any]:
        return all_launches(self, arguments)[:2]

    with pytest.MonkeyPatch.context() as changed:
        changed.setenv("TRITON_F32_DEFAULT", "tf32x3")
        precision = triton.language.constexpr("tf32x3")  # which this kernel names itself
        changed.setattr(chunk_fwd, "SOLVE_TRIL_DOT_PRECISION", precision)
        changed.setattr(tuner, "prune_configs", two_launches)
        changed.setattr(torch.backends.cudnn, "allow_tf32", False)
        yield


def outputs(pair: Pair, x: Tensor, dtype: torch.dtype, device: str) -> tuple[Tensor, ...]:
    """Outputs in float64 on the CPU: ours in float64, ours and the public layer's in dtype.

    In bfloat16 our layers run as in training, with weights in float32 under autocast, and the
    public ones as in theirs, with weights in bfloat16: both hold the same numbers.

    Args:
        pair: an element of PAIRS.
        x: (batch, length, D) float64, of numbers that bfloat16 holds.
        dtype: float32 or bfloat16.
        device: where both run in dtype.
    """
    low = dtype == torch.bfloat16
    ours = copy.deepcopy(pair.ours).to(device, torch.float32)
    public = copy.deepcopy(pair.public).to(device, dtype)
    with torch.no_grad():
        exact = pair.run_ours(pair.ours, x)
        with torch.autocast(device, dtype=torch.bfloat16, enabled=low):
            # norms hand a layer's input over in bfloat16, but RWKV-7 has its norms inside
            given = torch.float32 if pair.run_ours is _rwkv7_ours else dtype
            result = pair.run_ours(ours, x.to(device, given))
        other = pair.run_public(public, x.to(device, dtype))
    return exact, result.double().cpu(), other.double().cpu()
