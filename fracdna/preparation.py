"""`fracdna prepare`: the preparation package behind the command's configuration."""

import sys

from omegaconf import DictConfig, OmegaConf

from fracdna.outcomes import FINE, ROW_PROBLEMS
from fracdna_prep.errors import InputError
from fracdna_prep.options import PrepareOptions
from fracdna_prep.prepare import prepare


def run(config: DictConfig) -> int:
    """Prepare a genome and print what was read, dropped and why.

    Returns:
        0, or 1 when some rows had problems, of which each has its status row, or when verify=true
        met a FASTA that pyfaidx cannot read.

    Raises:
        InputError: refused input; nothing is left written.
    """
    options = OmegaConf.to_container(config, resolve=True)
    for name in ("fasta", "output"):
        if options[name] is None:
            raise InputError(f"{name}= is not set; `fracdna prepare --help` shows an example")
    try:
        summary = prepare(PrepareOptions(**options))
    except KeyboardInterrupt:
        print("what is finished is kept: the same command goes on with the rest", file=sys.stderr)
        raise
    print(summary.describe())
    return ROW_PROBLEMS if summary.has_problems else FINE
