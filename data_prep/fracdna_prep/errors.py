class InputError(ValueError):
    """Input that is refused before any work; the message names the value and the remedy."""


class Unfinished(InputError):
    """The system failed in the middle of good work; what is finished is kept for a second try."""
