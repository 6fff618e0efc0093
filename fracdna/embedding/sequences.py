"""`fracdna.embed`: sequences in memory to arrays."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fracdna.devices import choose_device
from fracdna.embedding.options import DEFAULTS, FINAL_NORM, EmbeddingOptions
from fracdna.embedding.reads import whole_reads
from fracdna.embedding.rows import Rows, fill_rows
from fracdna.model.checkpoint import load_model
from fracdna.model.heads import LanguageModel
from fracdna_prep.errors import InputError
from fracdna_prep.progress import progress_bar
from fracdna_prep.vocabulary import DNA


def embed(
    model: LanguageModel | str | Path,
    sequences: str | bytes | Iterable[Any],
    *,
    layer: int | Sequence[int] = FINAL_NORM,
    pooling: str = DEFAULTS.pooling,
    strand: str = DEFAULTS.strand,
    batch_bases: int | str = DEFAULTS.batch_bases,
    segment: int = DEFAULTS.segment,
    precision: str = DEFAULTS.precision,
    device: str | None = None,
    progress: bool = False,
) -> np.ndarray | list[np.ndarray]:
    """Hidden states of sequences: the numbers of `fracdna embed` with the same options.

    Args:
        model: such as load_model returns, or the file of one.
        sequences: text, bytes or Biopython records; a single one counts as a list of one. Lower
            case is upper case, IUPAC letters are N.
        layer: 0 is the embedding, n the stream after block n, -1 the output of the final norm; or a
            list of them.
        pooling: "mean", "centre" (base floor(L / 2)), "last" (the base that is read last), or
            "none": a vector for every base.
        strand: "forward", "reverse", "average" (the mean of both) or "equivariant" (one behind the
            other: 2 d_model values).
        batch_bases: most positions of a batch, padding and BOS included; "auto" is 65,536 on a GPU
            and 4,096 on a CPU.
        segment: a sequence of more bases is read in segments with carried state.
        precision: of the computation, "float32" or "bf16".
        device: "auto", "cpu", "cuda" or "cuda:1": the model is moved there, and stays; None: where
            it is, of a file as "auto".
        progress: show bases done, their rate and the time left.

    Returns:
        (sequences, d_model) float32 in the order given. A list of layers adds an axis in their
        order: (sequences, layers, d_model). With pooling "none" a list of (bases, d_model), or
        (bases, layers, d_model), whatever strand in the order of the bases given.

    Raises:
        InputError: an unusable option, model or sequence; names it.
        NotFinite: a vector holds NaN or infinity.
    """
    several = layer if isinstance(layer, int) else tuple(layer)
    options = EmbeddingOptions(several, pooling, strand, batch_bases, segment, precision)
    options.check()
    if not isinstance(model, LanguageModel | str | Path):
        raise InputError(
            f"{type(model).__name__} is neither a language model, such as fracdna.load_model "
            "returns, nor the file of one"
        )
    if device is not None or not isinstance(model, LanguageModel):
        place = choose_device(device or "auto", precision)
        model = model.to(place) if isinstance(model, LanguageModel) else load_model(model, place)
    options.check_layer(model.backbone)
    rows = Rows.of_reads(whole_reads(_encoded(sequences)), options)
    values = rows.empty(model.backbone.d_model)
    with progress_bar(rows.positions, "embed", progress) as bar:
        fill_rows(model, rows, values, bar.update)
    return rows.unpacked(values)


def _encoded(sequences: str | bytes | Iterable[Any]) -> list[np.ndarray]:
    """Ids of every sequence."""
    # a record has letters of its own, and is iterable like a list
    single = isinstance(sequences, str | bytes) or hasattr(sequences, "seq")
    found = []
    for number, sequence in enumerate([sequences] if single else sequences):
        try:
            found.append(DNA.encode(_text(sequence)))
        except InputError as error:
            raise InputError(f"sequence {number}: {error}") from None
    return found


def _text(sequence: Any) -> str:
    """The letters of a sequence."""
    letters = getattr(sequence, "seq", sequence)
    if isinstance(letters, bytes | bytearray):
        return letters.decode("latin-1")
    if isinstance(letters, str) or hasattr(letters, "reverse_complement"):
        return str(letters)
    raise InputError(
        f"{type(sequence).__name__} is no sequence: give text, bytes or Biopython records"
    )
