import csv
import json
import math
from dataclasses import fields

import pytest
import torch
from models import model_config
from omegaconf import OmegaConf

from fracdna import cli
from fracdna.model.checkpoint import build_model, description
from fracdna.training.curve import CurvePoint

HOSTILE = "<script>alert(1)</script>\"&'<b>$x_1$ </script> Ω漢\x07"
LENGTHS = (1024, 2048, 4096)


@pytest.fixture
def hostile():
    """A name that does harm where it is taken for more than text."""
    return HOSTILE


@pytest.fixture(scope="session")
def write_run():
    """Write a folder as `fracdna train` leaves it; checkpoints where a model is given."""

    def write(folder, *, rows=12, complete=True, mixer="frac", checkpoint=False, **config):
        folder.mkdir(parents=True)
        model = model_config(mixer, "model.num_layers=2")
        plain = {
            "model": model,
            "data": {"length": 1024},
            "steps": rows * 10,
            "seed": 3,
            "output": str(folder),
        } | config
        OmegaConf.save(OmegaConf.create(plain), folder / "config.yaml")
        header = [field.name for field in fields(CurvePoint)]
        with (folder / "metrics.csv").open("w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(header)
            for row in range(1, rows + 1):
                nll = 1.3 + 0.5 / row
                gap = [""] * (len(header) - 11)
                at = [10 * row, 10_240 * row, 0.1 * row, 7.0 * row]
                trained = [900.0 + row, 1e-3 / row, 10_000, nll, math.exp(nll)]
                writer.writerow([*at, *trained, "", "", *gap])
                if row % 4 == 0:
                    valid = [nll + 0.01, math.exp(nll + 0.01)]
                    writer.writerow([*at, "", "", "", "", "", *valid, *gap])
        if complete:
            summary = {"steps": rows * 10, "best_validation_nll": 1.35, "complete": True}
            (folder / "summary.json").write_text(json.dumps(summary))
        if checkpoint:
            torch.manual_seed(5)
            network = build_model(model)
            with torch.no_grad():
                for name, weight in network.named_parameters():
                    if "dynamics.bias" in name:
                        weight.copy_(torch.linspace(-1, 1, len(weight)))
            state = {f"model.{name}": weight for name, weight in network.state_dict().items()}
            (folder / "checkpoints").mkdir()
            content = {"fracdna": description(network), "state_dict": state}
            torch.save(content, folder / "checkpoints" / "best.ckpt")
        return folder

    return write


@pytest.fixture(scope="session")
def write_evaluation():
    """Write a folder as `fracdna evaluate` leaves it, with every table."""

    def write(folder, networks, *, manifest="m", classes=("exons",), shift=0.0, counts=True):
        """networks: name to its nats per base at 1,024."""
        folder.mkdir(parents=True)
        references = (
            {f"markov-{order}": 1.36 - 0.01 * order for order in range(3)} if counts else {}
        )
        models = networks | references
        table = [
            row
            for model, nll in models.items()
            for row in _table_rows(model, nll + shift, classes, model in networks)
        ]
        differences = [
            {
                "model": a, "minus": b, "curve": "tiling", "strand": "forward", "part": "all",
                "group": "all", "length": n, "bases": 90_000, "nll_nats": value,
                "low": value - 0.001, "high": value + 0.001,
            }
            for place, a in enumerate(networks)
            for b in [*list(networks)[place + 1 :], *(["markov-2"] if counts else [])]
            for n in LENGTHS
            for value in [models[a] - models[b] - 1e-6 * n]
        ]  # fmt: skip
        write_table(folder / "table.csv", table)
        write_table(folder / "differences.csv", differences)
        for name, rows in (("positions", _positions), ("gains", _gains), ("streams", _streams)):
            found = [row for model in networks for row in rows(model, models[model])]
            write_table(folder / f"{name}.csv", found)
        result = {
            "models": {
                name: {
                    "checkpoint": f"elsewhere/{place}/checkpoints/best.ckpt",
                    "weights": f"hash-{place}-{nll}",
                    "trained_on_length": 1024,
                    "parameters": 139_112 + place,
                    "state_scalars": 9728,
                }
                for place, (name, nll) in enumerate(networks.items())
            },
            "genome": "g",
            "split": "split test",
            "device": "cpu",
            "classes": {"gc_share_of_fifths": {"1": [0.331, 0.4004]}},
            "without_gains": ["no gains of <other>: its training length is unknown"],
            "regions": {"count": 5, "width": 4096, "manifest": manifest},
            "complete": True,
        }
        (folder / "result.json").write_text(json.dumps(result))
        return folder

    return write


def write_table(path, rows):
    """A CSV file with the columns of its first row."""
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows({k: "" if v is None else v for k, v in row.items()} for row in rows)


def _table_rows(model, nll, classes, network):
    groups = [("all", "all"), ("chromosome", "chrA"), ("chromosome", "chrB")]
    groups += [("soft_mask", "inside"), ("soft_mask", "outside"), ("gc", "1"), ("gc", "5")]
    groups += [(name, side) for name in classes for side in ("inside", "outside")]
    curves = ("tiling", "fixed") if network else ("tiling",)
    for curve in curves:
        for part, group in groups:
            for place, length in enumerate(LENGTHS):
                value = nll - 0.004 * place if network else nll
                yield {
                    "model": model, "curve": curve, "strand": "forward", "part": part,
                    "group": group, "length": length, "bases": 90_000, "nll_nats": value,
                    "bits_per_base": value / math.log(2), "perplexity": math.exp(value),
                    "perplexity_low": None if group == "5" else math.exp(value) - 0.01,
                    "perplexity_high": None if group == "5" else math.exp(value) + 0.01,
                    "perplexity_acgt": math.exp(value),
                }  # fmt: skip


def _positions(model, nll):
    for bucket in range(1, 12):
        value = math.exp(nll + 0.02 / bucket)
        yield {
            "model": model, "strand": "forward", "context_from": 2**bucket // 2,
            "context_to": 2**bucket - 1, "bases": 2**bucket * 500, "nll_nats": math.log(value),
            "perplexity": value, "perplexity_low": value - 0.01, "perplexity_high": value + 0.01,
        }  # fmt: skip


def _gains(model, nll):
    for bucket in range(11, 14):
        yield {
            "model": model, "reset_length": 1024, "context_from": 2**bucket // 2,
            "context_to": 2**bucket - 1, "bases": 5000, "nll_reset": nll + 0.01, "nll_carried": nll,
            "gain_nats": 0.01, "gain_low": 0.005, "gain_high": 0.015,
        }  # fmt: skip


def _streams(model, nll):
    for block in range(6):
        empty = block == 2  # nothing but N
        yield {
            "model": model, "contig": "chrA", "start": block * 10**6, "end": (block + 1) * 10**6,
            "bases": 0 if empty else 10**6, "nll_nats": None if empty else nll,
            "nll_reset": None if empty else nll + 0.01,
            "perplexity": None if empty else math.exp(nll + 0.001 * block),
            "perplexity_reset": None if empty else math.exp(nll + 0.01),
        }  # fmt: skip


@pytest.fixture(scope="session")
def full_report(tmp_path_factory, write_run, write_evaluation):
    """A report of two runs, one of them opened and named to do harm, and their evaluation."""
    folder = tmp_path_factory.mktemp("report")
    runs = [
        write_run(folder / "a" / "frac", checkpoint=True),
        write_run(folder / "b" / "frac", mixer="attention", complete=False),
    ]
    results = write_evaluation(
        folder / "results", {"first": 1.30, HOSTILE: 1.32}, classes=("exons", HOSTILE)
    )
    words = [*map(str, [*runs, results]), f"output={folder / 'page'}", "title=small models"]
    assert cli.run(["report", *words]) == cli.FINE
    return folder / "page"
