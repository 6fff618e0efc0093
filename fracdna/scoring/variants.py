"""A VCF as records with their alternative alleles; positions are counted from 0 from here on."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from fracdna_prep.compression import open_unpacked
from fracdna_prep.errors import InputError
from fracdna_prep.wording import counted

COLUMNS_LINE = b"#CHROM\tPOS\tID\tREF\tALT"
# CHROM, POS, ID, REF, ALT, QUAL, FILTER, INFO: a record has at least these
_FIXED = 8
# digits of a POS: what has more is no place on any contig, and no integer of 64 bits
_MOST_DIGITS = 18


@dataclass(frozen=True, slots=True)
class Record:
    """One line of a VCF.

    Attributes:
        contig: CHROM.
        position: of the first base of REF, counted from 0; -1 is POS 0, before the contig.
        identifier: ID; "." where there is none.
        ref: REF, as it is written.
        alts: the alleles of ALT, as they are written; (".",) where there is none.
        line: its number in the file, from 1; 0 where it comes from none.
    """

    contig: str
    position: int
    identifier: str
    ref: str
    alts: tuple[str, ...]
    line: int = 0


def read_vcf(path: Path | str) -> list[Record]:
    """All records of a VCF, plain, gzip or bgzip, in the order of the file.

    Raises:
        InputError: no VCF, or a record that cannot be read; names file and line.
    """
    with open_unpacked(path) as file:
        return [
            _parse(path, number, fields)
            for number, fields in vcf_lines(path, file)
            if isinstance(fields, list)
        ]


def vcf_lines(path: Path | str, file: BinaryIO) -> Iterator[tuple[int, bytes | list[bytes]]]:
    """Lines of a VCF without their ends, header lines whole, records cut into columns.

    Args:
        path: for messages.
        file: the unpacked bytes.

    Yields:
        the line's number from 1; bytes of a header line, or a record's eight fixed columns and, as
        a ninth, all that follows them.

    Raises:
        InputError: a record before the line with the column names, or with too few columns; a
            second such line; a BCF.
    """
    named = False
    for number, line in enumerate(file, 1):
        if number == 1 and line.startswith(b"BCF"):
            raise InputError(f"{path} is a BCF: write it as VCF with `bcftools view -O z`")
        text = line.rstrip(b"\r\n")
        if text.startswith(b"#"):
            if named and text.startswith(COLUMNS_LINE):
                raise InputError(
                    f"{path}:{number}: a second line #CHROM POS ID REF ALT ...: this is several "
                    "VCFs in one file, join them with `bcftools concat`"
                )
            named |= text.startswith(COLUMNS_LINE)
            yield number, text
        elif text.strip():
            if not named:
                raise InputError(
                    f"{path}:{number}: no VCF: a record stands before the line #CHROM POS ID REF "
                    "ALT ..., with tabs between the names"
                )
            yield number, _columns(path, number, text)
    if not named:
        raise InputError(f"{path}: no VCF: it has no line #CHROM POS ID REF ALT ...")


def _columns(path: Path | str, number: int, text: bytes) -> list[bytes]:
    """The columns of a record; all behind the fixed ones are the last."""
    fields = text.split(b"\t", _FIXED)
    if len(fields) < _FIXED:
        raise InputError(
            f"{path}:{number}: {counted(len(fields), 'column')}, and a record of a VCF has at "
            f"least {_FIXED}, with tabs between them"
        )
    return fields


def _parse(path: Path | str, number: int, fields: list[bytes]) -> Record:
    """A record from its columns."""
    contig, position, identifier, ref, alts = (
        field.decode("utf-8", "replace") for field in fields[:5]
    )
    if not (position.isascii() and position.isdigit()):
        raise InputError(f"{path}:{number}: POS {position!r} is no whole number")
    if len(position) > _MOST_DIGITS:
        raise InputError(f"{path}:{number}: POS {position[:_MOST_DIGITS]}... is on no contig")
    if not contig or not ref or not all(alts.split(",")):
        raise InputError(f"{path}:{number}: CHROM, REF or an allele of ALT is empty")
    return Record(contig, int(position) - 1, identifier, ref, tuple(alts.split(",")), number)
