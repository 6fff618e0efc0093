import numpy as np
import pytest
import torch
from models import CONSUMED, tiny_model

from fracdna.model.checkpoint import description
from fracdna_prep.genome import GenomeStore
from fracdna_prep.vocabulary import DNA


@pytest.fixture(autouse=True, scope="session")
def one_thread():
    """Tiny tensors: threads that wait for each other cost more than they do."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(params=CONSUMED)
def mixer_name(request):
    """Every mixer there is, found by its YAML; those like others in the long run alone."""
    return request.param


@pytest.fixture(scope="session")
def models():
    """A tiny model by mixer, the same one all along; what it has read moves its logits far."""
    made = {}

    def get(mixer="frac"):
        if mixer not in made:
            torch.manual_seed(0)
            made[mixer] = tiny_model(mixer)
            with torch.no_grad():
                made[mixer].backbone.final_norm.weight.mul_(2)
        return made[mixer]

    return get


@pytest.fixture(scope="session")
def letters():
    """chr1 of 600 bases with ten N and one R, chr2 of 90."""
    drawn = "".join(np.random.default_rng(3).choice(list("ACGT"), 690))
    chr1 = drawn[:300] + "N" * 10 + drawn[310:450] + "R" + drawn[451:600]
    return {"chr1": chr1, "chr2": drawn[600:]}


@pytest.fixture(scope="session")
def build_store(tmp_path_factory):
    """A store of contigs that are given as text."""

    def build(contigs):
        folder = tmp_path_factory.mktemp("genome")
        fasta = folder / "genome.fa"
        fasta.write_text("".join(f">{name}\n{text}\n" for name, text in contigs.items()))
        return GenomeStore.build(fasta, folder / "store")

    return build


@pytest.fixture(scope="session")
def store(build_store, letters):
    return build_store(letters)


@pytest.fixture(scope="session")
def save_checkpoint():
    """Write a model as training does."""

    def save(model, path):
        weights = {f"model.{name}": tensor for name, tensor in model.state_dict().items()}
        content = {"state_dict": weights, "fracdna": description(model) | {"recipe": {}}}
        torch.save(content, path)
        return path

    return save


@pytest.fixture(scope="session")
def checkpoint(models, save_checkpoint, tmp_path_factory):
    return save_checkpoint(models(), tmp_path_factory.mktemp("checkpoint") / "tiny.ckpt")


@pytest.fixture(scope="session")
def plain():
    """Log-likelihoods of whole windows and states of their bases, without code of the package."""

    def compute(model, texts):
        ids = torch.tensor([[DNA.bos, *DNA.encode(text).tolist()] for text in texts])
        with torch.no_grad():
            hidden = model.backbone(ids)
            logits = (hidden @ model.backbone.embedding.weight.T).double()
        logp = logits[:, :-1].log_softmax(-1).gather(-1, ids[:, 1:, None])[..., 0]
        likelihoods = (logp * (ids[:, 1:] != DNA.n)).sum(1)
        return likelihoods.tolist(), hidden[:, 1:].double().numpy()

    return compute


@pytest.fixture(scope="session")
def reverse_complement():
    def flip(text):
        return DNA.decode(DNA.reverse_complement(DNA.encode(text)))

    return flip


@pytest.fixture
def write_vcf(tmp_path):
    """A VCF of rows (contig, 1-based position, ref, alt) with odd columns that must survive."""

    def write(rows, name="in.vcf"):
        path = tmp_path / name
        head = [
            "##fileformat=VCFv4.2",
            '##INFO=<ID=AF,Number=A,Type=Float,Description="a field of the input">',
            "#CHROM\tPOS\tID\tREF\tALT\tQUAL\tFILTER\tINFO\tFORMAT\tone\ttwo",
        ]
        body = [
            f"{contig}\t{position}\trs{number}\t{ref}\t{alt}\t3.5\tPASS\tAF=0.1;DB\tGT\t0/1\t1|1"
            for number, (contig, position, ref, alt) in enumerate(rows)
        ]
        path.write_text("\n".join([*head, *body]) + "\n")
        return path

    return write
