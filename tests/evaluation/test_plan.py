"""What is read for which curve, and what is refused."""

import pytest
from omegaconf import OmegaConf

from fracdna.configuration import compose_configuration
from fracdna.evaluation.plan import check_reset, make_plan, reset_length
from fracdna_prep.errors import InputError


def plan(**options):
    config = compose_configuration("evaluate", ())
    OmegaConf.update(config, "lengths", [64, 256, 1024])
    for name, value in options.items():
        OmegaConf.update(config, name, value)
    return make_plan(config)


@pytest.mark.parametrize(
    ("curves", "reset", "passes"),
    [
        (["tiling"], None, {64: 1024, 256: 1024, 1024: 1024}),
        (["fixed"], None, {256: 256, 1024: 1024}),
        (["carried"], None, {1024: 1024}),
        (["carried"], 512, {512: 1024, 1024: 1024}),
        (["fixed", "carried"], 256, {256: 1024, 1024: 1024}),
        (["tiling", "fixed", "carried"], 128, dict.fromkeys((64, 128, 256, 1024), 1024)),
    ],
)
def test_every_base_is_read_once_a_length_and_no_more_than_needed(curves, reset, passes):
    """Bases of a region by length of the windows: the curves share their passes."""
    assert plan(curves=curves, target=200).passes(reset) == passes


def test_lengths_below_the_target_are_left_out_of_the_fixed_curve():
    wanted = plan(target=256, strands="both")
    assert wanted.lengths_of("fixed") == (256, 1024)
    assert wanted.lengths_of("tiling") == (64, 256, 1024)
    assert wanted.shown_strands == ("forward", "reverse", "average")
    assert plan(target=5000).lengths_of("fixed") == ()


@pytest.mark.parametrize(
    ("trained", "chosen", "reset", "words"),
    [
        (256, None, 256, None),
        (256, 128, 128, None),
        (None, 128, 128, None),
        (None, None, None, "does not say what length"),
        (300, None, None, "300, does not divide the 1,024"),
        (256, 300, None, "reset=, 300, does not divide"),
        (1024, None, None, "1,024, is not below the 1,024"),
        (2048, None, None, "2,048, is not below"),
    ],
)
def test_a_control_divides_the_regions_or_there_is_a_reason(trained, chosen, reset, words):
    found, sentence = reset_length("m", trained, chosen, 1024)
    assert found == reset
    assert sentence is None if words is None else words in sentence


def test_options_that_make_no_curve_are_refused():
    for options, words in (
        ({"curves": ["tilling"]}, "choose one or more of tiling, fixed, carried"),
        ({"curves": []}, "choose one or more"),
        ({"strands": "reverse"}, "choose forward or both"),
        ({"target": 0}, "target=0"),
        ({"curves": ["fixed"], "target": 2000}, "none reaches the 2,000 bases"),
    ):
        with pytest.raises(InputError, match=words):
            plan(**options)
    assert check_reset(None) is None
    assert check_reset(5) == 5
    for reset in (0, "1K", True, 1.5):
        with pytest.raises(InputError, match="needs a whole number"):
            check_reset(reset)
