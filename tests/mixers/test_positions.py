import torch

from fracdna.mixers.positions import at_end, sequence_positions


def test_positions_start_at_zero_and_go_on_from_a_count():
    x = torch.zeros(2, 4, 3)
    assert sequence_positions(x).tolist() == [0, 1, 2, 3]
    counted = sequence_positions(x, torch.tensor([0, 10]))
    assert counted.tolist() == [[0, 1, 2, 3], [10, 11, 12, 13]]


def test_packed_sequences_start_afresh():
    """Also after an empty one, and for bounds that leave out both ends of the row."""
    bounds = torch.tensor([1, 3, 3, 6])
    positions = sequence_positions(torch.zeros(1, 8, 3), cu_seqlens=bounds)
    assert positions[1:6].tolist() == [0, 1, 0, 1, 2]


def test_rows_end_where_their_lengths_say():
    before, x = torch.tensor([[-1.0], [-2.0]]), torch.tensor([[[1.0], [2.0]], [[3.0], [4.0]]])
    assert at_end(before, x, None).tolist() == [[2.0], [4.0]]
    assert at_end(before, x, torch.tensor([0, 1])).tolist() == [[-1.0], [3.0]]
    assert at_end(before, x[:, :0], None).tolist() == [[-1.0], [-2.0]]
    assert at_end(before, x.bfloat16(), None).dtype == torch.float32
