"""Passes replayed from CUDA graphs: on a device, and the decisions around them anywhere."""

import copy
import csv
import os
import re
import signal
import warnings
import weakref
from functools import partial

import pytest
import torch
from models import tiny_model
from numerics import relative_error
from pytorch_lightning.plugins.environments import LightningEnvironment
from pytorch_lightning.strategies import DDPStrategy, SingleDeviceStrategy

from fracdna import cli
from fracdna.data.objectives import IGNORED
from fracdna.model.checkpoint import load_model, model_hash
from fracdna.training import run
from fracdna.training.graphs import CapturedPass, CudaRecorder, GraphedPass, choose_graphs
from fracdna.training.language_modelling import LanguageModelling, batch_loss
from fracdna.training.monitor import Monitor
from fracdna_prep.errors import InputError

CPU = torch.device("cpu")
needs_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


class Rerun:
    """Records without CUDA: a replay computes anew and writes into the tensors of the recording.

    So what was read from a replay is overwritten by the next one, as on a device.
    """

    def __init__(self, device):
        self.device = device

    def warm_up(self, work):
        return work()

    def record(self, work):
        recorded = work()

        @torch.enable_grad()
        def replay():
            for old, new in zip(recorded or (), work() or (), strict=True):
                old.copy_(new)

        return recorded, replay


def training(model, graphs=None, soft_mask_weight=0.5):
    return LanguageModelling(
        model,
        optimizer=partial(torch.optim.AdamW, lr=1e-3),
        weight_decay=0.1,
        steps=10,
        warmup=0.0,
        final=1.0,
        soft_mask_weight=soft_mask_weight,
        graphs=graphs,
    )


def batches(sizes, device=CPU):
    """Windows of random bases with a soft mask, (rows, length) each."""
    generator = torch.Generator().manual_seed(1)
    return [
        {
            "ids": torch.randint(7, 12, size, generator=generator).to(torch.uint8).to(device),
            "soft_mask": (torch.rand(size, generator=generator) < 0.5).to(device),
        }
        for size in sizes
    ]


def trained(model, given, graphs=None, *, accumulate=1, to_none=True, low=False, clip=1.0):
    """Losses, gradient norms, weights and likelihood of steps in the order that Lightning has."""
    model = copy.deepcopy(model).train()
    module = training(model, graphs)
    module.to(given[0]["ids"].device)
    optimizer = module.configure_optimizers()["optimizer"]
    losses, norms = [], []
    for index, batch in enumerate(given):
        # as Lightning's precision plugin: the forward pass alone is in autocast, with its cache
        with torch.autocast(batch["ids"].device.type, torch.bfloat16, enabled=low):
            loss = module.training_step(batch, index) / accumulate
        if index % accumulate == 0:
            optimizer.zero_grad(set_to_none=to_none)
        loss.backward()
        losses.append(loss.detach())
        # gone before the next pass, as with Lightning: what lives on keeps its stream
        del loss
        if (index + 1) % accumulate == 0:
            norms.append(torch.nn.utils.clip_grad_norm_(model.parameters(), clip))
            optimizer.step()
    nats, counted = module.training_likelihood.totals()
    weights = [parameter.detach() for parameter in model.parameters()]
    return torch.stack(losses), torch.stack(norms), weights, (nats, counted)


def assert_equal_training(first, second, tolerance=0.0):
    for one, two in zip(first[:2], second[:2], strict=True):
        assert relative_error(one, two) <= tolerance
    for one, two in zip(first[2], second[2], strict=True):
        assert relative_error(one, two) <= tolerance
    assert first[3][1] == second[3][1]
    assert first[3][0] == pytest.approx(second[3][0], rel=max(tolerance, 1e-12))


SAME = [(2, 48)] * 6
# another length and fewer rows, as the first and as the second batch of a step
CHANGING = [(2, 48), (2, 48), (2, 20), (2, 48), (2, 48), (1, 48), (2, 48), (2, 48)]


@pytest.mark.parametrize("sizes", [SAME, CHANGING], ids=["same", "changing"])
@pytest.mark.parametrize("accumulate", [1, 2])
@pytest.mark.parametrize("to_none", [True, False], ids=["to none", "in place"])
def test_replays_train_as_plain_passes_do(sizes, accumulate, to_none):
    """Losses, norms, weights and likelihood to the bit, however gradients are zeroed."""
    torch.manual_seed(0)
    model, given = tiny_model("attention"), batches(sizes)
    options = {"accumulate": accumulate, "to_none": to_none}
    plain = trained(model, given, **options)
    replayed = trained(model, given, partial(GraphedPass, recorder=Rerun, required=True), **options)
    assert_equal_training(replayed, plain)


@pytest.mark.parametrize("low", [False, True], ids=["float32", "bf16"])
@pytest.mark.parametrize("mixer", ["frac", "attention"])
def test_replays_train_alike_in_every_precision(mixer, low):
    """Under autocast as well, whose cache must not outlive a weight."""
    torch.manual_seed(0)
    model, given = tiny_model(mixer), batches([(2, 20)] * 4)
    plain = trained(model, given, accumulate=2, low=low)
    graphs = partial(GraphedPass, recorder=Rerun, required=True)
    assert_equal_training(trained(model, given, graphs, accumulate=2, low=low), plain)


class Product(torch.autograd.Function):
    """x times y, which notes what autocast does around it."""

    seen: list[tuple[str, bool, bool]]

    @staticmethod
    def forward(ctx, x, y):
        ctx.save_for_backward(x, y)
        Product.note("forward")
        return x * y

    @staticmethod
    def backward(ctx, gradient):
        x, y = ctx.saved_tensors
        Product.note("backward")
        return gradient * y, gradient * x

    @staticmethod
    def note(where):
        state = torch.is_autocast_enabled("cpu"), torch.is_autocast_cache_enabled()
        Product.seen.append((where, *state))


def test_autocast_is_around_the_forward_pass_alone_and_keeps_no_weight():
    """A cast weight in a graph would be one that no step of the optimizer reaches."""
    Product.seen = []
    weight = torch.nn.Parameter(torch.ones(3))
    compute = lambda batch: (Product.apply(batch["ids"], weight).sum(),)  # noqa: E731
    graphed = GraphedPass(compute, [weight], required=True, recorder=Rerun)
    with torch.autocast("cpu", torch.bfloat16):
        (loss,) = graphed({"ids": torch.arange(3.0)})
        assert torch.is_autocast_cache_enabled()
    loss.backward()
    assert {state for state in Product.seen if state[0] == "forward"} == {("forward", True, False)}
    assert {low for where, low, _ in Product.seen if where == "backward"} == {False}
    assert weight.grad.tolist() == [0.0, 1.0, 2.0]


def square(weight):
    """A pass whose loss is the sum of (weight x)^2, beside what it was given."""
    return lambda batch: ((weight * batch["ids"]).square().sum(), batch["ids"].clone())


def test_gradients_that_were_there_are_added_to():
    """Those of a plain pass, then of replays: three terms, nothing counted twice."""
    weight = torch.nn.Parameter(torch.tensor([3.0]))
    compute = square(weight)
    graphed = GraphedPass(compute, [weight], required=True, recorder=Rerun)
    compute({"ids": torch.tensor([1.0])})[0].backward()
    for number in (2.0, 5.0):
        loss, given = graphed({"ids": torch.tensor([number])})
        assert given.item() == number
        (loss / 2).backward()
    assert weight.grad.item() == 6 * (1 + 4 / 2 + 25 / 2)


def test_a_loss_may_be_kept_after_the_next_replay():
    weight = torch.nn.Parameter(torch.tensor([3.0]))
    graphed = GraphedPass(square(weight), [weight], required=True, recorder=Rerun)
    losses = [graphed({"ids": torch.tensor([float(n)])})[0].detach() for n in range(3)]
    assert [loss.item() for loss in losses] == [0.0, 9.0, 36.0]


def test_a_pass_that_was_overwritten_has_no_backward_pass():
    """Nor has one two: the gradients would be those of another batch."""
    weight = torch.nn.Parameter(torch.tensor([3.0]))
    graphed = GraphedPass(square(weight), [weight], required=True, recorder=Rerun)
    first, _ = graphed({"ids": torch.tensor([1.0])})
    second, _ = graphed({"ids": torch.tensor([2.0])})
    with pytest.raises(RuntimeError, match="before the next forward pass"):
        first.backward()
    second.backward(retain_graph=True)
    with pytest.raises(RuntimeError, match="one backward pass"):
        second.backward()
    assert weight.grad.item() == 24.0


def test_parameters_outside_the_loss_keep_having_no_gradient():
    """An optimizer skips None; on zeros it would apply weight decay."""
    used, unused = (torch.nn.Parameter(torch.ones(2)) for _ in range(2))
    fixed = torch.nn.Parameter(torch.ones(2), requires_grad=False)
    compute = lambda batch: ((used * fixed * batch["ids"]).sum(),)  # noqa: E731
    graphed = GraphedPass(compute, [unused, fixed, used], required=True, recorder=Rerun)
    graphed({"ids": torch.tensor([1.0, 2.0])})[0].backward()
    assert used.grad.tolist() == [1.0, 2.0]
    assert unused.grad is None
    assert fixed.grad is None


def test_recording_leaves_no_trace():
    """Neither in gradients nor in the generators: a resumed run records in its middle."""
    weight = torch.nn.Parameter(torch.ones(4))

    def compute(batch):
        return ((weight * batch["ids"] * torch.rand(4)).sum(),)

    torch.manual_seed(7)
    before = torch.get_rng_state()
    CapturedPass(compute, [weight], {"ids": torch.ones(4)}, Rerun(CPU))
    assert torch.equal(torch.get_rng_state(), before)
    assert weight.grad is None


class Counting(Rerun):
    """Counts recordings."""

    made = 0

    def __init__(self, device):
        super().__init__(device)
        Counting.made += 1


def test_one_recording_serves_all_batches_that_fit_and_others_get_their_own(monkeypatch):
    """Another shape, dtype or set of tensors; a pass without gradients is never replayed."""
    monkeypatch.setattr(Counting, "made", 0)
    replays = []
    monkeypatch.setattr(
        CapturedPass,
        "forward",
        lambda self, original=CapturedPass.forward: replays.append(1) or original(self),
    )
    weight = torch.nn.Parameter(torch.tensor([3.0]))
    graphed = GraphedPass(square(weight), [weight], required=True, recorder=Counting)
    plain = torch.ones(2)
    for ids in (plain, plain, plain[:1], plain.double(), plain):
        graphed({"ids": ids})
    graphed({"ids": plain, "soft_mask": plain})
    with torch.no_grad():
        assert not graphed({"ids": plain})[0].requires_grad
    assert (Counting.made, len(replays)) == (5, 6)


def test_there_is_one_recording_at_a_time(monkeypatch):
    """That of the stage before is gone when the next one is made: it holds as much as a pass."""
    alive = weakref.WeakSet()
    found = []

    class Weighing(Rerun):
        def __init__(self, device):
            super().__init__(device)
            found.append(len(alive))

    original = CapturedPass.__init__

    def remember(self, *arguments):
        original(self, *arguments)
        alive.add(self)

    monkeypatch.setattr(CapturedPass, "__init__", remember)
    weight = torch.nn.Parameter(torch.tensor([3.0]))
    graphed = GraphedPass(square(weight), [weight], required=True, recorder=Weighing)
    for length in (2, 2, 3, 5):
        graphed({"ids": torch.ones(length)})[0].backward()
    assert found == [0, 0, 0]
    assert weight.grad.item() == 6 * (2 + 2 + 3 + 5)


def test_parameters_that_moved_are_recorded_again(monkeypatch):
    """A graph would go on reading where they were."""
    monkeypatch.setattr(Counting, "made", 0)
    weight = torch.nn.Parameter(torch.tensor([3.0]))
    graphed = GraphedPass(square(weight), [weight], required=True, recorder=Counting)
    batch = {"ids": torch.ones(1)}
    graphed(batch)
    weight.data = torch.tensor([5.0])
    assert graphed(batch)[0].item() == 25.0
    assert Counting.made == 2


class Refusing(Rerun):
    """A device that takes no recording, and says so less clearly at the end of it."""

    def record(self, work):
        try:
            raise RuntimeError("operation not permitted\nwhen recording")
        finally:
            raise ValueError("the capture was invalidated")


def test_a_recording_that_fails_costs_a_warning():
    """One, with the first reason, and the run goes on as without graphs."""
    torch.manual_seed(0)
    model, given = tiny_model("attention"), batches(SAME)
    with pytest.warns(RuntimeWarning, match="RuntimeError: operation not permitted$") as caught:
        failed = trained(model, given, partial(GraphedPass, recorder=Refusing))
    assert len([w for w in caught if w.category is RuntimeWarning]) == 1
    assert_equal_training(failed, trained(model, given))


def test_a_required_recording_that_fails_is_an_error():
    weight = torch.nn.Parameter(torch.ones(1))
    graphed = GraphedPass(square(weight), [weight], required=True, recorder=Refusing)
    with pytest.raises(InputError, match=r"cuda_graphs=true.*operation not permitted"):
        graphed({"ids": torch.ones(1)})


def strategy(name):
    cuda = [torch.device("cuda", n) for n in range(2)]
    return {
        "one GPU": SingleDeviceStrategy(cuda[0]),
        "CPU": SingleDeviceStrategy(CPU),
        "two GPUs": DDPStrategy(parallel_devices=cuda, cluster_environment=LightningEnvironment()),
    }[name]


def products(*values):
    """Parameters, and a pass whose loss is their product with the ids."""
    parameters = [torch.nn.Parameter(torch.tensor([float(v)])) for v in values]

    def compute(batch):
        loss = batch["ids"].float()
        for parameter in parameters:
            loss = loss * parameter
        return (loss.sum(),)

    return parameters, GraphedPass(compute, parameters, recorder=Rerun)


def test_a_pass_is_recorded_anew_when_parameters_are_frozen_or_thawed():
    """Gradients go to those that are trained now."""
    (first, second), graphed = products(2, 3)
    batch = {"ids": torch.tensor([5.0])}
    for trained in ((True, False), (True, True), (False, True)):
        for parameter, flag in zip((first, second), trained, strict=True):
            parameter.requires_grad_(flag)
            parameter.grad = None
        graphed(batch)[0].backward()
        found = [None if p.grad is None else p.grad.item() for p in (first, second)]
        assert found == [15.0 if trained[0] else None, 10.0 if trained[1] else None]


def test_another_autocast_is_recorded_anew():
    """The dtype of a pass is that of the place where it is called."""
    weight = torch.nn.Parameter(torch.full((4, 4), 1 / 3))
    graphed = GraphedPass(lambda b: ((b["ids"] @ weight).sum(),), [weight], recorder=Rerun)
    batch = {"ids": torch.full((4, 4), 1 / 3)}
    with torch.autocast("cpu", torch.bfloat16):
        low = graphed(batch)[0]
    exact = graphed(batch)[0]
    assert low.dtype == torch.bfloat16
    assert exact.dtype == torch.float32
    torch.testing.assert_close(exact, (batch["ids"] @ weight).sum())


def test_a_copy_makes_its_own_recording():
    """A copied or stored module has other parameters, at other addresses."""
    model = tiny_model("frac")
    module = training(model, partial(GraphedPass, recorder=Rerun))
    batch = {"ids": torch.randint(7, 11, (2, 8))}
    module.training_pass(batch)[0].backward()
    other = copy.deepcopy(module)
    other.zero_grad()
    other.training_pass(batch)[0].backward()
    gradients = [[p.grad for p in m.parameters()] for m in (module.model, other.model)]
    for mine, copied in zip(*gradients, strict=True):
        assert mine is not copied
        torch.testing.assert_close(copied, mine)


class Fails(Rerun):
    """Like the end of a capture in which something went wrong."""

    wrong: BaseException = torch.OutOfMemoryError("CUDA out of memory")

    def record(self, work):
        try:
            try:
                {}["key"]
            except KeyError:  # handled by whoever meets it
                raise self.wrong from None
        finally:
            raise RuntimeError("operation failed due to a previous error during capture")


def test_the_reason_of_a_failed_recording_is_what_went_wrong():
    """Not what it led to, and not what was handled before."""
    (weight,), _ = products(2)
    graphed = GraphedPass(lambda b: ((weight * b["ids"]).sum(),), [weight], recorder=Fails)
    with pytest.warns(RuntimeWarning, match="recorded: OutOfMemoryError: CUDA out of memory"):
        graphed({"ids": torch.ones(1)})


def test_an_interruption_ends_a_recording(monkeypatch):
    """Also where the end of the capture fails after it."""
    monkeypatch.setattr(Fails, "wrong", KeyboardInterrupt())
    (weight,), _ = products(2)
    graphed = GraphedPass(lambda b: ((weight * b["ids"]).sum(),), [weight], recorder=Fails)
    with pytest.raises(KeyboardInterrupt):
        graphed({"ids": torch.ones(1)})


@pytest.mark.parametrize(
    ("devices", "overrides", "reason"),
    [
        ("one GPU", [], None),
        ("CPU", [], "the device is cpu"),
        ("two GPUs", [], "DDPStrategy exchanges gradients"),
        ("one GPU", ["model.activation_checkpointing=true"], "activation_checkpointing=true"),
    ],
)
def test_graphs_are_used_where_they_can_be(devices, overrides, reason):
    """auto takes them there and says why elsewhere, where true is refused; false never."""
    model, devices = tiny_model("frac", *overrides), strategy(devices)
    used, said = choose_graphs("auto", devices, model)
    assert used == (reason is None)
    assert (reason or "backward pass") in said
    assert choose_graphs(False, devices, model) == (False, "none: cuda_graphs=false")
    if reason is None:
        assert choose_graphs(True, devices, model)[0]
    else:
        with pytest.raises(InputError, match=f"cuda_graphs=true cannot be met: .*{reason}"):
            choose_graphs(True, devices, model)
    for other in (1, None, "yes"):
        with pytest.raises(InputError, match=f"cuda_graphs={other}: choose auto, true or false"):
            choose_graphs(other, devices, model)


def test_graphs_and_compilation_are_not_used_together():
    """auto leaves the passes to torch.compile; both at once are refused."""
    model, device = tiny_model("attention"), strategy("one GPU")
    used, said = choose_graphs("auto", device, model, compiled=True)
    assert not used
    assert "compile=true" in said
    with pytest.raises(InputError, match=r"cuda_graphs=true cannot be met: compile=true"):
        choose_graphs(True, device, model, compiled=True)
    assert choose_graphs(False, device, model, compiled=True)[1] == "none: cuda_graphs=false"


SMALL = [
    "data.length=64", "data.bases_per_step=512", "data.validation_bases=2048",
    "model.d_model=16", "model.num_layers=2", "log_every=1", "progress=false",
]  # fmt: skip


def train(prepared, output, *overrides):
    return cli.run(["train", f"data.prepared={prepared}", f"output={output}", *SMALL, *overrides])


def curve_rows(output):
    with (output / "metrics.csv").open() as file:
        return list(csv.DictReader(file))


@pytest.mark.parametrize(
    "options",
    [[], ["data.bases_per_batch=128"], ["trainer.precision=bf16-mixed"], ["soft_mask_weight=0.5"]],
    ids=str,
)
def test_a_run_with_replays_is_the_run_without_also_when_resumed(
    prepared, tmp_path, monkeypatch, options
):
    """Through Lightning, with validations, accumulation and an interruption: the same weights."""
    recipe = ["steps=8", "validate_every=3", "checkpoint_every=100", "mixer=attention", *options]
    assert train(prepared, tmp_path / "plain", *recipe) == 0
    graphed = partial(GraphedPass, recorder=Rerun)
    monkeypatch.setattr(run, "GraphedPass", graphed)
    monkeypatch.setattr(run, "choose_graphs", lambda *_: (True, "here"))
    original = Monitor.on_train_batch_end

    def press(self, trainer, *arguments):
        original(self, trainer, *arguments)
        if trainer.global_step == 4:
            os.kill(os.getpid(), signal.SIGINT)

    with monkeypatch.context() as patch:
        patch.setattr(Monitor, "on_train_batch_end", press)
        assert train(prepared, tmp_path / "replayed", *recipe) == 130
    assert train(prepared, tmp_path / "replayed", *recipe, "resume=true") == 0
    last = [tmp_path / name / "checkpoints" / "last.ckpt" for name in ("plain", "replayed")]
    assert len({model_hash(load_model(path)) for path in last}) == 1
    columns = ("step", "train_nll", "train_bases", "validation_nll")
    plain, replayed = ([[r[c] for c in columns] for r in curve_rows(p.parents[1])] for p in last)
    assert plain == replayed


def test_a_loss_that_is_no_number_ends_a_run_with_replays(prepared, tmp_path, monkeypatch, capsys):
    """The check reads the likelihood, which replays feed as plain passes do."""
    monkeypatch.setattr(run, "GraphedPass", partial(GraphedPass, recorder=Rerun))
    monkeypatch.setattr(run, "choose_graphs", lambda *_: (True, "here"))
    wild = ["steps=30", "optimizer.lr=1e30", "schedule.warmup=0.0", "mixer=attention"]
    assert train(prepared, tmp_path / "run", *wild) == 1
    assert re.search(r"loss is (nan|inf) at step \d+", capsys.readouterr().err)


def test_a_run_says_whether_it_uses_graphs(prepared, tmp_path, capsys):
    assert train(prepared, tmp_path / "a", "steps=1", "trainer.accelerator=cpu") == 0
    assert "CUDA graphs: none: the device is cpu\n" in capsys.readouterr().out
    assert train(prepared, tmp_path / "b", "steps=1", "cuda_graphs=false") == 0
    assert "CUDA graphs: none: cuda_graphs=false\n" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("cuda_graphs=true", "cuda_graphs=true cannot be met: the device is cpu"),
        ("cuda_graphs=sometimes", "choose auto, true or false"),
    ],
)
def test_graphs_that_cannot_be_had_are_refused(prepared, tmp_path, capsys, override, message):
    """Before anything is written."""
    assert train(prepared, tmp_path / "run", "trainer.accelerator=cpu", "steps=1", override) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


@needs_cuda
@pytest.mark.parametrize("low", [False, True], ids=["float32", "bf16"])
@pytest.mark.parametrize("accumulate", [1, 2])
@pytest.mark.parametrize("mixer", ["frac", "attention", "interleaved"])
def test_graphs_train_as_plain_passes_do(mixer, accumulate, low):
    """On the device, with a changed shape in the middle: losses, norms, weights and likelihood."""
    torch.manual_seed(0)
    model, cuda = tiny_model(mixer), torch.device("cuda", torch.cuda.current_device())
    given = batches(CHANGING, cuda)
    options = {"accumulate": accumulate, "low": low}
    plain = trained(model, given, **options)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # of streams that do not match, say
        replayed = trained(model, given, partial(GraphedPass, required=True), **options)
    assert_equal_training(replayed, plain, tolerance=1e-5)


@needs_cuda
def test_a_graph_draws_new_random_numbers_and_leaves_the_generator():
    """Dropout differs from pass to pass; recording takes nothing from the generator."""
    weight = torch.nn.Parameter(torch.ones(1000, device="cuda"))

    def compute(batch):
        dropped = torch.nn.functional.dropout(weight * batch["ids"], 0.5)
        return dropped.sum(), dropped

    torch.manual_seed(7)
    before, batch = torch.cuda.get_rng_state(), {"ids": weight.detach()}
    captured = CapturedPass(compute, [weight], batch, CudaRecorder(weight.device))
    assert torch.equal(torch.cuda.get_rng_state(), before)
    first, second = (captured(batch)[1].clone() for _ in range(2))
    assert not torch.equal(first, second)


@needs_cuda
def test_a_failed_recording_leaves_a_device_that_works():
    """What waits for the device cannot be recorded: a warning, and the stream is as before."""
    weight = torch.nn.Parameter(torch.ones(8, device="cuda"))

    def compute(batch):
        loss = (weight * batch["ids"]).sum()
        assert loss.item() == 8.0
        return (loss,)

    stream = torch.cuda.current_stream()
    graphed = GraphedPass(compute, [weight])
    with pytest.warns(RuntimeWarning, match="without CUDA graphs"):
        graphed({"ids": torch.ones(8, device="cuda")})[0].backward()
    assert torch.cuda.current_stream() == stream
    assert weight.grad.tolist() == [1.0] * 8


@needs_cuda
@pytest.mark.parametrize("options", [[], ["data.bases_per_batch=128"]], ids=str)
@pytest.mark.parametrize("mixer", ["frac", "attention"])
def test_a_run_with_graphs_resumes_exactly(prepared, tmp_path, capsys, mixer, options):
    """Stopped at a periodic checkpoint and gone on: the weights of an unbroken run."""
    recipe = ["steps=8", "validate_every=8", "checkpoint_every=4", f"mixer={mixer}"]
    recipe += [*options, "cuda_graphs=true", "data.workers=1"]
    assert train(prepared, tmp_path / "run", *recipe) == 0
    assert "CUDA graphs: the forward and the backward pass" in capsys.readouterr().out
    last = tmp_path / "run" / "checkpoints" / "last.ckpt"
    whole = [p.clone() for p in load_model(last).parameters()]
    (last.parent / "step-00000004.ckpt").replace(last)
    assert train(prepared, tmp_path / "run", *recipe, "resume=true") == 0
    for again, before in zip(load_model(last).parameters(), whole, strict=True):
        assert relative_error(again, before) <= 1e-6


def test_the_loss_weighs_soft_masked_bases():
    """N counts nowhere; a soft-masked base counts with its weight, in the loss alone."""
    torch.manual_seed(0)
    model = tiny_model("attention")
    batch = batches([(2, 30)])[0]
    loss, nll, targets = batch_loss(model, 0.25, batch)
    counted = targets != IGNORED
    assert not counted.all()
    assert (nll[~counted] == 0).all()
    weights = torch.where(batch["soft_mask"], 0.25, 1.0)
    assert loss.item() == pytest.approx((nll * weights * counted).sum().item() / 60, rel=1e-6)
