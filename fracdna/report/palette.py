"""Colours of the page and of the PNGs: each with a light and a dark form."""

# told apart also by eyes that see fewer colours; light theme, dark theme
DISTINCT = (
    ("#0b6e8f", "#4cc3e6"),
    ("#c8501e", "#ff9a66"),
    ("#3d7d2c", "#8fd274"),
    ("#8a3ea8", "#d49bf0"),
    ("#b8860b", "#f0c75e"),
    ("#b3265e", "#ff86b0"),
    ("#3a4fb5", "#96a8ff"),
    ("#00796b", "#5fd6c4"),
    ("#7a5230", "#d3a982"),
    ("#5f6b75", "#aab6c1"),
)
# of layers, the first to the last
ORDERED = (
    "#5b3fa8", "#4a58b8", "#3a70bf", "#2e87bd", "#289bb2", "#2aada0",
    "#3fbb87", "#66c46b", "#93c752", "#bfc33f", "#e0b83c", "#f2a541",
)  # fmt: skip
GREY = ("#6b7680", "#93a0ab")


def colour(name: str) -> str:
    """A colour of charts on white: "c0", "s3" or "grey"."""
    if name == "grey":
        return GREY[0]
    kind, place = name[0], int(name[1:])
    return DISTINCT[place][0] if kind == "c" else ORDERED[place]


def style_rules() -> str:
    """CSS: one class for each colour, which sets --colour."""
    both = {f"c{place}": pair for place, pair in enumerate(DISTINCT)} | {"grey": GREY}
    both |= {f"s{place}": (value, value) for place, value in enumerate(ORDERED)}
    return "\n".join(
        f".{name} {{ --colour: light-dark({light}, {dark}); }}"
        for name, (light, dark) in both.items()
    )
