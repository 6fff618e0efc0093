class InputError(ValueError):
    """Input that is refused before any work; the message names the value and the remedy."""
