"""Rows of labelled sets, written short."""

from fracdna.probing.rows import Row
from fracdna_prep.interval import Interval


def texts(*rows):
    """Rows of letters: (sequence, label, split)."""
    return [Row(f"set:{n}", label, split, text) for n, (text, label, split) in enumerate(rows)]


def intervals(*rows):
    """Rows of chr1, 30 bases each, of the classes a and b in turn."""
    return [
        Row(f"set:{n}", "ab"[n % 2], None, interval=Interval(contig, start, start + 30))
        for n, (contig, start) in enumerate(rows)
    ]
