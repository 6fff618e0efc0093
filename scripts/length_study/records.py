"""What is known of finished runs: one JSON file that grows run by run."""

import json
import math
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from length_study.plan import Run, Study
from omegaconf import OmegaConf

from fracdna.configuration import compose_configuration, options_of
from fracdna.training.curve import read_curve
from fracdna_prep.errors import InputError
from fracdna_prep.files import atomic_file

Record = dict[str, Any]
# what every record has
FIELDS = {
    "network": str, "stage": str, "rate": float, "seed": int, "command": str, "diverged": bool,
    "validation": list,
}  # fmt: skip
# options without which a run is still the same: where it reads and writes, how often it looks
BESIDE = {"data.prepared", "data.workers", "output", "validate_every"}


class Records(dict[str, Record]):
    """Records by name of the run, kept in a file that is replaced after every new one.

    Args:
        path: of the JSON file, which may not exist yet.

    Raises:
        InputError: the file cannot be read, is no JSON, or holds something else.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            content = json.loads(path.read_text()) if path.exists() else {}
        except (OSError, ValueError) as error:
            raise InputError(f"{path} holds no records: {error}") from error
        if not isinstance(content, dict):
            raise InputError(f"{path} holds no records by name of the run")
        for name, record in content.items():
            if not _is_record(record):
                raise InputError(
                    f"{path}: {name} is no record of a run: it has {', '.join(FIELDS)}, and a last "
                    "validation that is a number where it has not diverged"
                )
        super().__init__(content)

    def add(self, records: Mapping[str, Record]) -> None:
        """Keep records, on disk too."""
        self.update(records)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with atomic_file(self.path) as temporary:
            temporary.write_text(json.dumps(self, indent=1) + "\n")

    def check(self, study: Study) -> None:
        """Refuse records of another study.

        Raises:
            InputError: a run that the study does not have, or has with other options.
        """
        for name, record in self.items():
            known = (record["network"], record["stage"])
            if known[0] not in study.content["networks"] or known[1] not in study.content["stages"]:
                raise InputError(f"{self.path}: the study has no {' '.join(known)} ({name})")
            run = study.run(*known, record["rate"], record["seed"])
            changed = _changed(shlex.split(record["command"])[2:], run.options)
            if run.name != name or changed:
                told = "; ".join(f"{key}: {old} there, {new} now" for key, old, new in changed)
                raise InputError(
                    f"{self.path}: {name} is of another study ({told or f'now {run.name}'}): give "
                    "the study of this record, or take the record out and its folder away to "
                    "train it again"
                )


def record_of(run: Run, folder: Path, circumstances: Mapping[str, Any]) -> Record:
    """What a finished run leaves in the records.

    Args:
        run: what was asked for.
        folder: output of `fracdna train`; of a run that diverged at once it may hold no rows.
        circumstances: machine, versions, commit, seconds, memory and whether it diverged.
    """
    curve = folder / "metrics.csv"
    points = read_curve(curve) if curve.exists() else []
    validation = [
        {
            "step": point.step,
            "bases": point.bases,
            "nll_nats": point.validation_nll,
            "counted": point.validation_bases,
        }
        for point in points
        if point.validation_nll is not None and math.isfinite(point.validation_nll)
    ]
    ended = bool(validation) and validation[-1]["step"] == points[-1].step
    speeds = [point.bases_per_second for point in points if point.bases_per_second]
    return {
        "network": run.network,
        "stage": run.stage,
        "rate": run.rate,
        "seed": run.seed,
        "command": shlex.join(["fracdna", *run.command("prepared", f"runs/{run.name}")]),
        "bases": run.bases,
        "steps": points[-1].step if points else 0,
        "validation": validation,
        "training": [[p.bases, p.train_nll] for p in points if p.train_nll is not None],
        "median_bases_per_second": median(speeds) if speeds else None,
        **circumstances,
        # a network whose weights became useless in the last steps has no validation at its end
        "diverged": circumstances["diverged"] or not ended,
    }


def seconds_before(folder: Path) -> float:
    """What an interrupted run has taken so far, 0 of a new one."""
    curve = folder / "metrics.csv"
    points = read_curve(curve) if curve.exists() else []
    return points[-1].seconds if points else 0.0


def _is_record(record: Any) -> bool:
    """Whether this is what record_of made."""
    if not isinstance(record, dict):
        return False
    kinds = all(isinstance(record.get(name), kind) for name, kind in FIELDS.items())
    return kinds and (record["diverged"] or _is_number(record["validation"][-1:]))


def _is_number(points: Sequence[Any]) -> bool:
    """Whether there is a validation point, with finite nats."""
    nll = [point.get("nll_nats") for point in points if isinstance(point, dict)]
    return bool(nll) and isinstance(nll[-1], float) and math.isfinite(nll[-1])


def _changed(there: Sequence[str], now: Sequence[str]) -> list[tuple[str, Any, Any]]:
    """Options that differ: name, value in the record, value in the study.

    Words may differ where they say what is the default: then what they are composed to counts.
    """
    of_record, of_study = ({*words} - _beside(words) for words in (there, now))
    if of_record == of_study:
        return []
    old, new = _composed(there), _composed(now)
    names = sorted((old.keys() | new.keys()) - BESIDE)
    return [(key, old.get(key), new.get(key)) for key in names if old.get(key) != new.get(key)]


def _beside(words: Sequence[str]) -> set[str]:
    """Words that set what does not count."""
    return {word for word in words if word.partition("=")[0] in BESIDE}


def _composed(words: Sequence[str]) -> dict[str, Any]:
    """Values by dotted name."""
    plain = OmegaConf.to_container(compose_configuration("train", words), resolve=True)
    return dict(options_of(plain))
