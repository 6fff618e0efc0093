"""Where a run's numbers go beside its own files; configs/logger names these functions."""

import importlib.util
import inspect
import secrets
from pathlib import Path
from typing import Any

from hydra.errors import HydraException
from hydra.utils import instantiate
from omegaconf import OmegaConf
from pytorch_lightning.loggers import Logger, TensorBoardLogger, WandbLogger

from fracdna_prep.errors import InputError

MODES = ("online", "offline", "disabled")


class WandbRun(WandbLogger):
    """Lightning's logger, whose W&B run ends when training does and not when Python does."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        # W&B warns that it ignores this one, which Lightning always gives
        self._wandb_init.pop("anonymous", None)

    def finalize(self, status: str) -> None:
        """Send what is left; a run that stopped may be continued under the same id."""
        super().finalize(status)
        if self._experiment is not None:
            self._experiment.finish(exit_code=0 if status == "success" else 1)
            self._experiment = None


def build_logger(configuration: dict[str, Any], output: Path) -> Logger | None:
    """The logger that is chosen; None for none.

    Args:
        configuration: all options of the run; those of the logger stand under "logger", where the
            id of a W&B run is noted, so that a resumed run finds it in its config.yaml.
        output: folder of the run.

    Raises:
        InputError: the logger cannot be built here.
    """
    chosen = configuration["logger"]
    if "id" in chosen:
        known = _noted_id(output) if configuration["resume"] else None
        chosen["id"] = chosen["id"] or known or secrets.token_hex(4)
    try:
        make = instantiate({**chosen, "_partial_": True, "_convert_": "all"})
        return make(output, configuration)
    except (HydraException, TypeError) as error:
        raise InputError(f"the logger cannot be built: {error}") from error


def no_logger(output: Path, configuration: dict[str, Any]) -> None:
    """Nothing but metrics.csv and metrics.png."""


def tensorboard(output: Path, configuration: dict[str, Any]) -> Logger:
    """Event files in the folder tensorboard of the run."""
    return TensorBoardLogger(output, name="tensorboard", version="")


def wandb(
    output: Path,
    configuration: dict[str, Any],
    *,
    project: str,
    name: str | None,
    group: str | None,
    entity: str | None,
    mode: str,
    id: str,
    **options: Any,
) -> Logger:
    """Weights & Biases, through Lightning; a resumed run goes on with its id.

    Args:
        output: folder of the run.
        configuration: all options of the run, which are kept with it.
        project: that runs are listed under.
        name: of the run; None: that of the folder.
        group: of runs that belong together.
        entity: user or team; None: whoever is logged in.
        mode: online, offline (kept here, for `wandb sync`) or disabled.
        id: of the W&B run.
        options: further ones of wandb.init.

    Raises:
        InputError: another mode or option, the package is missing, or nobody is logged in.
    """
    if mode not in MODES:
        raise InputError(f"logger.mode={mode}: choose one of {', '.join(MODES)}")
    if importlib.util.find_spec("wandb") is None:
        raise InputError(
            "logger=wandb needs the package wandb: pip install 'fracdna[wandb]', or leave "
            "logger=wandb out"
        )
    _check_options(options)
    _check_names(project=project, entity=entity, run_group=group, run_id=id, options=options)
    if mode == "online":
        _check_login()
    return WandbRun(
        name=name or output.name, save_dir=output, project=project, group=group, entity=entity,
        mode=mode, id=id, config=configuration, **options,
    )  # fmt: skip


def _noted_id(output: Path) -> str | None:
    """The id of the W&B run that an earlier part of this run wrote to."""
    path = output / "config.yaml"
    return OmegaConf.select(OmegaConf.load(path), "logger.id") if path.is_file() else None


def _check_options(options: dict[str, Any]) -> None:
    """Refuse what wandb.init does not take."""
    import wandb as package

    known = inspect.signature(package.init).parameters
    for name in options:
        if name not in known:
            raise InputError(
                f"logger.{name}: wandb.init has no such option; it has {', '.join(sorted(known))}"
            )


def _check_names(*, options: dict[str, Any], **settings: str | None) -> None:
    """Refuse names that W&B would refuse at the first step."""
    import wandb as package

    try:
        package.Settings(**settings, run_tags=options.get("tags"))
    except Exception as error:  # of several kinds, none of them ValueError
        raise InputError(f"logger=wandb cannot be used so: {error}") from error


def _check_login() -> None:
    """Refuse a run that W&B would not take, now and not at its first step.

    Raises:
        InputError: no key is found, or the server does not answer or know it.
    """
    import wandb as package

    try:
        obstacle = "" if package.login(prompt=False) else "nobody is logged in"
    except Exception as error:  # of the network or the server, which have no common type
        obstacle = str(error)
    if obstacle:
        raise InputError(
            f"logger=wandb cannot reach Weights & Biases ({obstacle}): run `wandb login`, or keep "
            "the run here with logger.mode=offline and send it later with `wandb sync`"
        )
