"""The networks of fracdna under the interface of transformers."""

import itertools
import os
from collections.abc import Callable
from typing import Any, Self

import torch
from torch import Tensor, nn
from transformers import GenerationConfig, GenerationMixin, PreTrainedConfig, PreTrainedModel
from transformers.modeling_outputs import BaseModelOutputWithPast, CausalLMOutputWithPast
from transformers.modeling_utils import slice_logits_to_keep
from transformers.utils.generic import can_return_tuple

from fracdna.data.objectives import IGNORED, next_base
from fracdna.evaluation.likelihood import token_nll
from fracdna.hf.cache import FracdnaCache
from fracdna.hf.config import FracdnaConfig
from fracdna.hf.padding import Packing, packing_of
from fracdna.model.checkpoint import build_model, check_vocabulary
from fracdna.model.heads import LanguageModel
from fracdna.model.pretrained import PREFIX, check_weights, facts_of
from fracdna_prep.errors import InputError
from fracdna_prep.vocabulary import DNA

# time scales: operators take them in float32 alone, and 8 bits would move them by per cents
_EXACT = ("log_tau", "fixed_decay")


class FracdnaPreTrainedModel(PreTrainedModel):
    """What both models share: building, exact loading and saving, reading rows.

    Args:
        config: with the configuration of the network; weights are new, as training starts them.

    Raises:
        InputError: no network in the configuration, one that cannot be built, or another
            vocabulary.
    """

    config: FracdnaConfig
    base_model_prefix = PREFIX.removesuffix(".")
    supports_gradient_checkpointing = True
    _is_stateful = True
    _keep_in_fp32_modules_strict = _EXACT

    def __init__(self, config: FracdnaConfig) -> None:
        super().__init__(config)
        self._adopt(_built(config))
        self.to(torch.get_default_dtype())
        self.post_init()

    @classmethod
    def from_pretrained(
        cls,
        pretrained_model_name_or_path: str | os.PathLike | None,
        *model_args: Any,
        dtype: str | torch.dtype = "auto",
        output_loading_info: bool = False,
        **kwargs: Any,
    ) -> Self | tuple[Self, dict[str, Any]]:
        """Open a folder or a repository that save_pretrained has written, and check every tensor.

        Args:
            pretrained_model_name_or_path: as in transformers.
            *model_args: likewise.
            dtype: of the weights; "auto": as they are stored. Time scales stay in float32.
            output_loading_info: return the report of transformers too.
            **kwargs: as in transformers.

        Raises:
            InputError: a tensor is missing, unknown, initialised anew or has other values than
                those that were saved, another configuration or vocabulary, or several devices.
        """
        place = pretrained_model_name_or_path
        dtype = kwargs.pop("torch_dtype", None) or dtype
        if dtype == "auto":
            dtype = _stored_dtype(place, kwargs)
        # float32 holds what is stored in any dtype, so hashes can be compared before rounding
        model, report = super().from_pretrained(
            place, *model_args, dtype=torch.float32, output_loading_info=True, **kwargs
        )
        model._settle(place or "state_dict", report)
        model.to(getattr(torch, dtype) if isinstance(dtype, str) else dtype)
        model.config.dtype = model.dtype
        return (model, report) if output_loading_info else model

    def save_pretrained(
        self,
        save_directory: str | os.PathLike,
        is_main_process: bool = True,
        state_dict: dict[str, Tensor] | None = None,
        **kwargs: Any,
    ) -> None:
        """Write config.json with the hash of every tensor, and safetensors; as in transformers.

        Args:
            save_directory: the folder.
            is_main_process: whether this process writes.
            state_dict: weights; None: those of the model.
            **kwargs: as in transformers, such as max_shard_size.

        Raises:
            InputError: weights that are not finite, or in float64.
        """
        if is_main_process:
            state = self.state_dict() if state_dict is None else state_dict
            for name, fact in facts_of(self.config.model, state).items():
                setattr(self.config, name, fact)
            self.config.vocabulary, self.config.about = DNA.symbols, self.config.about or {}
        super().save_pretrained(
            save_directory, is_main_process=is_main_process, state_dict=state_dict, **kwargs
        )

    def get_input_embeddings(self) -> nn.Embedding:
        """The embedding, whose weight is that of the head too."""
        return self.base_model.backbone.embedding

    def resize_token_embeddings(
        self, new_num_tokens: int | None = None, *args: Any, **kwargs: Any
    ) -> nn.Embedding:
        """The embedding as it is; another number of rows would be another alphabet.

        Raises:
            InputError: another number.
        """
        rows = self.config.vocab_size
        if new_num_tokens not in (None, rows):
            raise InputError(
                f"{new_num_tokens} rows: the vocabulary of {DNA.size} symbols in {rows} rows is "
                "fixed, as ids mean the same in every model; leave the embedding as it is"
            )
        return self.get_input_embeddings()

    @property
    def gradient_checkpointing(self) -> bool:
        """Whether blocks are computed again in the backward pass: the backbone's own option."""
        return self.base_model.backbone.activation_checkpointing

    @gradient_checkpointing.setter
    def gradient_checkpointing(self, enable: bool) -> None:
        self.base_model.backbone.activation_checkpointing = enable

    def _adopt(self, network: LanguageModel) -> None:
        """Take over the part of a network that this model has."""
        raise NotImplementedError

    def _init_weights(self, module: nn.Module) -> None:
        """Nothing: parts of a network initialise themselves when they are built."""

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        """Move and cast, but never round time scales."""
        exact = {name: tensor.data for name, tensor in self._exact_tensors()}
        super()._apply(fn, recurse)
        for name, tensor in self._exact_tensors():
            if tensor.dtype.itemsize < 4:
                tensor.data = exact[name].to(tensor.device)
        return self

    def _exact_tensors(self) -> list[tuple[str, Tensor]]:
        """Time scales, which some networks learn and others keep in no file."""
        named = itertools.chain(self.named_parameters(), self.named_buffers())
        return [(name, x) for name, x in named if name.rpartition(".")[2] in _EXACT]

    def _settle(self, place: str | os.PathLike, report: dict[str, Any]) -> None:
        """Check what transformers has loaded, and put it into a network built here.

        transformers builds on no device and leaves tensors that are in no file undefined.
        """
        devices = {parameter.device for parameter in self.parameters()}
        if len(devices) > 1 or "meta" in {device.type for device in devices}:
            raise InputError(
                f"{place}: a model goes on one device, not on {sorted(map(str, devices))}: say "
                "device_map='cuda:0', or leave it out"
            )
        state = self.state_dict()
        found = {n: weight for n, weight in state.items() if n not in report["missing_keys"]}
        found |= {name: torch.empty(0) for name in report["unexpected_keys"]}
        check_weights(place, self.config.to_dict(), found)
        network = _built(self.config)
        network.load_state_dict({n.removeprefix(PREFIX): weight for n, weight in state.items()})
        self._adopt(network)
        self.to(devices.pop()).eval()

    def _read(
        self,
        ids: Tensor,
        mask: Tensor | None,
        cache: FracdnaCache | None,
        use_cache: bool | None,
        all_layers: bool | None,
    ) -> tuple[BaseModelOutputWithPast, Packing | None]:
        """Hidden states of rows, from their beginning or from a cache."""
        backbone = self.base_model.backbone
        if all_layers is None:
            all_layers = self.config.output_hidden_states
        if cache is not None:
            _check_cache(cache, len(ids))
        packing = packing_of(mask, ids, 0 if cache is None else cache.get_seq_length())
        packed, lengths = (ids, None) if packing is None else (packing.pack(ids), packing.lengths)
        streams: list[Tensor] = []
        observe = (lambda _, stream: streams.append(stream)) if all_layers else None
        if use_cache or cache is not None:
            if cache is None:
                cache = FracdnaCache(backbone.initial_state(len(ids)))
            hidden, state = backbone.step(packed, cache.state, lengths=lengths, observe=observe)
            cache.advance(state, ids.shape[1])
        else:
            hidden = backbone(packed, observe=observe)
        layers = [*streams, hidden]
        if packing is not None:
            layers = [packing.unpack(layer) for layer in layers]
        output = BaseModelOutputWithPast(
            last_hidden_state=layers[-1],
            cache=cache,
            hidden_states=tuple(layers) if all_layers else None,
        )
        return output, packing


class FracdnaModel(FracdnaPreTrainedModel):
    """Ids to hidden states.

    Attributes:
        backbone: the trunk, as in fracdna.
    """

    def _adopt(self, network: LanguageModel) -> None:
        self.backbone = network.backbone

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        cache: FracdnaCache | None = None,
        use_cache: bool | None = None,
        output_hidden_states: bool | None = None,
    ) -> BaseModelOutputWithPast:
        """Read sequences.

        Args:
            input_ids: (batch, length); a sequence begins with BOS, which the tokenizer puts there.
            attention_mask: (batch, length), or with the columns before; 0 is not read, on
                whichever side it stands.
            cache: of an earlier call, to go on from; it moves on.
            use_cache: return a cache even where none was given.
            output_hidden_states: return the embedding, the stream after every block and, last, the
                output of the final norm: entry n is layer=n of `fracdna embed`, entry -1 layer=-1.

        Returns:
            last_hidden_state (batch, length, hidden_size) after the final norm, without meaning at
            padding; cache; hidden_states. return_dict=False gives a tuple.

        Raises:
            InputError: a mask or a cache that does not fit.
        """
        return self._read(input_ids, attention_mask, cache, use_cache, output_hidden_states)[0]


class FracdnaForCausalLM(FracdnaPreTrainedModel, GenerationMixin):
    """Ids to logits of the next base, with the head tied to the embedding.

    Attributes:
        model: the LanguageModel of fracdna, for everything that takes one.
    """

    def __init__(self, config: FracdnaConfig) -> None:
        super().__init__(config)
        never = sorted(set(range(config.vocab_size)) - set(DNA.bases))
        self.generation_config = GenerationConfig(
            bos_token_id=config.bos_token_id,
            pad_token_id=config.pad_token_id,
            suppress_tokens=never,
        )

    def _adopt(self, network: LanguageModel) -> None:
        self.model = network

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        labels: Tensor | None = None,
        cache: FracdnaCache | None = None,
        use_cache: bool | None = None,
        output_hidden_states: bool | None = None,
        logits_to_keep: int | Tensor = 0,
    ) -> CausalLMOutputWithPast:
        """Read sequences and predict.

        Args:
            input_ids: as in FracdnaModel.
            attention_mask: likewise.
            labels: (batch, length), the ids themselves: position t is predicted from those before
                it. Counted are A, C, G and T alone; N, padding, special ids and -100 are not.
            cache: as in FracdnaModel.
            use_cache: likewise.
            output_hidden_states: likewise.
            logits_to_keep: so many last positions that are read, of each row; 0: all columns; or
                the columns themselves, in a tensor.

        Returns:
            loss, the mean nats of all counted bases, 0 where there are none; logits (batch,
            positions, vocab_size); cache; hidden_states.

        Raises:
            InputError: a mask or a cache that does not fit, or labels together with
                logits_to_keep.
        """
        cut = isinstance(logits_to_keep, Tensor) or logits_to_keep != 0
        if labels is not None and cut:
            raise InputError("labels= needs the logits of all positions: leave logits_to_keep= out")
        read, packing = self._read(
            input_ids, attention_mask, cache, use_cache, output_hidden_states
        )
        if packing is not None and cut and isinstance(logits_to_keep, int):
            logits_to_keep = packing.last(logits_to_keep)
        logits = self.model.logits(slice_logits_to_keep(read.last_hidden_state, logits_to_keep))
        return CausalLMOutputWithPast(
            loss=None if labels is None else _loss(logits, labels, packing),
            logits=logits,
            cache=read.cache,
            hidden_states=read.hidden_states,
        )

    @classmethod
    def _supports_default_dynamic_cache(cls) -> bool:
        """No: generation starts without a cache, and forward makes its own."""
        return False


def _built(config: FracdnaConfig) -> LanguageModel:
    """A network in float32 on the processor, whatever the surroundings.

    transformers builds models on no device and in the dtype of their weights: time scales that are
    in no file would be undefined or rounded.
    """
    if config.model is None:
        raise InputError(
            "the configuration has no network: take FracdnaConfig.compose('mixer=frac'), or that "
            "of a model"
        )
    check_vocabulary("config.json", config.vocabulary)
    around = torch.get_default_dtype()
    torch.set_default_dtype(torch.float32)
    try:
        with torch.device("cpu"):
            return build_model(config.model)
    finally:
        torch.set_default_dtype(around)


def _stored_dtype(place: str | os.PathLike | None, options: dict[str, Any]) -> str | torch.dtype:
    """That of the weights, as config.json tells it."""
    config = options.get("config")
    if isinstance(config, PreTrainedConfig):
        return config.dtype or torch.float32
    told, _ = FracdnaConfig.get_config_dict(place if config is None else config, **options)
    return told.get("dtype") or torch.float32


def _check_cache(cache: Any, batch: int) -> None:
    """Refuses what no sequences of this batch have left behind."""
    if not isinstance(cache, FracdnaCache):
        raise InputError(
            f"cache= is a {type(cache).__name__}, which holds no states of these layers: leave it "
            "out, and use_cache=True returns the one that goes with this model"
        )
    if cache.batch_size != batch:
        raise InputError(
            f"cache= carries {cache.batch_size} sequences and input_ids has {batch}: repeat its "
            "rows with cache.batch_repeat_interleave, or choose some with batch_select_indices"
        )


def _loss(logits: Tensor, labels: Tensor, packing: Packing | None) -> Tensor:
    """Mean nats of the counted bases: the project's one likelihood."""
    targets = next_base(labels)[1][:, 1:]
    if packing is not None:  # what follows padding was not predicted from there
        targets = targets.where(packing.valid[:, :-1], IGNORED)
    counted = (targets != IGNORED).sum()
    return token_nll(logits[:, :-1], targets).sum() / counted.clamp(min=1)
