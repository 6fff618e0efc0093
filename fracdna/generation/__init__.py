"""DNA continued by a model: the command's entry point and its Python doors."""

from fracdna.generation.command import run
from fracdna.generation.options import GenerationOptions
from fracdna.generation.sequences import Continuations, continue_sequences, generate

__all__ = ["Continuations", "GenerationOptions", "continue_sequences", "generate", "run"]
