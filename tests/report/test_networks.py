"""What layers of a network are set to, before and after training."""

import math

import pytest
import torch
from models import model_config, tiny_model

from fracdna.benchmarks.spectrum import fractional_orders, layer_spectra
from fracdna.model.checkpoint import build_model
from fracdna.report.folders import open_folders
from fracdna.report.networks import BEFORE, NetworkSections, open_network


@pytest.mark.parametrize("options", [(), ("model.mixer.fixed_alpha=true",)])
def test_orders_are_those_of_the_layer_s_gates(options):
    """The clock is what the gates give at an input of 0; alpha and lam stay within their bounds."""
    model = tiny_model("frac", "model.num_layers=2", *options)
    found = fractional_orders(model)
    assert [orders.layer for orders in found] == [1, 2]
    for orders, block in zip(found, model.backbone.blocks, strict=True):
        mixer = block.mixer
        inputs = torch.zeros(1, 1, mixer.skip.numel())
        clock = mixer.gates(mixer.dynamics(inputs), inputs)[0][0, 0]
        assert torch.allclose(orders.clock, clock, rtol=1e-5)
        assert ((orders.lam > 0.25) & (orders.lam < 4)).all()
        fixed = (orders.alpha == 1).all()
        assert fixed if options else ((orders.alpha > 0.1) & (orders.alpha < 0.9)).all()


def test_untrained_orders_are_in_the_middle_of_their_bounds():
    """alpha 0.5, lam 2.125, the clock ln 2 * 2.125^2, in every head."""
    (orders, *_) = fractional_orders(build_model(model_config("frac")))
    assert torch.allclose(orders.alpha, torch.tensor(0.5))
    assert torch.allclose(orders.lam, torch.tensor(2.125))
    assert torch.allclose(orders.clock, torch.tensor(math.log(2) * 2.125**2))


def test_other_layers_have_no_orders():
    assert fractional_orders(tiny_model("attention")) == []
    assert layer_spectra(tiny_model("attention")) == []


@pytest.fixture(scope="module")
def opened(tmp_path_factory, write_run):
    """A trained run of FRAC, one not begun, and one of a tapered mixer."""
    folder = tmp_path_factory.mktemp("runs")
    write_run(folder / "trained", checkpoint=True)
    write_run(folder / "new")
    write_run(folder / "tapered", mixer="post_gla")
    write_run(folder / "attention", mixer="attention")
    runs = open_folders([str(path) for path in sorted(folder.iterdir())], None)
    return {run.name: open_network(run) for run in runs}


def test_a_network_is_shown_as_it_began_and_as_it_is(opened):
    """Both curves, the trained one from the checkpoint, with the values of both."""
    network = opened["trained"]
    assert network.problem is None
    assert network.parameters == sum(
        p.numel() for p in build_model(model_config("frac", "model.num_layers=2")).parameters()
    )
    sections = NetworkSections({"trained": network}, {"trained": 0}).sections()
    assert [section.key for section in sections] == ["spectra", "orders"]
    spectra, alpha = sections[0].charts()[0], sections[1].charts()[0]
    assert [c.name for c in spectra.curves] == ["layer 1, Frac", "layer 2, Frac", BEFORE]
    before, after = alpha.curves
    assert before.y == pytest.approx([0.5, 0.5])
    # biases from -1 to 1: the middle third of six are those of alpha
    logits = torch.linspace(-1, 1, 6)[2:4]
    expected = 0.1 + 0.8 * torch.sigmoid(logits)
    assert after.y == pytest.approx([expected.mean().item()] * 2)
    assert after.low == pytest.approx([expected[0].item()] * 2)


def test_without_a_checkpoint_only_the_beginning_is_shown(opened):
    """At every place in a sequence where a spectrum differs; nothing of a network without rates."""
    assert opened["new"].after is None
    assert opened["new"].problem is None
    sections = NetworkSections(opened, dict.fromkeys(opened, 0)).sections()
    titles = [chart.title for chart in sections[0].charts()]
    assert titles[0] == "Time scales of new"
    assert titles[1:4] == [f"Time scales of tapered{at}" for at in
                           ("", " at position 1K", " at position 16K")]  # fmt: skip
    assert not any("attention" in title for title in titles)


def test_the_beginning_depends_on_the_seed_alone(tmp_path, write_run):
    """Random time steps are drawn as training drew them, and the generator is left alone."""
    write_run(tmp_path / "run", mixer="post_mamba2", seed=7)
    (run,) = open_folders([str(tmp_path / "run")], None)
    torch.manual_seed(1)
    first, state = open_network(run), torch.get_rng_state()
    second = open_network(run)
    assert torch.equal(torch.get_rng_state(), state)
    torch.manual_seed(7)
    expected = layer_spectra(build_model(run.config["model"]))
    for spectra in (first.before.spectra, second.before.spectra):
        for one, other in zip(spectra, expected, strict=True):
            assert torch.equal(one.scales, other.scales)


def test_a_configuration_that_builds_nothing_is_told(tmp_path, write_run):
    write_run(tmp_path / "run", model={"d_model": "wide"})
    (run,) = open_folders([str(tmp_path / "run")], None)
    assert "cannot be built" in open_network(run).problem
