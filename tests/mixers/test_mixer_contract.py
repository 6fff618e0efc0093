"""The law that every mixer in configs/mixer keeps, and every layer that options make of one.

Where there is a CUDA device all of it runs there, by the fused forms of operators.
"""

import pytest
import torch
from models import mixer_layers
from numerics import relative_error

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
SPLITS = [[1], [63], [100], [1] * 100, [1, 62, 37], [64, 36], [500, 1, 499]]


@pytest.fixture(autouse=True)
def on_the_device():
    """Layers and tensors are made where the test is to run."""
    with torch.device(DEVICE):
        yield


def run_in_pieces(mixer, x, split, shared=None):
    state, outputs = mixer.initial_state(batch=x.shape[0]), []
    for piece in x.split(split, dim=1):
        y, state = mixer.step(piece, state, shared=shared)
        outputs.append(y)
    return torch.cat(outputs, dim=1), state


@pytest.mark.parametrize("split", SPLITS, ids=lambda s: "+".join(map(str, s))[:20])
def test_any_split_gives_the_forward_pass(mixer_name, split):
    """Cutting a sequence anywhere and carrying the state changes nothing."""
    for mixer in mixer_layers(mixer_name):
        x = torch.randn(2, sum(split), mixer.d_model)
        with torch.no_grad():
            assert relative_error(run_in_pieces(mixer, x, split)[0], mixer(x)) < 1e-5


def test_step_does_not_change_the_state_it_is_given(mixer_name):
    """Two continuations of one prefix do not meet."""
    for mixer in mixer_layers(mixer_name):
        prefix, one, two = torch.randn(3, 2, 9, mixer.d_model)
        _, state = mixer.step(prefix, mixer.initial_state(2))
        first, _ = mixer.step(one, state)
        mixer.step(two, state)
        again, _ = mixer.step(one, state)
        assert torch.equal(first, again)


def test_the_future_never_changes_the_past(mixer_name):
    for mixer in mixer_layers(mixer_name):
        x = torch.randn(2, 50, mixer.d_model)
        changed = x.clone()
        changed[:, 30:] = 7.0
        assert relative_error(mixer(changed)[:, :30], mixer(x)[:, :30]) < 1e-6


def test_the_past_does_change_the_future(mixer_name):
    """A mixer that mixes nothing would keep every other clause of the law."""
    for mixer in mixer_layers(mixer_name):
        x = torch.randn(2, 50, mixer.d_model)
        changed = x.clone()
        changed[:, 0] += torch.randn(mixer.d_model)  # a constant would fall to a LayerNorm
        assert relative_error(mixer(changed)[:, 1], mixer(x)[:, 1]) > 1e-6


def test_right_padding_never_changes_a_valid_output(mixer_name):
    """Rows of 5, 17, 0 and 64 in one batch equal single runs, and go on as those do."""
    lengths = [5, 17, 0, 64]
    for mixer in mixer_layers(mixer_name):
        x, more = torch.randn(4, 64, mixer.d_model), torch.randn(4, 8, mixer.d_model)
        with torch.no_grad():
            padded, state = mixer.step(x, mixer.initial_state(4), lengths=torch.tensor(lengths))
            after, _ = mixer.step(more, state)
            for row, length in enumerate(lengths):
                alone, alone_state = mixer.step(x[row : row + 1, :length], mixer.initial_state(1))
                assert relative_error(padded[row : row + 1, :length], alone) < 1e-5
                onward, _ = mixer.step(more[row : row + 1], alone_state)
                assert relative_error(after[row : row + 1], onward) < 1e-5


def test_padding_may_hold_anything(mixer_name):
    """What stands in the pads reaches neither outputs nor state."""
    for mixer in mixer_layers(mixer_name):
        x = torch.randn(1, 20, mixer.d_model)
        other = x.clone()
        other[:, 12:] = 1e3
        for start in (mixer.initial_state(1), mixer.step(x, mixer.initial_state(1))[1]):
            results = [mixer.step(p, start, lengths=torch.tensor([12])) for p in (x, other)]
            onward = [mixer.step(x, state)[0] for _, state in results]
            assert torch.equal(onward[0], onward[1])


def test_packed_sequences_equal_separate_ones(mixer_name):
    """State, window and positions restart at every border; an empty sequence is legal."""
    bounds = [0, 1, 40, 40, 70]
    for mixer in mixer_layers(mixer_name):
        x = torch.randn(1, 75, mixer.d_model)
        packed = mixer(x, cu_seqlens=torch.tensor(bounds))
        for start, end in [(0, 1), (1, 40), (40, 70)]:
            assert relative_error(packed[:, start:end], mixer(x[:, start:end])) < 1e-5


def test_gradients_of_both_roads_agree(mixer_name):
    """Training on carried segments gives the gradients of one pass, in float64 to rounding."""
    for mixer in mixer_layers(mixer_name, dtype=torch.float64):
        x = torch.randn(2, 40, mixer.d_model, dtype=torch.float64, requires_grad=True)
        leaves = [x, *mixer.parameters()]
        whole = torch.autograd.grad(mixer(x).square().sum(), leaves)
        pieces, _ = run_in_pieces(mixer, x, [1, 26, 13])
        carried = torch.autograd.grad(pieces.square().sum(), leaves)
        for one, other in zip(carried, whole, strict=True):
            assert relative_error(one, other) < 1e-9


def test_bf16_compute_stays_near_float32(mixer_name):
    """Under autocast outputs stay close; a memory that fades is carried in float32."""
    for mixer in mixer_layers(mixer_name):
        x = torch.randn(2, 100, mixer.d_model)
        with torch.no_grad():
            exact = mixer(x)
            with torch.autocast(DEVICE, dtype=torch.bfloat16):
                low = mixer(x)
                _, state = mixer.step(x, mixer.initial_state(2))
        if hasattr(state, "memory"):
            assert state.memory.dtype == torch.float32
        assert relative_error(low, exact) < 3e-2


def test_state_size_counts_what_is_carried(mixer_name):
    """The scalars of the state; for a cache that grows, the increase per position."""
    for mixer in mixer_layers(mixer_name):

        def scalars(state):
            return sum(x.numel() for x in state if x.is_floating_point())

        start = mixer.initial_state(1)
        once = mixer.step(torch.randn(1, 1, mixer.d_model), start)[1]
        grown = scalars(once) - scalars(start)
        assert mixer.state_size() == (grown if grown else scalars(once))
