"""`shardwright models`: list, show and remove cost models, bundled ones and those calibrated here."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from shardwright.cli.options import AsJson
from shardwright.cli.output import MISSING, emit, percent, table
from shardwright.errors import InvalidInput
from shardwright.task.quantities import did_you_mean

if TYPE_CHECKING:
    from shardwright.cli.documents import measuring

_COVERAGE = ("optimizer", "batch_sizes", "tables", "task")


def run(
    *,
    action: Annotated[str, typer.Argument(metavar="[list|show|remove]", help="What to do.")] = "list",
    name: Annotated[
        str | None, typer.Argument(metavar="[NAME]", help="Name of a model, or of its file.", show_default=False)
    ] = None,
    as_json: AsJson = False,
) -> None:
    """List cost models, show the metadata of one, or remove one that was calibrated here.

    Example:
        shardwright models
        shardwright models show cpu/convex-1f0e9a3b
    """
    if action not in ("list", "show", "remove"):
        raise InvalidInput(f"action is {action!r}, must be list, show or remove")
    models = _models()
    document: measuring.Models = {"models": models}
    if action == "list":
        if name is not None:
            raise InvalidInput(f"list takes no name, and {name!r} was given: use show, or leave it out")
        emit(document, _view(models), as_json=as_json)
        return
    if name is None:
        raise InvalidInput(f"{action} needs the name of a model; 'shardwright models' lists them")
    chosen = [
        model for model in models if name in (model["name"], model["file"], (model["file"] or "").rpartition("/")[2])
    ]
    if not chosen:
        close = did_you_mean(name, [model["name"] for model in models])
        raise InvalidInput(f"there is no model {name!r}; 'shardwright models' lists those there are{close}")
    if action == "show":
        document = {"models": chosen}
        emit(document, *[_details(model) for model in chosen], as_json=as_json)
        return
    _remove(chosen)
    removed: measuring.ModelsRemove = {"removed": chosen}
    emit(removed, *[f"removed {model['file']}" for model in chosen], as_json=as_json)


def _models() -> list[measuring.Model]:
    """The bundled models, those from published figures, then the user's own."""
    from shardwright.cost.choice import user_models
    from shardwright.cost.files import bundled_models, model_header, provenance
    from shardwright.cost.published import GPUS, PublishedModel

    every: list[tuple[Path | None, dict[str, str], bool]]
    every = [(path, model_header(path), True) for path in bundled_models().values()]
    every += [(None, dict(PublishedModel(device).metadata), True) for device in GPUS]
    every += [(model.path, dict(model.metadata), False) for model in user_models()]
    return [
        {
            "name": metadata.get(
                "name", f"{metadata.get('device', path and path.stem)}/{metadata.get('head', 'unknown')}"
            ),
            "bundled": bundled,
            "origin": provenance(metadata) or "of unknown origin",
            "file": str(path) if path else None,
            "bytes": path.stat().st_size if path else None,
            "metadata": metadata,
        }
        for path, metadata, bundled in every
    ]


def _view(models: list[measuring.Model]) -> Table:
    rows = [
        [
            model["name"] + (" (bundled)" if model["bundled"] else ""),
            model["origin"].partition(", mean error")[0].partition("; leave-one-source-out")[0],
            "; ".join(model["metadata"][key] for key in _COVERAGE if model["metadata"].get(key)),
            _error(model["metadata"]),
            f"{model['bytes'] / 1e3:.0f} kB" if model["bytes"] else MISSING,
        ]
        for model in models
    ]
    return table("cost models", ("model", "origin", "covers", "error", "size"), rows, texts=(0, 1, 2))


def _error(metadata: dict[str, str]) -> str:
    """The mean error on sets that a learned model had not seen; for published ones, the leave-one-source-out median."""
    if "half_within" in metadata:
        return f"median {percent(float(metadata['half_within']))}"
    return percent(float(metadata["mean_error"])) if "mean_error" in metadata else MISSING


def _details(model: measuring.Model) -> Table:
    rows = [[key, value] for key, value in model["metadata"].items() if key not in ("features", "half_within")]
    if "half_within" in model["metadata"]:
        rows.append(["error", f"{_error(model['metadata'])}, leave-one-source-out"])
    return table(model["name"], ("field", "value"), [["file", model["file"] or MISSING], *rows], texts=(0, 1))


def _remove(chosen: list[measuring.Model]) -> None:
    if len(chosen) > 1:
        raise InvalidInput(
            f"{len(chosen)} models have this name; name the file of one ('shardwright models show NAME' lists the files)"
        )
    if chosen[0]["bundled"] or chosen[0]["file"] is None:
        raise InvalidInput(
            f"{chosen[0]['name']} comes with the package; only models that were calibrated here can be removed"
        )
    Path(chosen[0]["file"]).unlink()
