"""Genomes and files: from FASTA and BED to a memory-mapped store and window tables."""
