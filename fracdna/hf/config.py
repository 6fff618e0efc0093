"""The configuration of a model in the form of transformers."""

from typing import Any, ClassVar, Self

from omegaconf import OmegaConf
from transformers import PreTrainedConfig

from fracdna.configuration import compose_configuration
from fracdna.model.pretrained import FORMAT, MODEL_TYPE
from fracdna_prep.vocabulary import DNA


class FracdnaConfig(PreTrainedConfig):
    """What config.json holds: the plain configuration of the network, and how to recognise it.

    Attributes:
        model: arguments of the backbone, with parts under "_target_", as checkpoints keep them.
        vocabulary: symbols of the ids; loading refuses others than those of this version.
        format: version of what is kept here.
        model_hash: of the weights beside it, as fracdna.load_model gives them; written by
            save_pretrained, checked by from_pretrained. A model that is trained on has another.
        tensor_hashes: SHA-256 of every tensor.
        about: what is told about the training; "training_length" is the bases of a window.
        bos_token_id: id that opens every sequence; the tokenizer puts it.
        pad_token_id: id of padding.
    """

    model_type: ClassVar[str] = MODEL_TYPE
    model: dict[str, Any] | None = None
    vocabulary: list[str] | tuple[str, ...] = DNA.symbols
    format: int = FORMAT
    model_hash: str | None = None
    tensor_hashes: dict[str, str] | None = None
    about: dict[str, Any] | None = None
    bos_token_id: int | None = DNA.bos
    pad_token_id: int | None = DNA.pad

    @classmethod
    def compose(cls, *options: str) -> Self:
        """The configuration of a new model, by options of `fracdna train`.

        Args:
            *options: such as "experiment=dna_7m", "mixer=frac", "model.num_layers=4".

        Raises:
            InputError: as the command refuses them.
        """
        model = compose_configuration("train", options).model
        return cls(model=OmegaConf.to_container(model, resolve=True))

    @property
    def vocab_size(self) -> int:
        """Rows of the embedding and of the logits; the vocabulary rounded up to eights."""
        return self._option("vocabulary_rows") or DNA.rows

    @property
    def hidden_size(self) -> int | None:
        """Width of the stream."""
        return self._option("d_model")

    @property
    def num_hidden_layers(self) -> int | None:
        """Number of blocks."""
        return self._option("num_layers")

    def _option(self, name: str) -> Any:
        """An option of the network, if there is one."""
        return (self.model or {}).get(name)
