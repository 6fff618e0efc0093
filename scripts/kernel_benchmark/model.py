"""A training step of dna_7m with FRAC, as `fracdna train experiment=dna_7m` takes it.

Forward, loss, backward, clipping and AdamW in bfloat16 autocast on random bases, 65,536 bases a
step in one batch, for several windows: with the passes replayed from CUDA graphs, as training has
them on one GPU, as Python launches them, and compiled. The time of each part comes from
torch.profiler, which does not know what the kernels of a graph were launched for. This part alone
needs hydra-core, omegaconf, pyfaidx, biopython, pytorch-lightning and torchmetrics.
"""

import gc
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import torch
from kernel_benchmark import floors
from kernel_benchmark.inputs import MODES
from kernel_benchmark.kernel_parts import OUTSIDE, times_by_part
from kernel_benchmark.report import Row
from kernel_benchmark.run import Run, reason
from kernel_benchmark.timing import measure
from kernel_benchmark.worker import collect
from torch import Tensor, nn

BASES = 65_536
WINDOWS = (1024, 4096, 16384, 65536)
PROFILED = 3  # steps
Step = Callable[[], Any]


def model_rows(run: Run, script: str) -> Iterator[Row]:
    """All windows eager and from graphs, then compiled, in a process with a time limit."""
    try:
        import fracdna.training.language_modelling  # noqa: F401
    except ImportError as error:
        yield {"note": f"not available: {error}"}
        return
    yield from step_rows(run, compiled=False)
    limit = run.limits["compile"]
    if limit <= 0:
        return
    quick = ["--quick"] if run.quick else []
    arguments = ["--worker", "compiled", "--copy-rate", str(run.copy_rate), *quick]
    rows, missing = collect(script, arguments, limit)
    yield from rows
    if missing:
        yield {"mode": "compiled", "note": missing}


def step_rows(run: Run, compiled: bool) -> Iterator[Row]:
    """One row per window and mode."""
    for window in (WINDOWS[0], WINDOWS[-1]) if run.quick else WINDOWS:
        for mode in ("compiled",) if compiled else ("eager", "graphs"):
            row: Row = {"window": window, "mode": mode}
            torch.compiler.reset()
            try:
                yield row | _step_row(run, window, mode)
            except Exception as error:  # of a compiler, say: the other rows are still measured
                yield row | {"note": reason(error)}
            gc.collect()  # a model holds itself in circles, and its graphs their memory
            torch.cuda.empty_cache()


def _step_row(run: Run, window: int, mode: str) -> Row:
    """Time, memory and, but for graphs, parts of a step."""
    torch.manual_seed(0)
    model, step = training_step(window, mode)
    for _ in range(3):  # the first allocates the optimizer's state
        step()
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    step()
    torch.cuda.synchronize()
    # what a graph works on between its buffers is reserved for it, and counts nowhere else
    peak = torch.cuda.max_memory_reserved if mode == "graphs" else torch.cuda.max_memory_allocated
    row = {"peak GiB": peak() / 2**30}
    timing = measure([step], run.budget_s, graphs=False)
    parts = profiled(step)
    row = {**timing.row(), "Mbases/s": BASES / timing.ms / 1e3, **row}
    row["kernels ms"] = sum(parts.values())
    return row if mode == "graphs" else row | _part_columns(model, parts, run.copy_rate)


def _part_columns(model: nn.Module, parts: dict[str, float], copy_rate: float) -> Row:
    """Milliseconds of each part, and of those outside products and scan beside their floor."""
    outside = sum(parts[name] for name in OUTSIDE)
    floor = floor_bytes(model) / copy_rate * 1e3
    return {
        **{f"{name} ms": time for name, time in parts.items()},
        "outside ms": outside,
        "outside floor ms": floor,
        "outside/floor": outside / floor,
        "goal": f"<= {floors.LAYER_GOAL}",
        "met": outside <= floors.LAYER_GOAL * floor,
    }


def training_step(
    window: int,
    mode: str,
    device: str = "cuda",
    *,
    overrides: Sequence[str] = ("experiment=dna_7m", "mixer=frac"),
    bases: int | None = None,
) -> tuple[nn.Module, Step]:
    """The model and a step on a batch of windows of random bases.

    Args:
        window: bases of a window.
        mode: "eager", "graphs" (an error where they cannot be), "auto" (eager there) or "compiled".
        device: where it runs.
        overrides: words of `fracdna train` that choose the model.
        bases: of the batch; None: BASES.
    """
    from hydra.utils import instantiate
    from omegaconf import OmegaConf

    from fracdna.configuration import compose_configuration
    from fracdna.model.checkpoint import build_model
    from fracdna.training.graphs import GraphedPass
    from fracdna.training.language_modelling import LanguageModelling
    from fracdna_prep.vocabulary import DNA

    config = compose_configuration("train", list(overrides))
    model = build_model(OmegaConf.to_container(config.model, resolve=True))
    graphed = partial(GraphedPass, required=mode == "graphs")
    module = LanguageModelling(
        model,
        optimizer=instantiate(config.optimizer.algorithm, _convert_="all"),
        weight_decay=config.optimizer.weight_decay,
        steps=config.steps,
        warmup=config.schedule.warmup,
        final=config.schedule.final,
        soft_mask_weight=config.soft_mask_weight,
        graphs=None if mode in ("eager", "compiled") else graphed,
    ).to(device)
    optimizer = module.configure_optimizers()["optimizer"]
    if mode == "compiled":
        model.compile(dynamic=False)
    letters = torch.tensor(sorted(DNA.bases), device=device)
    shape = (bases or BASES) // window, window
    ids = letters[torch.randint(len(letters), shape, device=device)]

    def step() -> Tensor:
        with torch.autocast(device, torch.bfloat16):
            loss = module.training_step({"ids": ids}, 0)
        # between the passes, as Lightning does it
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), config.trainer.gradient_clip_val)
        optimizer.step()
        return loss.detach()

    return model, step


def profiled(step: Step) -> dict[str, float]:
    """Milliseconds of device time of each part of a step."""
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as profiler:
        for _ in range(PROFILED):
            step()
        torch.cuda.synchronize()
    times = times_by_part(profiler.events())
    return {part: time / 1e3 / PROFILED for part, time in times.items()}


def floor_bytes(model: nn.Module) -> int:
    """Bytes of all layers' operators outside products and scan, forward and backward, per step.

    The stream's dtype is asked of the model: in autocast it may be float32.
    """
    mixers = [block.mixer for block in model.backbone.blocks]
    size = _stream_size(model)
    layers = [
        floors.layer_bytes(
            mixer.d_model, mixer.num_heads * mixer.value_width, mixer.num_heads, MODES, size
        )
        for mixer in mixers
    ]
    return BASES * sum(part.both for layer in layers for part in layer.values())


def _stream_size(model: nn.Module) -> int:
    """Bytes of an element of the residual stream."""
    sizes: list[int] = []
    ids = torch.zeros(1, 64, dtype=torch.long, device="cuda")
    with torch.no_grad(), torch.autocast("cuda", torch.bfloat16):
        model.backbone(ids, observe=lambda _, x: sizes.append(x.element_size()))
    return max(sizes)
