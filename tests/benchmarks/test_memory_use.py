"""How FRAC's memories are used: what is measured is what the gates do, base by base."""

import csv
import json
import math
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from matplotlib.image import imread
from models import lively, model_config, tiny_model

from fracdna.benchmarks.memory_use import measure_memory_use
from fracdna.benchmarks.memory_use_figure import memory_use_figure
from fracdna.benchmarks.memory_use_result import fitted_slope, half_lag
from fracdna.benchmarks.memory_use_tally import GROUPS, NO_GROUP, QUANTITIES, LagPairs, LayerTally
from fracdna.mixers.frac import Frac
from fracdna.model.checkpoint import build_model, description
from fracdna.outcomes import NotFinite
from fracdna_kernels import decay_attention, frac_scan
from fracdna_prep.errors import InputError
from fracdna_prep.genome import GenomeStore
from fracdna_prep.interval import Interval
from fracdna_prep.vocabulary import DNA

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "scripts"))

import frac_memory

LENGTH = 64
REGIONS = [Interval("c", start, start + LENGTH) for start in range(0, 5 * LENGTH, LENGTH)]


@pytest.fixture(scope="module")
def letters():
    """Lower case is A and T alone, upper case C and G alone, with a run of N of either case."""
    random = np.random.default_rng(1)
    lower = np.repeat(random.random(40) < 0.5, 8)
    bases = np.where(lower, random.choice(list("at"), 320), random.choice(list("CG"), 320))
    bases[100:110], bases[110:120] = "n", "N"
    return "".join(bases)


@pytest.fixture(scope="module")
def store(letters, tmp_path_factory):
    folder = tmp_path_factory.mktemp("genome")
    more = "".join(np.random.default_rng(2).choice(list("ACGT"), 1024))
    (folder / "g.fa").write_text(f">c\n{letters}\n>long\n{more}\n>unknown\n{'N' * 64}\n")
    return GenomeStore.build(folder / "g.fa", folder / "store")


def small(*overrides):
    """Two layers in float64, with parameters off their initial values."""
    torch.manual_seed(3)
    return tiny_model("frac", "model.num_layers=2", *overrides, dtype=torch.float64)


def measure(model, store, regions=REGIONS, **options):
    return measure_memory_use(model, store, regions, progress=False, **options)


def by_key(use):
    return {(u.layer, u.head, u.group): u for u in use.uses}


def logit(value, low, high):
    share = (value - low) / (high - low)
    return math.log(share / (1 - share))


def set_by_hand(mixer, heads):
    """Gates that no input changes: delta, alpha and lam of each head, no routing residuals."""
    deltas, alphas, lams = zip(*heads, strict=True)
    logits = [math.log(math.expm1(x)) for x in deltas]
    logits += [logit(x, *mixer.routing["alpha_range"]) for x in alphas]
    logits += [logit(x, *mixer.routing["lam_range"]) for x in lams]
    with torch.no_grad():
        mixer.dynamics.weight.zero_()
        mixer.dynamics.bias.copy_(torch.tensor(logits, dtype=torch.float64))
        mixer.dt_bias.zero_()
        mixer.routes.weight.zero_()


def test_hand_set_orders_and_clocks_are_recovered(store):
    """Every moment and quantile of a constant is the constant; time scales are tau / u."""
    model = small()
    heads = [(0.2, 0.5, 0.6), (0.7, 0.3, 2.5)]
    set_by_hand(model.backbone.blocks[1].mixer, heads)
    found = by_key(measure(model, store))
    for head, (delta, alpha, lam) in enumerate(heads, start=1):
        u = delta * lam ** (1 / alpha)
        for group in GROUPS:
            use = found[2, head, group]
            expected = {"delta": delta, "alpha": alpha, "lam": lam, "log10_u": math.log10(u)}
            for name, value in expected.items():
                values = getattr(use, name)
                # what is constant varies by what float32 of the biases and float64 round
                assert (values.mean, *values.quantiles) == pytest.approx([value] * 6, rel=1e-6)
                assert values.sd < 1e-9
                assert values.counts == (use.bases,)
            tau = 131072 ** (np.arange(16) / 15)
            assert use.time_scales == pytest.approx(tau / u, rel=1e-6)
            assert use.half_lives == pytest.approx(math.log(2) * tau / u, rel=1e-6)
            prior = tau**-alpha / (tau**-alpha).sum()
            assert use.read == pytest.approx(prior, rel=1e-5)
            assert use.write == pytest.approx(prior, rel=1e-5)
            assert use.written == pytest.approx(prior * -np.expm1(-u / tau), rel=1e-5)
            assert use.read_scale == pytest.approx(np.exp(prior @ np.log(tau / u)), rel=1e-5)


@pytest.mark.parametrize(
    ("gain", "at_0", "at_10"), [("dc", 0.0899010, 0.00122555), ("zoh", 0.143443, 0.0128479)]
)
def test_the_response_of_constant_gates_is_the_closed_form(store, gain, at_0, at_10):
    """sum_m c_m w_m gain_m e^(-n / tau_m) at order 1/2 and a clock of 1, as the theory says."""
    model = small(f"model.mixer.gain={gain}")
    for block in model.backbone.blocks:
        set_by_hand(block.mixer, [(1.0, 0.5, 1.0)] * 2)
    use = measure(model, store, [Interval("long", 0, 1024)], targets=40)
    lags = np.array(use.lags)
    assert lags[:12].tolist() == [0, 1, 2, 3, 4, 6, 8, 11, 16, 23, 32, 45]
    assert lags[-1] == 512
    assert use.slope_range == (100, 512)
    tau = 131072 ** (np.arange(16) / 15)
    weight = tau**-0.5 / (tau**-0.5).sum()
    charge = -np.expm1(-1 / tau) * (tau if gain == "zoh" else 1)
    every = np.exp(-np.arange(513)[:, None] / tau) @ (weight**2 * charge)
    assert every[[0, 10]] == pytest.approx([at_0, at_10], rel=1e-5)
    fitted = lags >= 100
    slope = np.polyfit(np.log(lags[fitted]), np.log(every[lags][fitted]), 1)[0]
    for head in ("all", 1, 2):
        found = by_key(use)[2, head, "unique"]
        assert found.response == pytest.approx(every[lags], rel=1e-5)
        assert found.slope == pytest.approx(slope, rel=1e-5)
        assert found.half_lag == np.searchsorted(every.cumsum(), every.sum() / 2)


def test_half_lag_and_slope_need_lags():
    """Between measured lags a response is a power law; without enough of them there is no slope."""
    lags = np.array([0, 1, 2, 4, 8])
    assert half_lag(lags, np.array([1.0, 1, 1, 1, 1])) == 4  # nine in all
    assert half_lag(lags, np.array([5.0, 1, 1, 1, 1])) == 2  # of 13, 7 reach the half
    assert half_lag(lags, np.full(5, np.nan)) is None
    assert fitted_slope(lags, np.ones(5)) is None
    far = np.array([0, 100, 200, 400, 20_000])
    assert fitted_slope(far, np.array([1, 1, 1 / 4, 1 / 16, 1])) == pytest.approx(-2)


VARIANTS = (
    {},
    {"gain": "zoh", "read_prior": False},
    {"fixed_alpha": True},
    {"free_bank": True, "gain": "zoh"},
    {"rho_clamp": True, "delta_range": (1e-4, 1e-2)},
)


@pytest.mark.parametrize("options", VARIANTS, ids=str)
def test_the_response_is_what_the_scan_does_to_an_impulse(options):
    """Random gates: outputs of the operator for a 1 at every place, averaged over pairs by hand."""
    torch.manual_seed(0)
    length = 21
    mixer = lively(Frac(8, num_heads=2, num_modes=5, **options).double())
    dynamics = torch.randn(2, length, (2 + mixer.has_alpha) * 2, dtype=torch.float64)
    mixed = torch.randn(2, length, 16, dtype=torch.float64)
    group = torch.randint(NO_GROUP, len(GROUPS), (2, length))
    lags = LagPairs(length, 9, torch.device("cpu"))
    tally = LayerTally(mixer, lags)
    impulses = torch.eye(length, dtype=torch.float64)[None, :, None].expand(2, -1, 2, -1)
    with torch.no_grad():
        for start, stop in ((0, 8), (8, 9), (9, length)):
            part = dynamics[:, start:stop], mixed[:, start:stop]
            tally.add(part[0], mixer.gates(*part), group[:, start:stop], start)
        tally.end_windows()
        decay, read, write = mixer.gates(dynamics, mixed)
        if mixer.by_mode:
            outputs, _ = decay_attention(read, write, impulses, decay)
        else:
            outputs, _ = frac_scan(impulses, write, read, decay, mixer.log_tau)
    for place, lag in enumerate(lags.lags):
        for number in range(len(GROUPS)):
            pairs = [
                outputs[row, read_at, :, read_at - lag]
                for row in range(2)
                for read_at in np.linspace(0, length - 1, 9).round().astype(int)
                if read_at >= lag
                and group[row, read_at] == number
                and group[row, read_at - lag] != NO_GROUP
            ]
            assert tally.pairs[number, place] == len(pairs)
            if pairs:
                found = tally.response[number, place]
                assert torch.allclose(found, torch.stack(pairs).sum(0), rtol=1e-8, atol=0)


@pytest.mark.parametrize(
    "overrides", [(), ("model.mixer.free_bank=true",), ("model.mixer.fixed_alpha=true",)], ids=str
)
def test_groups_are_told_apart_base_by_base(store, letters, overrides):
    """Means, deviations and histograms of each group are those of its letters alone, without N."""
    model = small(*overrides)
    mixer = model.backbone.blocks[1].mixer
    seen = {}

    def keep(dynamics, mixed):
        seen["dynamics"], seen["gates"] = dynamics, Frac.gates(mixer, dynamics, mixed)
        return seen["gates"]

    mixer.gates = keep
    windows = torch.stack([torch.from_numpy(store.fetch(region)) for region in REGIONS]).long()
    start = torch.full((len(windows), 1), DNA.bos)
    with torch.no_grad():
        model(torch.cat([start, windows[:, :-1]], dim=1))
    del mixer.gates
    found = by_key(measure(model, store))
    assert "gates" not in vars(mixer)
    text = np.array(list(letters)).reshape(-1, LENGTH)[:, :-1]
    decay, read, _ = seen["gates"]
    rates = -decay if mixer.by_mode else decay[..., None] / mixer.log_tau.exp()
    for group, members in {"repeats": "acgt", "unique": "ACGT", "all": "acgtACGT"}.items():
        chosen = torch.from_numpy(np.isin(text, list(members)))
        for head in (1, 2):
            use = found[2, head, group]
            assert use.bases == chosen.sum() > 50
            mine = read[:, 1:, head - 1][chosen].mean(0)
            assert use.read == pytest.approx(mine.tolist(), rel=1e-9)
            slowness = 1 / rates[:, 1:, head - 1][chosen].mean(0)
            assert use.time_scales == pytest.approx(slowness.tolist(), rel=1e-9)
            lam = seen["dynamics"][:, 1:].chunk(2 + mixer.has_alpha, dim=-1)[-1][..., head - 1]
            lam = (0.25 + 3.75 * torch.sigmoid(lam))[chosen]
            assert use.lam.mean == pytest.approx(lam.mean().item(), rel=1e-9)
            assert use.lam.sd == pytest.approx(lam.std(correction=0).item(), rel=1e-6)
            # 2048 bins from 1/4 to 4
            median = np.quantile(lam.numpy(), 0.5, method="inverted_cdf")
            assert use.lam.quantiles[2] == pytest.approx(median, rel=3e-3)
            if not mixer.by_mode:
                u = decay[:, 1:, head - 1][chosen]
                assert use.log10_u.mean == pytest.approx(u.log10().mean().item(), abs=1e-9)
            for name in QUANTITIES:
                assert sum(getattr(use, name).counts) == use.bases
    alphas = {found[2, 1, group].alpha.mean for group in GROUPS}
    assert (alphas == {1.0}) == bool(overrides)


def numbers(value):
    """All numbers of nested plain values."""
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list | tuple):
        return [x for part in value for x in numbers(part)]
    return [] if value is None or isinstance(value, str) else [value]


@pytest.mark.parametrize("mixer", ["frac", "interleaved"])
def test_the_size_of_batches_changes_nothing(store, mixer):
    """Windows one by one, in batches, and in segments that carry the state."""
    torch.manual_seed(5)
    model = tiny_model(mixer, dtype=torch.float64).train()
    whole, *others = (measure(model, store, batch_bases=n) for n in (64, 150, 1000, 19))
    assert model.training
    for other in others:
        assert numbers(other.to_json()) == pytest.approx(numbers(whole.to_json()), rel=1e-7)
    layers = {use.layer for use in whole.uses}
    expected = {n for n, b in enumerate(model.backbone.blocks, 1) if isinstance(b.mixer, Frac)}
    assert layers == expected
    assert measure(model, store) == measure(model, store)


def test_refusals(store):
    """What cannot be measured is refused before a model reads."""
    model = small()
    with pytest.raises(InputError, match="no FRAC layer, its mixers are Attention"):
        measure(tiny_model("attention"), store)
    with pytest.raises(InputError, match=r"regions of \[32, 64\] bases"):
        measure(model, store, [*REGIONS, Interval("c", 0, 32)])
    with pytest.raises(InputError, match=r"regions of \[\] bases"):
        measure(model, store, [])
    with pytest.raises(InputError, match="batch_bases=0"):
        measure(model, store, batch_bases=0)
    with pytest.raises(InputError, match="hold no A, C, G or T"):
        measure(model, store, [Interval("unknown", 0, 64)])
    with torch.no_grad():
        model.backbone.blocks[1].mixer.dt_bias[0] = math.nan
    with pytest.raises(NotFinite, match="layer 2"):
        measure(model, store)


def test_the_picture_shows_both_groups_and_every_layer(store):
    """A shape for each group of each layer, a line for each layer."""
    use = measure(small(), store)
    panels = {axes.get_title().split()[0]: axes for axes in memory_use_figure(use, "title").axes}
    for name in ("fractional", "relaxation", "clock"):
        assert len(panels[name].collections) == 2 * 2 * 2  # and a median each
    lines = [line for line in panels["impulse"].lines if line.get_ls() == "-"]
    expected = by_key(use)
    for layer, line in enumerate(lines, start=1):
        response = np.array(expected[layer, "all", "all"].response)
        assert line.get_xdata() == pytest.approx(use.lags[1:])
        assert line.get_ydata() == pytest.approx(response[1:] / response[0])
    assert len(lines) == 2


def checkpoint(folder, mixer):
    """A checkpoint as training writes it."""
    model = build_model(model_config(mixer, "model.num_layers=1"))
    weights = {f"model.{name}": tensor for name, tensor in model.state_dict().items()}
    path = folder / f"{mixer}.ckpt"
    torch.save({"state_dict": weights, "fracdna": description(model) | {"recipe": {}}}, path)
    return str(path)


def test_the_script_writes_its_files_and_refuses_with_2(prepared, tmp_path, capsys):
    """The whole way, on a genome without lower case; nothing is written for what is refused."""
    where = ["--prepared", str(prepared), "--output", str(tmp_path / "out"), "--device", "cpu"]
    assert frac_memory.main([checkpoint(tmp_path, "attention"), *where]) == 2
    assert "no FRAC layer" in capsys.readouterr().err
    path = checkpoint(tmp_path, "frac")
    assert frac_memory.main([path, *where, "--split", "nowhere"]) == 2
    assert "holds the splits" in capsys.readouterr().err
    assert frac_memory.main([path, *where, "--regions", "0"]) == 2
    assert not (tmp_path / "out").exists()
    assert frac_memory.main([path, *where, "--regions", "3", "--length", "256"]) == 0
    assert "unique" in capsys.readouterr().out
    names = {"memory_use.json", "memory_use.csv", "memory_use.png"}
    assert {file.name for file in (tmp_path / "out").iterdir()} == names
    content = json.loads((tmp_path / "out" / "memory_use.json").read_text())
    assert (content["length"], content["windows"], content["split"]) == (256, 3, "test")
    with (tmp_path / "out" / "memory_use.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [row["group"] for row in rows] == ["all"] * 3 + ["unique"] * 3
    for row, kept in zip(rows, content["uses"], strict=True):
        assert int(row["bases"]) == 3 * 255
        assert float(row["alpha_mean"]) == kept["alpha"]["mean"]
        assert float(row["alpha_q95"]) == kept["alpha"]["quantiles"][-1]
        assert float(row["time_scale_16"]) == kept["time_scales"][-1]
    assert imread(tmp_path / "out" / "memory_use.png")[..., :3].std() > 0.01


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_gpu_measures_the_same(store):
    """Means, time scales and responses of the fused forms, twice with the same bits."""
    torch.manual_seed(3)
    model = tiny_model("frac")
    on_cpu = by_key(measure(model, store))
    model.cuda()
    on_gpu = measure(model, store)
    assert on_gpu == measure(model, store)
    for key, use in by_key(on_gpu).items():
        for name in ("time_scales", "read", "write", "response"):
            assert getattr(use, name) == pytest.approx(getattr(on_cpu[key], name), rel=1e-2)
        assert use.log10_u.mean == pytest.approx(on_cpu[key].log10_u.mean, abs=1e-3)
