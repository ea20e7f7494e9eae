"""The links that `shardwright train` fits, and the errors of everything that predicts collectives, side by side."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from shardwright.cli.output import MISSING, percent, table

if TYPE_CHECKING:
    import rich.table

    from shardwright.cost.links import Collectives, LinkFit, LinkFits, PassErrors


@dataclass(frozen=True)
class Links:
    """Fitted links and their errors on held-out collectives.

    Attributes:
        fits: fits by name; see `shardwright.cost.links.FITS`.
        errors: errors by label of the collectives, such as "4 devices", and by name.
    """

    fits: dict[str, LinkFits]
    errors: dict[str, dict[str, PassErrors]]


def fitted_links(collectives: Sequence[Collectives], seed: int) -> Links:
    """Fit latency and bandwidth of the links on 80% of the collectives. The errors are on the 10% that networks are tested on."""
    from shardwright.cost.links import fit_links, link_errors, split

    parts = [split(part, seed) for part in collectives]
    fits = fit_links([train for train, _, _ in parts])
    errors = {
        part.label: link_errors(fits, [test], [part]) for part, (_, _, test) in zip(collectives, parts, strict=True)
    }
    return Links(fits, errors)


def links_metadata(links: Links) -> dict[str, str]:
    """The fits and their mean errors, for a model's metadata; empty without fits."""
    from shardwright.cost.links import LINKS, links_to_text

    if not links.fits:
        return {}
    return {LINKS: links_to_text(links.fits)} | error_metadata("links", links.errors)


def error_metadata(what: str, errors: Mapping[str, Mapping[str, PassErrors]]) -> dict[str, str]:
    """Mean errors by devices and pass, for a model's metadata."""
    return {
        f"{what}_{label.replace(' ', '_')}_{name}_mean_error": f"{found.mean_error:.5f}"
        for label, by_name in errors.items()
        for name, found in by_name.items()
    }


def links_document(links: Links) -> dict[str, Any]:
    """The fits and their errors as plain data."""
    return {"fits": {name: asdict(fit) for name, fit in links.fits.items()}, "errors": errors_document(links.errors)}


def errors_document(errors: Mapping[str, Mapping[str, PassErrors]]) -> dict[str, Any]:
    """Errors as plain data."""
    return {label: {name: asdict(found) for name, found in e.items()} for label, e in errors.items()}


def links_table(links: Links) -> rich.table.Table:
    """A table of latency and bandwidth of each kind of collective."""
    columns = ("collective", "latency inside a host", "GB/s", "latency between hosts", "GB/s")
    rows = [[name, *_figures(fit.intra), *_figures(fit.inter)] for name, fit in links.fits.items()]
    return table("fitted links, latency in ms", columns, rows)


def errors_table(links: Links, networks: Mapping[str, Mapping[str, PassErrors]] | None = None) -> rich.table.Table:
    """A table of errors of the fitted links and, if there are any, of NeuroShard's networks, beside repeat noise."""
    rows = []
    for label, by_name in links.errors.items():
        for name, found in by_name.items():
            of_network = (networks or {}).get(label, {}).get(name)
            row = [f"{name}, {label}", _errors(found)]
            row += [_errors(of_network)] if networks else []
            rows.append([*row, percent(found.repeat_error)])
    columns = ["collective", "fitted links", *(["neuroshard"] if networks else []), "repeats differ by"]
    return table("relative error of a device's time, mean (median), collectives held out", columns, rows)


def _figures(fit: LinkFit | None) -> tuple[str, str]:
    return (MISSING, MISSING) if fit is None else (f"{fit.latency_ms:.4f}", f"{fit.bandwidth / 1e9:.3f}")


def _errors(found: PassErrors | None) -> str:
    return MISSING if found is None else f"{percent(found.mean_error)} ({percent(found.median_error)})"
