"""`fracdna prepare`: the preparation package behind the command's configuration."""

from omegaconf import DictConfig, OmegaConf

from fracdna.outcomes import FINE, ROW_PROBLEMS
from fracdna_prep.errors import InputError
from fracdna_prep.options import PrepareOptions
from fracdna_prep.prepare import prepare


def run(config: DictConfig) -> int:
    """Prepare a genome and print what was read, dropped and why.

    Returns:
        0, or 1 when some rows had problems; each has its status row.

    Raises:
        InputError: refused input, before anything was written.
    """
    options = OmegaConf.to_container(config, resolve=True)
    for name in ("fasta", "output"):
        if options[name] is None:
            raise InputError(f"{name}= is not set; `fracdna prepare --help` shows an example")
    summary = prepare(PrepareOptions(**options))
    print(summary.describe())
    return ROW_PROBLEMS if summary.row_problems else FINE
