"""The kernels of frac_gates' Triton form; triton_form.py launches them.

A row is a position and a head. A program takes the rows of POSITIONS positions of HEADS heads
(a power of two, those beyond H are masked) with MODES modes (likewise, beyond M). Time scales and
logits are in units of log 2, so that every exponential is an exp2.

H heads   M modes   ACC the dtype of all arithmetic   d_x gradient of x, z_x that of a logit
"""

import triton
import triton.language as tl

from fracdna_kernels.triton_rows import sigmoid
from fracdna_kernels.triton_support import LN2, LOG2E, charge


@triton.jit
def softplus(x):
    """log(1 + exp(x)) and its derivative, both with a relative error of about 1e-7.

    With e = exp(-|x|): log(1 + e) = 2 artanh(s), s = e / (2 + e) <= 1/3, whose series needs no
    logarithm and keeps the digits of a small e.
    """
    e = tl.exp(-tl.abs(x))
    s = e / (2.0 + e)
    q = s * s
    series = q * (1 / 19) + 1 / 17
    series = series * q + 1 / 15
    series = series * q + 1 / 13
    series = series * q + 1 / 11
    series = series * q + 1 / 9
    series = series * q + 1 / 7
    series = series * q + 1 / 5
    series = series * q + 1 / 3
    series = series * q + 1.0
    return tl.maximum(x, 0.0) + 2.0 * s * series, tl.where(x > 0, 1.0, e) / (1.0 + e)


@triton.jit
def route(
    logits, factor, order, time, mode, PRIOR: tl.constexpr, M: tl.constexpr, MODES: tl.constexpr
):
    """softmax over modes of factor * logits, minus order * log(tau) where there is a prior."""
    scores = logits * (factor * LOG2E)
    if PRIOR:
        scores -= order[:, None] * time[None, :]
    if M < MODES:
        scores = tl.where((mode < M)[None, :], scores, float("-inf"))
    weights = tl.exp2(scores - tl.max(scores, axis=1)[:, None])
    return weights * (1.0 / tl.sum(weights, axis=1))[:, None]


@triton.jit
def through_softmax(weights, d_weights):
    """Gradient of the logits of a softmax."""
    return weights * (d_weights - tl.sum(weights * d_weights, axis=1)[:, None])


@triton.jit
def gain_of(pointer, ACC: tl.constexpr):
    """The factor on a residual."""
    return sigmoid(tl.load(pointer).to(ACC))


@triton.jit
def load_rows(pointer, first, stride, position, head, valid, ACC: tl.constexpr):
    """A scalar of every row; 64-bit base, 32-bit offsets."""
    base = pointer + first.to(tl.int64) * stride
    return tl.load(base + position * stride + head, mask=valid, other=0.0).to(ACC)


@triton.jit
def load_modes(
    pointer, first, stride, position, head, mode, inside, M: tl.constexpr, ACC: tl.constexpr
):
    """The modes of every row."""
    base = pointer + first.to(tl.int64) * stride
    place = (position * stride + head * M)[:, None] + mode[None, :]
    return tl.load(base + place, mask=inside, other=0.0).to(ACC)


@triton.jit
def load_time(log_tau, mode, M: tl.constexpr, ACC: tl.constexpr):
    """log2 of the time scales."""
    return tl.load(log_tau + mode, mask=mode < M, other=0.0).to(ACC) * LOG2E


@triton.jit(do_not_specialize=["count"])
def gates_forward(
    delta,
    alpha,
    lam,
    read_logits,
    write_logits,
    log_tau,
    dt_bias,
    read_gain,
    write_gain,
    u,
    read,
    write,
    count,
    delta_stride,
    alpha_stride,
    lam_stride,
    read_stride,
    write_stride,
    H: tl.constexpr,
    M: tl.constexpr,
    POSITIONS: tl.constexpr,
    HEADS: tl.constexpr,
    MODES: tl.constexpr,
    ZOH: tl.constexpr,
    READ_PRIOR: tl.constexpr,
    WRITE_PRIOR: tl.constexpr,
    DELTA_LOW: tl.constexpr,
    DELTA_HIGH: tl.constexpr,
    ALPHA_LOW: tl.constexpr,
    ALPHA_HIGH: tl.constexpr,
    LAM_LOW: tl.constexpr,
    LAM_HIGH: tl.constexpr,
    ACC: tl.constexpr,
):
    """u, read and write of POSITIONS positions; count positions in all."""
    first = tl.program_id(0) * POSITIONS
    row = tl.arange(0, POSITIONS * HEADS)
    position, head = row // HEADS, row % HEADS
    mode = tl.arange(0, MODES)
    valid = (head < H) & (first + position < count)
    inside = valid[:, None] & (mode < M)[None, :]
    place = first.to(tl.int64) * H + (position * H + head)
    places = first.to(tl.int64) * (H * M) + ((position * H + head)[:, None] * M + mode[None, :])
    time = load_time(log_tau, mode, M, ACC)

    r = load_modes(read_logits, first, read_stride, position, head, mode, inside, M, ACC)
    w = load_modes(write_logits, first, write_stride, position, head, mode, inside, M, ACC)
    step = load_rows(delta, first, delta_stride, position, head, valid, ACC)
    step += tl.load(dt_bias + head, mask=head < H, other=0.0).to(ACC)
    step = tl.minimum(tl.maximum(softplus(step)[0], DELTA_LOW), DELTA_HIGH)
    strength = sigmoid(load_rows(lam, first, lam_stride, position, head, valid, ACC))
    power = tl.log2(LAM_LOW + (LAM_HIGH - LAM_LOW) * strength)
    if alpha is None:
        order = tl.full([POSITIONS * HEADS], 1.0, ACC)
    else:
        order = sigmoid(load_rows(alpha, first, alpha_stride, position, head, valid, ACC))
        order = ALPHA_LOW + (ALPHA_HIGH - ALPHA_LOW) * order
        power /= order
    clock = step * tl.exp2(power)
    tl.store(u + place, clock, mask=valid)

    factor = gain_of(read_gain, ACC)
    tl.store(read + places, route(r, factor, order, time, mode, READ_PRIOR, M, MODES), mask=inside)
    charged, _ = charge(clock[:, None] * tl.exp2(-time)[None, :])
    if ZOH:
        charged *= tl.exp2(time)[None, :]
    factor = gain_of(write_gain, ACC)
    weights = route(w, factor, order, time, mode, WRITE_PRIOR, M, MODES)
    tl.store(write + places, weights * charged, mask=inside)


@triton.jit(do_not_specialize=["count"])
def gates_backward(
    delta,
    alpha,
    lam,
    read_logits,
    write_logits,
    log_tau,
    dt_bias,
    read_gain,
    write_gain,
    d_u,
    d_read,
    d_write,
    d_delta,
    d_alpha,
    d_lam,
    d_read_logits,
    d_write_logits,
    d_parameters,
    count,
    delta_stride,
    alpha_stride,
    lam_stride,
    read_stride,
    write_stride,
    H: tl.constexpr,
    M: tl.constexpr,
    POSITIONS: tl.constexpr,
    HEADS: tl.constexpr,
    MODES: tl.constexpr,
    ZOH: tl.constexpr,
    READ_PRIOR: tl.constexpr,
    WRITE_PRIOR: tl.constexpr,
    DELTA_LOW: tl.constexpr,
    DELTA_HIGH: tl.constexpr,
    ALPHA_LOW: tl.constexpr,
    ALPHA_HIGH: tl.constexpr,
    LAM_LOW: tl.constexpr,
    LAM_HIGH: tl.constexpr,
    ACC: tl.constexpr,
):
    """Gradients of the same rows, and what they add to those of dt_bias (H) and both gains."""
    first = tl.program_id(0) * POSITIONS
    row = tl.arange(0, POSITIONS * HEADS)
    position, head = row // HEADS, row % HEADS
    mode = tl.arange(0, MODES)
    valid = (head < H) & (first + position < count)
    inside = valid[:, None] & (mode < M)[None, :]
    place = first.to(tl.int64) * H + (position * H + head)
    places = first.to(tl.int64) * (H * M) + ((position * H + head)[:, None] * M + mode[None, :])
    time = load_time(log_tau, mode, M, ACC)

    r = load_modes(read_logits, first, read_stride, position, head, mode, inside, M, ACC)
    w = load_modes(write_logits, first, write_stride, position, head, mode, inside, M, ACC)
    z_read = tl.load(d_read + places, mask=inside, other=0.0).to(ACC)
    z_write = tl.load(d_write + places, mask=inside, other=0.0).to(ACC)
    d_clock = tl.load(d_u + place, mask=valid, other=0.0).to(ACC)
    step = load_rows(delta, first, delta_stride, position, head, valid, ACC)
    step += tl.load(dt_bias + head, mask=head < H, other=0.0).to(ACC)
    free, slope = softplus(step)
    step = tl.minimum(tl.maximum(free, DELTA_LOW), DELTA_HIGH)
    strength = sigmoid(load_rows(lam, first, lam_stride, position, head, valid, ACC))
    d_lam_out = (LAM_HIGH - LAM_LOW) * strength * (1.0 - strength)
    strength = LAM_LOW + (LAM_HIGH - LAM_LOW) * strength
    power = tl.log2(strength)
    order = tl.full([POSITIONS * HEADS], 1.0, ACC)
    d_order = tl.zeros([POSITIONS * HEADS], ACC)
    if alpha is not None:
        share = sigmoid(load_rows(alpha, first, alpha_stride, position, head, valid, ACC))
        order = ALPHA_LOW + (ALPHA_HIGH - ALPHA_LOW) * share
        power /= order
    clock = step * tl.exp2(power)

    factor = gain_of(read_gain, ACC)
    weights = route(r, factor, order, time, mode, READ_PRIOR, M, MODES)
    z_read = through_softmax(weights, z_read)
    tl.store(d_read_logits + places, z_read * factor, mask=inside)
    d_read_gain = tl.sum(r * z_read) * factor * (1.0 - factor)
    if READ_PRIOR:
        d_order -= tl.sum(z_read * time[None, :], axis=1)

    factor = gain_of(write_gain, ACC)
    weights = route(w, factor, order, time, mode, WRITE_PRIOR, M, MODES)
    rate = tl.exp2(-time)
    charged, kept = charge(clock[:, None] * rate[None, :])
    if ZOH:
        charged *= tl.exp2(time)[None, :]
    else:
        kept *= rate[None, :]
    d_clock += tl.sum(z_write * weights * kept, axis=1)
    z_write = through_softmax(weights, z_write * charged)
    tl.store(d_write_logits + places, z_write * factor, mask=inside)
    d_write_gain = tl.sum(w * z_write) * factor * (1.0 - factor)
    if WRITE_PRIOR:
        d_order -= tl.sum(z_write * time[None, :], axis=1)

    d_clock *= clock
    tl.store(d_lam + place, d_clock / (order * strength) * d_lam_out, mask=valid)
    if alpha is not None:
        d_order = (d_order - d_clock * power / order) * LN2
        d_order *= (ALPHA_HIGH - ALPHA_LOW) * share * (1.0 - share)
        tl.store(d_alpha + place, d_order, mask=valid)
    inner = valid & (free >= DELTA_LOW) & (free <= DELTA_HIGH)  # no gradient where it is clamped
    d_step = tl.where(inner, d_clock / step * slope, 0.0)
    tl.store(d_delta + place, d_step, mask=valid)
    sums = d_parameters + tl.program_id(0).to(tl.int64) * (H + 2)
    lane = tl.arange(0, HEADS)
    d_step = tl.sum(tl.reshape(d_step, [POSITIONS, HEADS]), axis=0)
    tl.store(sums + lane, d_step, mask=lane < H)
    tl.store(sums + H, d_read_gain)
    tl.store(sums + H + 1, d_write_gain)
