import os
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The folder of real genomes named by FRACDNA_DATA; the test is skipped without it."""
    folder = os.environ.get("FRACDNA_DATA")
    if not folder:
        pytest.skip("FRACDNA_DATA is unset: it names a folder with data/ of real genomes")
    data = Path(folder) / "data"
    if not data.is_dir():
        pytest.skip(f"{data} is not a folder")
    return data
