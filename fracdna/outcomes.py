"""How a command can end."""

FINE, ROW_PROBLEMS, REFUSED, INTERRUPTED = 0, 1, 2, 130


class NotFinite(ArithmeticError):
    """A number that results depend on is NaN or infinite: the work ends and says where.

    Attributes:
        row: the first affected row, where rows are what is computed.
    """

    def __init__(self, message: str, row: int | None = None) -> None:
        super().__init__(message)
        self.row = row
