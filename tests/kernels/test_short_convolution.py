import pytest
import torch
from numerics import FORWARD, GRADIENT, relative_error

from fracdna_kernels import short_convolution


def make(length, *, batch=2, channels=5, taps=4, sequences=None):
    return {
        "x": torch.randn(batch, length, channels, dtype=torch.float64),
        "weight": torch.randn(channels, taps, dtype=torch.float64),
        "bias": torch.randn(channels, dtype=torch.float64),
        "initial_state": torch.randn(sequences or batch, channels, taps - 1, dtype=torch.float64),
    }


def run(inputs, form, dtype, **options):
    inputs = {name: x.to(dtype).requires_grad_() for name, x in inputs.items()}
    y, state = short_convolution(**inputs, form=form, **options)
    loss = (y * torch.arange(1, y.numel() + 1, dtype=dtype).view_as(y).cos()).sum()
    loss = loss + (state * state).sum()
    gradients = torch.autograd.grad(loss, list(inputs.values()), materialize_grads=True)
    result = {"y": y, "final_state": state}
    return result | {f"d{name}": g for name, g in zip(inputs, gradients, strict=True)}


def assert_same(result, reference, dtype):
    for name, expected in reference.items():
        table = GRADIENT if name.startswith("d") else FORWARD
        assert relative_error(result[name], expected) <= table[dtype], name


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
@pytest.mark.parametrize("form", ["chunk", "recurrent"])
@pytest.mark.parametrize("taps", [1, 3, 4])
@pytest.mark.parametrize("length", [1, 2, 3, 17, 70])
def test_forms_agree_with_the_reference(length, taps, form, dtype):
    """Also where the sequence is shorter than the window."""
    inputs = make(length, taps=taps)
    expected = run(inputs, "reference", torch.float64, activation="silu")
    assert_same(run(inputs, form, dtype, activation="silu"), expected, dtype)


@pytest.mark.parametrize(
    "bounds", [[0, 15], [0, 0, 16], [0, 1, 3, 20], [0, 0, 0], [0, 2, 2, 19], [3, 9, 18]], ids=str
)
def test_packed_windows_never_cross_a_border(bounds):
    inputs = make(20, batch=1, sequences=len(bounds) - 1)
    packed = {"cu_seqlens": torch.tensor(bounds)}
    result = run(inputs, "chunk", torch.float64, **packed)
    assert_same(result, run(inputs, "reference", torch.float64, **packed), torch.float64)
    assert (result["y"][:, bounds[-1] :] == 0).all()
    assert (result["y"][:, : bounds[0]] == 0).all()
    assert (result["dx"][:, bounds[-1] :] == 0).all()


def test_state_is_the_last_inputs_also_of_a_short_sequence():
    """Oldest first, taken from state and input together."""
    inputs = make(2, taps=4)
    _, state = short_convolution(**inputs)
    expected = torch.cat([inputs["initial_state"], inputs["x"].mT], dim=-1)[..., -3:]
    assert torch.equal(state, expected)


@pytest.mark.parametrize("split", [[30], [1] * 30, [1, 2, 27], [0, 30]])
def test_any_split_gives_one_pass(split):
    inputs = make(30)
    whole, final = short_convolution(**inputs, activation="silu")
    state, pieces = inputs["initial_state"], []
    for piece in inputs["x"].split(split, dim=1):
        y, state = short_convolution(
            piece, inputs["weight"], inputs["bias"], activation="silu", initial_state=state
        )
        pieces.append(y)
    assert relative_error(torch.cat(pieces, dim=1), whole) < 1e-12
    assert torch.equal(state, final)


def test_wrong_use_is_named():
    inputs = make(5)
    with pytest.raises(ValueError, match="activation='relu'"):
        short_convolution(**inputs, activation="relu")
    with pytest.raises(ValueError, match="axis D"):
        short_convolution(**inputs | {"bias": torch.zeros(4)})
    with pytest.raises(ValueError, match="axis S"):
        short_convolution(**inputs | {"initial_state": torch.zeros(2, 5, 4)})
    with pytest.raises(ValueError, match="one sequence per row"):
        short_convolution(**make(5, batch=1), cu_seqlens=torch.tensor([0, 5]), form="recurrent")
