"""rotary_norm in one kernel each way, registered as operators of PyTorch.

Only the inputs are saved for the backward pass, which computes everything again.
"""

from collections.abc import Iterator
from functools import cache
from itertools import product
from typing import Any

import torch
import triton.language as tl
from torch import Tensor

from fracdna_kernels.compilation import Case, compile_case
from fracdna_kernels.forms import accumulator
from fracdna_kernels.registration import operator
from fracdna_kernels.rotary_norm.triton_kernels import rotary_backward, rotary_forward
from fracdna_kernels.triton_rows import partial_sums, rows_of, share_tiles, summed
from fracdna_kernels.triton_support import ceil_div, dense, on_device_of, padded_size, types

FORWARD_PAIRS = 512  # of a tile, 4 for each of 128 threads: 16 elements of queries and of keys
BACKWARD_PAIRS = 256  # likewise; a thread has as many sums beside, and few enough for 4 programs


def rotary_norm_triton(
    queries: Tensor,
    keys: Tensor,
    query_weight: Tensor,
    key_weight: Tensor,
    query_bias: Tensor,
    key_bias: Tensor,
    angle: Tensor,
    key_factor: Tensor | None,
    neighbours: bool,
    eps: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """See rotary_norm for shapes and meaning."""
    return _norm(
        queries, keys, query_weight, key_weight, query_bias, key_bias, angle, key_factor,
        neighbours, eps,
    )  # fmt: skip


@cache
def _sized(
    heads: int, rank: int, width: int, neighbours: bool, eps: float, dtype: torch.dtype
) -> dict[str, Any]:
    """What both kernels are compiled for."""
    return {
        "H": heads,
        "R": rank,
        "K": width,
        "P": width // 4,
        "EACH": neighbours,
        "EPS": eps,
        "PAIRS": padded_size(width // 4),
        "ACC": types(dtype)["ACC"],
    }


@cache
def _forward_tile(width: int) -> dict[str, int]:
    """Rows of a program."""
    return {"ROWS": max(1, FORWARD_PAIRS // padded_size(width // 4)), "num_warps": 4}


@cache
def _backward_tile(heads: int, width: int) -> dict[str, int]:
    """Positions of a program's tile: all heads of at least one."""
    padded_heads, pairs = padded_size(heads), padded_size(width // 4)
    positions = max(1, BACKWARD_PAIRS // (padded_heads * pairs))
    warps = max(4, positions * padded_heads * pairs // 64)
    return {"POSITIONS": positions, "HEADS": padded_heads, "num_warps": min(16, warps)}


def _placed(
    queries: Tensor,
    keys: Tensor,
    query_weight: Tensor,
    key_weight: Tensor,
    query_bias: Tensor,
    key_bias: Tensor,
    angle: Tensor,
    key_factor: Tensor | None,
) -> tuple[list[Any], list[int]]:
    """The inputs as kernels take them, and the strides between rows of queries and of keys."""
    (queries, query_stride), (keys, key_stride) = rows_of(queries), rows_of(keys)
    rest = dense(query_weight, key_weight, query_bias, key_bias, angle, key_factor)
    return [queries, keys, *rest], [query_stride, key_stride]


@operator("rotary_norm")
def _norm(
    queries: Tensor,
    keys: Tensor,
    query_weight: Tensor,
    key_weight: Tensor,
    query_bias: Tensor,
    key_bias: Tensor,
    angle: Tensor,
    key_factor: Tensor | None,
    neighbours: bool,
    eps: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """q, k and their products."""
    inputs = queries, keys, query_weight, key_weight, query_bias, key_bias, angle, key_factor
    outputs = _outputs(*inputs, neighbours, eps)
    heads, rank, width = query_bias.shape
    tile, count = _forward_tile(width), queries.shape[0] * queries.shape[1]
    programs = ceil_div(count * heads, tile["ROWS"])
    if programs:
        placed, strides = _placed(*inputs)
        with on_device_of(queries):
            rotary_forward[(programs,)](
                *placed, *outputs, count, *strides,
                **_sized(heads, rank, width, neighbours, eps, queries.dtype), **tile,
            )  # fmt: skip
    return outputs


@_norm.register_fake
def _outputs(
    queries: Tensor,
    keys: Tensor,
    query_weight: Tensor,
    key_weight: Tensor,
    query_bias: Tensor,
    key_bias: Tensor,
    angle: Tensor,
    key_factor: Tensor | None,
    neighbours: bool,
    eps: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """Outputs before they are computed."""
    heads, rank, width = query_bias.shape
    batch, length = queries.shape[:2]
    q = queries.new_empty(batch, length, rank, heads, width)
    exact = accumulator(queries)
    products = queries.new_empty(batch, length, heads, rank, rank, dtype=exact)
    return q, torch.empty_like(q), products


@operator("rotary_norm_backward")
def _backward(
    d_q: Tensor,
    d_k: Tensor,
    d_products: Tensor,
    queries: Tensor,
    keys: Tensor,
    query_weight: Tensor,
    key_weight: Tensor,
    query_bias: Tensor,
    key_bias: Tensor,
    angle: Tensor,
    key_factor: Tensor | None,
    neighbours: bool,
    eps: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Gradients of queries, keys, angle and key_factor, and sums for the parameters.

    Those of angle and of key_factor (empty without) are parts, one for each rank; the sums,
    (2, (H + 1) R K), are those of queries and of keys, first for the bias, then for the weight.
    """
    inputs = queries, keys, query_weight, key_weight, query_bias, key_bias, angle, key_factor
    heads, rank, width = query_bias.shape
    gradients = _streams(queries, keys, rank, angle, key_factor)
    tile, count = _backward_tile(heads, width), queries.shape[0] * queries.shape[1]
    programs, each = share_tiles(ceil_div(count, tile["POSITIONS"]), rank)
    parts = partial_sums(2, programs, (heads + 1) * rank * width, like=queries)
    if programs:
        placed, strides = _placed(*inputs)
        with on_device_of(queries):
            rotary_backward[(programs * rank,)](
                *placed, *dense(d_q, d_k, d_products), *gradients, parts, count, each, *strides,
                **_sized(heads, rank, width, neighbours, eps, queries.dtype), **tile,
            )  # fmt: skip
    return (*gradients, summed(parts))


@_backward.register_fake
def _gradients(
    d_q: Tensor,
    d_k: Tensor,
    d_products: Tensor,
    queries: Tensor,
    keys: Tensor,
    query_weight: Tensor,
    key_weight: Tensor,
    query_bias: Tensor,
    key_bias: Tensor,
    angle: Tensor,
    key_factor: Tensor | None,
    neighbours: bool,
    eps: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Gradients before they are computed."""
    heads, rank, width = query_bias.shape
    sums = queries.new_empty(2, (heads + 1) * rank * width, dtype=accumulator(queries))
    return *_streams(queries, keys, rank, angle, key_factor), sums


def _streams(
    queries: Tensor, keys: Tensor, rank: int, angle: Tensor, key_factor: Tensor | None
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Gradients of what belongs to positions before they are computed."""
    d_queries, d_keys = (
        torch.empty_like(x, memory_format=torch.contiguous_format) for x in (queries, keys)
    )
    d_angle = angle.new_empty(rank, *angle.shape)
    shape = (0,) if key_factor is None else (rank, *key_factor.shape)
    return d_queries, d_keys, d_angle, angle.new_empty(shape)


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    """What the backward pass needs."""
    ctx.save_for_backward(*inputs[:8])
    ctx.options = inputs[8:]


def _norm_gradients(ctx: Any, d_q: Tensor, d_k: Tensor, d_products: Tensor) -> Any:
    """For every argument of _norm."""
    saved = ctx.saved_tensors
    query_weight, key_weight, query_bias, key_bias, angle, key_factor = saved[2:]
    d_queries, d_keys, d_angle, d_factor, sums = _backward(
        d_q, d_k, d_products, *saved, *ctx.options
    )
    heads, rank, width = query_bias.shape
    biases, weights = sums.split([heads * rank * width, rank * width], dim=-1)
    weights = _total(weights.view(2, rank, width).transpose(0, 1))
    d_factor = None if key_factor is None else _total(d_factor).to(key_factor.dtype)
    return (
        d_queries,
        d_keys,
        weights[0].to(query_weight.dtype),
        weights[1].to(key_weight.dtype),
        biases[0].view_as(query_bias).to(query_bias.dtype),
        biases[1].view_as(key_bias).to(key_bias.dtype),
        _total(d_angle).to(angle.dtype),
        d_factor,
        None,
        None,
    )


def _total(parts: Tensor) -> Tensor:
    """Sum over the ranks' parts, the first axis; of one part no copy is made."""
    return parts[0] if len(parts) == 1 else parts.sum(0)


_norm.register_autograd(_norm_gradients, setup_context=_save)


def compile_cases() -> Iterator[Case]:
    """Few and many heads of every width, in both dtypes, with both kinds of pairs."""
    streams = ("queries", "keys", "q", "k", "d_q", "d_k", "d_queries", "d_keys")
    exact = ("query_weight", "key_weight", "query_bias", "key_bias", "angle", "key_factor")
    exact += ("products", "d_products", "d_angle", "d_factor", "d_parameters")
    shapes = ((8, 1, 128), (4, 1, 64), (6, 1, 24), (16, 1, 128), (8, 4, 128), (32, 2, 256))
    for (heads, rank, width), kind in product(shapes, ("bf16", "fp32")):
        pointers = dict.fromkeys(streams, kind) | dict.fromkeys(exact, "fp32")
        constants = _sized(heads, rank, width, rank == 1, 1e-5, torch.float32)
        constants = constants | {"ACC": tl.float32}
        label = f"{heads} heads rank {rank} width {width} {kind}"
        yield compile_case(rotary_forward, pointers, constants | _forward_tile(width), label)
        tile = _backward_tile(heads, width)
        yield compile_case(rotary_backward, pointers, constants | tile, label)
