"""Sequence models of the genome: prepare, pretrain, evaluate by length, embed."""

__version__ = "0.1.0"
