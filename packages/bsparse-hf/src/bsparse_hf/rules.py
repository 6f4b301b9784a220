"""Rules: which modules to patch, and how."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from bsparse_hf.config import FORMATS
from bsparse_torch.masks import CHOICES, block_pair
from bsparse_torch.pattern import check_format


@dataclass(frozen=True)
class PatchRule:
    """One rule: the modules whose whole name matches `pattern` become block-sparse.

    pattern: regular expression for the whole module name (`re.fullmatch`).
    density: fraction of blocks to keep, in (0, 1]; None with `choose="nonzero"`, which keeps every block that holds a
        nonzero weight.
    block: elements of a block, (rows along out_features, columns along in_features).
    format: storage format, "bsr".
    choose: "magnitude" keeps the blocks of largest L2 norm over the whole matrix; "nonzero" see `density`.
    force: also patch what is skipped by default: tied weights, output heads, routers, and modules that do not gain.
    """

    pattern: str
    density: float | None
    block: tuple[int, int]
    format: str
    choose: str
    force: bool

    def matches(self, name: str) -> bool:
        """Whether the whole of `name` matches."""
        return re.fullmatch(self.pattern, name) is not None

    def __str__(self) -> str:
        kept = "every nonzero block" if self.density is None else f"density {self.density:g} by {self.choose}"
        force = ", force" if self.force else ""
        return f"{self.pattern}   {self.format} {self.block[0]}x{self.block[1]}, {kept}{force}"


def make_rule(pattern: str, options: Mapping[str, Any]) -> PatchRule:
    """Checks the options of a rule and completes them with the defaults.

    Raises TypeError for a wrong type, ValueError for a wrong value, NotImplementedError for a format that is not served
    yet; each names the option.
    """
    unknown = sorted(set(options) - DEFAULTS.keys())
    if unknown:
        raise ValueError(f"unknown option {unknown[0]!r} of a rule; the options are {', '.join(DEFAULTS)}")
    given = {**DEFAULTS, **options}
    check_format(given["format"], FORMATS)
    if given["choose"] not in CHOICES:
        raise ValueError(f"choose is {given['choose']!r}; it must be one of: {', '.join(CHOICES)}")
    if not isinstance(given["force"], bool):
        raise TypeError(f"force is {given['force']!r}; it must be True or False")
    return PatchRule(
        pattern=_pattern(pattern),
        density=_density(given["density"], given["choose"]),
        block=block_pair(given["block"]),
        format=given["format"],
        choose=given["choose"],
        force=given["force"],
    )


DEFAULTS: Mapping[str, Any] = {
    "density": None,
    "block": 64,
    "format": "bsr",
    "choose": "magnitude",
    "force": False,
}


def _pattern(pattern: object) -> str:
    if not isinstance(pattern, str):
        raise TypeError(f"pattern is {pattern!r}; it must be a string: a regular expression for whole module names")
    try:
        re.compile(pattern)
    except re.error as error:
        raise ValueError(f"pattern {pattern!r} is not a regular expression: {error}") from error
    return pattern


def _density(density: object, choose: object) -> float | None:
    if choose == "nonzero":
        if density is not None:
            raise ValueError(f"density is {density!r}; choose='nonzero' decides it: leave density out")
        return None
    if density is None:
        raise ValueError("density is missing; it must be in (0, 1]: pass density=0.25 to keep a quarter of the blocks")
    if isinstance(density, bool) or not isinstance(density, int | float):
        raise TypeError(f"density is {density!r}; it must be a number in (0, 1]")
    if not 0 < density <= 1:
        raise ValueError(f"density is {density}; it must be in (0, 1]: pass 0.25 to keep a quarter of the blocks")
    return float(density)
