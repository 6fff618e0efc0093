"""Hybrids: layers take their mixers in turn."""

from collections.abc import Callable, Mapping, Sequence

from fracdna.mixers.mixer import Mixer


def interleaved(
    d_model: int,
    *,
    mixers: Mapping[str, Callable[..., Mixer]],
    pattern: Sequence[str],
    layer_index: int = 0,
    num_layers: int = 1,
) -> Mixer:
    """The mixer of one layer of a hybrid: pattern[layer_index mod len(pattern)].

    Args:
        d_model: width of the stream.
        mixers: name to mixer, each still to be built.
        pattern: names in the order of the layers, repeated to the depth of the network.
        layer_index: number of the layer.
        num_layers: depth of the network.

    Raises:
        ValueError: an empty pattern, or a name in it that mixers lacks.
    """
    unknown = set(pattern) - set(mixers)
    if unknown or not pattern:
        raise ValueError(f"pattern={list(pattern)} needs names among {sorted(mixers)}")
    name = pattern[layer_index % len(pattern)]
    return mixers[name](d_model, layer_index=layer_index, num_layers=num_layers)
