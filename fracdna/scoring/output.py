"""Scores as a Parquet table, and as INFO fields of the VCF that they belong to."""

import contextlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from Bio.bgzf import BgzfWriter

from fracdna.scoring.alleles import SCORED, STATUSES, Alleles
from fracdna.scoring.reference import ReferenceCheck
from fracdna.scoring.scores import Values
from fracdna.scoring.variants import COLUMNS_LINE, vcf_lines
from fracdna_prep.compression import open_unpacked
from fracdna_prep.files import atomic_file
from fracdna_prep.tables import Column

_TEXT = "text"
COLUMNS = (
    Column("row", pa.int64(), "index", "one row for each ALT allele, from 0"),
    Column("record", pa.int64(), "index", "record of the VCF, or base of the region, from 0"),
    Column("contig", pa.string(), _TEXT, "as the genome names it; as the VCF does where it lacks"),
    Column("start", pa.int64(), "base, from 0", "first base of REF"),
    Column("end", pa.int64(), "base, from 0", "behind the last base of REF"),
    Column("id", pa.string(), _TEXT, "ID of the record; null where there is none"),
    Column("ref", pa.string(), _TEXT, "REF as it is written"),
    Column("alt", pa.string(), _TEXT, "this allele as it is written"),
    Column("kind", pa.string(), _TEXT, "snv, mnv, insertion, deletion or complex; else null"),
    Column("status", pa.string(), _TEXT, "; ".join(f"{k}: {v}" for k, v in STATUSES.items())),
    Column("genome_ref", pa.string(), _TEXT, "what the genome has in place of REF; else null"),
    Column("score", pa.float64(), "nats", "mean of score_forward and score_reverse"),
    Column("score_forward", pa.float64(), "nats", "logp_alt_forward - logp_ref_forward"),
    Column("score_reverse", pa.float64(), "nats", "logp_alt_reverse - logp_ref_reverse"),
    Column("logp_ref_forward", pa.float64(), "nats", "of the REF window from the first difference"),
    Column("logp_alt_forward", pa.float64(), "nats", "of the ALT window; likewise"),
    Column("logp_ref_reverse", pa.float64(), "nats", "of the REF window read on the other strand"),
    Column("logp_alt_reverse", pa.float64(), "nats", "of the ALT window; likewise"),
    Column("bases_ref_forward", pa.int64(), "bases", "counted in logp_ref_forward; N is not"),
    Column("bases_alt_forward", pa.int64(), "bases", "counted in logp_alt_forward"),
    Column("bases_ref_reverse", pa.int64(), "bases", "counted in logp_ref_reverse"),
    Column("bases_alt_reverse", pa.int64(), "bases", "counted in logp_alt_reverse"),
    Column("embedding_l2", pa.float64(), "activation", "between mean states of both windows"),
    Column("embedding_cosine", pa.float64(), "0 to 2", "1 - cosine of them"),
    Column("window_start", pa.int64(), "base, from 0", "first base of both windows"),
    Column("window_length", pa.int64(), "bases", "of each of both windows"),
    Column("n_fraction", pa.float64(), "0 to 1", "share of N in the REF window"),
)
_METADATA_KEY = b"fracdna"
_ROWS_PER_GROUP = 1 << 14
_PREFIX = "FRACDNA_"
# INFO field, its column, its type and what it says
INFO_FIELDS = (
    ("LLR", "score", "Float", "Log-likelihood ratio of ALT against REF in nats, mean of strands"),
    ("LLR_FORWARD", "score_forward", "Float", "The same on the reference strand"),
    ("LLR_REVERSE", "score_reverse", "Float", "The same on the other strand"),
    ("L2", "embedding_l2", "Float", "L2 distance of the mean hidden states of ALT and REF windows"),
    ("COSINE", "embedding_cosine", "Float", "1 - cosine of these states"),
    ("KIND", "kind", "String", "snv, mnv, insertion, deletion or complex"),
    ("STATUS", "status", "String", "; ".join(f"{k}: {v}" for k, v in STATUSES.items())),
)


@dataclass(frozen=True)
class Results:
    """Everything that is written of a run.

    Attributes:
        alleles: with their final statuses.
        check: of REF against the genome.
        values: (rows, len(Values)) float64; NaN where nothing was computed.
        windows: (rows, 2) int64 start and length of the windows; -1 where there are none.
    """

    alleles: Alleles
    check: ReferenceCheck
    values: np.ndarray
    windows: np.ndarray

    @cached_property
    def scored(self) -> np.ndarray:
        """(rows,) bool."""
        return np.isin(self.alleles.statuses, SCORED)

    def score(self, strand: str) -> np.ndarray:
        """(rows,) float64 of "forward" or "reverse", NaN where there is none."""
        ref, alt = (self.column(f"logp_{allele}_{strand}") for allele in ("ref", "alt"))
        return np.where(self.scored, alt - ref, np.nan)

    @cached_property
    def mean_score(self) -> np.ndarray:
        """(rows,) float64, mean of both strands."""
        return (self.score("forward") + self.score("reverse")) / 2

    def column(self, name: str) -> np.ndarray:
        """(rows,) float64 of one of Values."""
        return self.values[:, Values._fields.index(name)]

    def table(self, rows: slice) -> pa.Table:
        """Some rows, without metadata."""
        found = self._texts(rows) | self._numbers(rows)
        arrays = [pa.array(found[c.name], type=c.kind, from_pandas=True) for c in COLUMNS]
        return pa.Table.from_arrays(arrays, names=[c.name for c in COLUMNS])

    def _texts(self, rows: slice) -> dict[str, list[Any]]:
        """What the input says of rows, and what became of them."""
        alleles = self.alleles
        places = alleles.record[rows].tolist()
        records = [alleles.records[place] for place in places]
        return {
            "row": list(range(*rows.indices(len(alleles)))),
            "record": places,
            "contig": [alleles.contigs.get(one.contig, one.contig) for one in records],
            "start": [one.position for one in records],
            "end": [one.position + len(one.ref) for one in records],
            "id": [None if one.identifier == "." else one.identifier for one in records],
            "ref": [one.ref for one in records],
            "alt": [alleles.alt(row) for row in range(*rows.indices(len(alleles)))],
            "kind": alleles.kinds[rows],
            "status": alleles.statuses[rows],
            "genome_ref": [self.check.genome.get(place) for place in places],
        }

    def _numbers(self, rows: slice) -> dict[str, Any]:
        """What was computed; missing values are NaN, which becomes null."""
        scored = self.scored[rows]
        columns = {
            name: np.where(scored, self.column(name)[rows], np.nan)
            for name in Values._fields
            if name not in ("differs", "n_fraction")
        }
        counts = {
            name: _whole(values) for name, values in columns.items() if name.startswith("bases_")
        }
        start, length = (_whole(part) for part in _known(self.windows[rows]).T)
        return columns | counts | {
            "score": self.mean_score[rows],
            "score_forward": self.score("forward")[rows],
            "score_reverse": self.score("reverse")[rows],
            "n_fraction": self.column("n_fraction")[rows],
            "window_start": start,
            "window_length": length,
        }  # fmt: skip


def write_table(path: Path, results: Results, metadata: Mapping[str, Any]) -> None:
    """Writes one row for each ALT allele; the file appears when it is complete.

    Args:
        path: the Parquet file.
        results: see Results.
        metadata: plain values, written as JSON under the key "fracdna" of the schema.

    Raises:
        InputError: the folder cannot be written or is full.
    """
    fields = [
        pa.field(c.name, c.kind, metadata={"unit": c.unit, "meaning": c.meaning}) for c in COLUMNS
    ]
    text = json.dumps(dict(metadata), sort_keys=True)
    schema = pa.schema(fields, metadata={_METADATA_KEY: text})
    with (
        atomic_file(path) as temporary,
        pq.ParquetWriter(temporary, schema, compression="zstd") as writer,
    ):
        for start in range(0, len(results.alleles), _ROWS_PER_GROUP):
            part = results.table(slice(start, start + _ROWS_PER_GROUP))
            writer.write_table(part.cast(schema))


def write_vcf(path: Path, source: Path, results: Results, about: str) -> None:
    """Writes a VCF again with INFO fields; all else in it stays as it is.

    Fields of an earlier scoring are replaced. A record whose ALT is missing gets none: Number=A is
    one value for each ALT.

    Args:
        path: of the copy; bgzip where its name ends in .gz or .bgz.
        source: the VCF that was scored.
        results: of its records, in their order.
        about: what the scores are of, for the header.

    Raises:
        InputError: the folder cannot be written or is full.
    """
    fields, first, record = _vcf_columns(results), 0, 0
    with (
        atomic_file(path) as temporary,
        _writer(temporary) as out,
        open_unpacked(source) as file,
    ):
        for _, line in vcf_lines(source, file):
            if isinstance(line, bytes):
                out.write(_header(line, about))
                continue
            alts = len(results.alleles.records[record].alts)
            values = [] if line[4] == b"." else _values(fields, slice(first, first + alts))
            line[7] = _info(line[7], values)
            out.write(b"\t".join(line) + b"\n")
            first, record = first + alts, record + 1


def is_bgzip_name(path: Path) -> bool:
    """Whether a file is named as a compressed one."""
    return path.suffix in (".gz", ".bgz")


@contextlib.contextmanager
def _writer(path: Path) -> Iterator[BinaryIO | BgzfWriter]:
    """A file that takes bytes, compressed where it is named so."""
    with BgzfWriter(path, "wb") if is_bgzip_name(path) else path.open("wb") as file:
        yield file


def _header(line: bytes, about: str) -> bytes:
    """One header line; the fields are described ahead of the column names."""
    own = (b"##INFO=<ID=" + _PREFIX.encode(), b"##" + _PREFIX.lower().encode() + b"score=")
    if line.startswith(own):
        return b""
    if not line.startswith(COLUMNS_LINE):
        return line + b"\n"
    described = [
        f'##INFO=<ID={_PREFIX}{name},Number=A,Type={kind},Description="{says}">\n'
        for name, _, kind, says in INFO_FIELDS
    ]
    return f"{''.join(described)}##{_PREFIX.lower()}score={about}\n".encode() + line + b"\n"


def _vcf_columns(results: Results) -> list[tuple[bytes, list[str]]]:
    """Each INFO field with the texts of all rows."""
    columns: dict[str, Any] = {
        "score": results.mean_score,
        "score_forward": results.score("forward"),
        "score_reverse": results.score("reverse"),
        "embedding_l2": results.column("embedding_l2"),
        "embedding_cosine": results.column("embedding_cosine"),
        "kind": results.alleles.kinds,
        "status": results.alleles.statuses,
    }
    return [
        ((_PREFIX + name).encode(), [_text(value) for value in columns[column]])
        for name, column, *_ in INFO_FIELDS
    ]


def _text(value: Any) -> str:
    """A value as a VCF has it."""
    if value is None:
        return "."
    if isinstance(value, str):
        return value
    return "." if np.isnan(value) else f"{value:.7g}"


def _values(fields: list[tuple[bytes, list[str]]], rows: slice) -> list[bytes]:
    """Field=value,value of the alleles of one record."""
    return [name + b"=" + ",".join(texts[rows]).encode() for name, texts in fields]


def _info(before: bytes, values: list[bytes]) -> bytes:
    """INFO with the fields at its end, those of an earlier scoring taken out."""
    own = _PREFIX.encode()
    # a part between two ";" may be empty: the file need not be strict, what is written is
    parts = [part for part in before.split(b";") if part not in (b"", b".")]
    kept = [part for part in parts if not part.startswith(own)]
    return b";".join([*kept, *values]) or b"."


def _known(values: np.ndarray) -> np.ndarray:
    """Float64 with NaN for what is -1."""
    return np.where(values < 0, np.nan, values)


def _whole(values: np.ndarray) -> list[int | None]:
    """Whole numbers, None for NaN."""
    return [None if np.isnan(value) else int(value) for value in values]
