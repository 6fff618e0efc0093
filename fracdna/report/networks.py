"""Networks of training runs, opened: their size, and what their memories are like."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from fracdna.benchmarks.spectrum import Orders, Spectrum, fractional_orders, layer_spectra
from fracdna.model.checkpoint import build_model, load_model
from fracdna.model.heads import LanguageModel
from fracdna.pictures import bases
from fracdna.report.axes import Axis, decimal, short
from fracdna.report.charts import Chart, Curve, colour_of, shade_of
from fracdna.report.folders import TrainingRun
from fracdna.report.sections import Block, Section
from fracdna_prep.errors import InputError

BEFORE = "before training"
RANK = Axis("rank, slowest to fastest")
TIME_SCALE = Axis("time scale (positions)", "log10", short)
ORDERS = {
    "alpha": ("Fractional order", Axis("alpha"), "The memory of one head fades as t^(-alpha)."),
    "lam": ("Relaxation strength", Axis("lambda", "log10"), "How strongly a memory relaxes."),
    "clock": (
        "Clock",
        Axis("u (per position)", "log10", decimal),
        "How far the clock moves at each position: all time scales are divided by it.",
    ),
}


@dataclass(frozen=True)
class Memories:
    """What the layers of a model are set to at an input of 0."""

    spectra: Sequence[Spectrum] = ()
    orders: Sequence[Orders] = ()


@dataclass(frozen=True)
class Network:
    """A run's network.

    Attributes:
        parameters: how many; None where it could not be built.
        state_scalars: carried per sequence; per position where a cache grows.
        before: as its configuration and seed make it.
        after: its best weights; None where there are none yet.
        problem: what cannot be read, and why.
    """

    parameters: int | None = None
    state_scalars: int | None = None
    before: Memories = field(default_factory=Memories)
    after: Memories | None = None
    problem: str | None = None


def open_network(run: TrainingRun) -> Network:
    """Build the network of a run as it began, and load its best weights."""
    try:
        first = _untrained(run)
        facts = {
            "parameters": sum(p.numel() for p in first.parameters()),
            "state_scalars": first.backbone.state_size(),
            "before": _memories(first),
        }
    except InputError as error:
        return Network(problem=f"its network cannot be built: {error}")
    if not run.checkpoint.is_file():
        return Network(**facts)
    try:
        return Network(**facts, after=_memories(load_model(run.checkpoint)))
    except InputError as error:
        return Network(**facts, problem=str(error))


def _untrained(run: TrainingRun) -> LanguageModel:
    """The weights that training began with: the seed is set before a model is built."""
    if "model" not in run.config:
        raise InputError(f"{run.folder}/config.yaml holds no model")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(run.config.get("seed", 0))
        return build_model(run.config["model"]).eval()


def _memories(model: LanguageModel) -> Memories:
    """Spectra and orders of a model."""
    return Memories(layer_spectra(model), fractional_orders(model))


class NetworkSections:
    """Sections of opened networks.

    Args:
        networks: by the names of their runs.
        places: number of each run's colour.
    """

    def __init__(self, networks: dict[str, Network], places: dict[str, int]) -> None:
        self.networks, self.places = networks, places

    def sections(self) -> list[Section]:
        """Decay spectra and FRAC's orders, where there are any."""
        made = [
            Section("spectra", "Decay spectra", self._spectra()),
            Section("orders", "FRAC's fractional orders", self._orders()),
        ]
        return [section for section in made if section.blocks]

    def _spectra(self) -> list[Block]:
        """A chart for each network and each place in a sequence."""
        note = (
            "How long each rate of decay keeps a share 1/e when the input is 0, slowest first. "
            "Solid: the best weights, a line for each layer; dashed: before training."
        )
        charts: list[Block] = []
        for name, network in self.networks.items():
            shown = (network.after or network.before).spectra
            for place, time in enumerate(shown[0].times if shown else ()):
                title = f"Time scales of {name}" + (f" at position {bases(time)}" if place else "")
                key, lines = f"spectra-{len(charts) + 1}", self._lines(network, place)
                charts.append(Chart(key, title, note, RANK, TIME_SCALE, lines))
        return charts

    def _lines(self, network: Network, place: int) -> list[Curve]:
        """Layers after training, and before: of equal ones one."""
        lines = []
        learned = network.after.spectra if network.after else ()
        for number, spectrum in enumerate(learned):
            scales = spectrum.scales[place].tolist()
            name = f"layer {spectrum.layer}, {spectrum.mixer}"
            colour = shade_of(number, len(learned))
            lines.append(Curve(name, _ranks(len(scales)), scales, colour=colour))
        begun = dict.fromkeys(tuple(s.scales[place].tolist()) for s in network.before.spectra)
        # last, so that what has hardly moved does not hide where it began
        return lines + [
            Curve(BEFORE, _ranks(len(scales)), scales, dashed=True, dots=False) for scales in begun
        ]

    def _orders(self) -> list[Block]:
        """A chart for each quantity, all networks that have FRAC layers."""
        with_frac = {name: n for name, n in self.networks.items() if n.before.orders}
        if not with_frac:
            return []
        layers = max(orders.layer for n in with_frac.values() for orders in n.before.orders)
        axis = Axis("layer", "names", names=tuple(map(str, range(1, layers + 1))))
        return [
            Chart(
                f"orders-{key}", f"{title} per layer",
                f"{note} Dots: mean of the heads at an input of 0; whiskers: lowest to highest "
                "head. Rings: before training.",
                axis, y, [c for name in with_frac for c in self._heads(name, key)],
                ends=("lowest head", "highest head"),
            )
            for key, (title, y, note) in ORDERS.items()
        ]  # fmt: skip

    def _heads(self, name: str, key: str) -> list[Curve]:
        """One quantity of a network's layers, before and after."""
        network, colour = self.networks[name], colour_of(self.places[name])
        curves = [_heads(f"{name}, {BEFORE}", network.before, key, colour, dashed=True)]
        if network.after:
            curves.append(_heads(name, network.after, key, colour, dashed=False))
        return curves


def _heads(name: str, memories: Memories, key: str, colour: str, dashed: bool) -> Curve:
    """Mean, lowest and highest head of each layer."""
    values = [getattr(orders, key) for orders in memories.orders]
    return Curve(
        name, [orders.layer - 1 for orders in memories.orders],
        [v.mean().item() for v in values], [v.min().item() for v in values],
        [v.max().item() for v in values], colour=colour, dashed=dashed,
    )  # fmt: skip


def _ranks(count: int) -> list[float]:
    """0 to 1, as many as there are."""
    return torch.linspace(0, 1, count).tolist()
