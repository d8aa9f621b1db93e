"""An ablation is data: this reads `ablations/<name>.yaml` into a `Matrix`, strictly.

A matrix has a question, a baseline, its arms (listed, or spanned by axes: see axes.py), the claims it tests and the
figures it draws. Names and kinds are checked here, values of configuration keys by the configuration loader when a plan
is made. The whole of a small one, to be run by `mmctl ablate path/to/window.yaml`:

    name: window
    question: How much does the reach of the short-term memory matter?
    baseline: {set: {model.name: mosaic-v2}}
    axes:                                       # or `arms:`, as the shipped ones have
      model.window: [32, 48, 64]                # the first value is the baseline's
      evaluate.remove_long_term: [false, true]  # evaluation only: reuses the trained run
    combine: product                            # default: one-at-a-time; or zip
    exclude:
      - {when: {model.window: 48, evaluate.remove_long_term: true}, reason: not of interest}
    claims:
      - id: wider
        statement: A wider window models text better.
        metric: text/loss@1x                    # a score; train_loss; diagnostics:<name>
        treatment: window=64
        control: baseline
        expected: less                          # greater, less, no-effect, or range with `range: [low, high]`
        margin: 0.01                            # the largest difference that counts as none
        published:                              # left out for a hypothesis of one's own
          {source: arXiv 2507.03285, metric: loss, value: "12 against 10", effect: -2, unit: points}

Besides `set` and `evaluate` an arm may have `match: {parameters_of: ARM, key: model.ffn_width}` (or `flops_of`; several
keys refine one another), `times: {training.steps: 8}` (multiples of what it would else have) and `compare_to: ARM`.
`across:` makes numbers from several arms of one seed (across.py), such as the mean over sizes at equal cost. A
shipped matrix with `only_by_name: true` is not among those that run when none is named.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mmctl.errors import UsageError, nearest
from mmctl.evaluation.changes import AS_TRAINED, CHANGES, Changes
from mmctl.sweeps import across, reading
from mmctl.sweeps.across import Across
from mmctl.sweeps.claims import Claim, read_claim
from mmctl.sweeps.reading import Section

MATCHED = ("parameters", "flops")
"""What arms can be matched in: parameters, or FLOPs per token over the training length (executed)."""


@dataclass(frozen=True)
class Match:
    """Sizes set so that this arm costs what arm `of` does: one key after the other takes the whole number that comes
    closest."""

    of: str
    what: str
    """One of MATCHED."""
    keys: tuple[str, ...]


@dataclass(frozen=True)
class Arm:
    """One variant: what it sets before training, or changes at evaluation. `levels` are its values on each axis."""

    name: str
    label: str
    set: Mapping[str, Any] = field(default_factory=dict)
    evaluate: Changes = AS_TRAINED
    match: Match | None = None
    times: Mapping[str, int] = field(default_factory=dict)
    """Whole numbers by which it multiplies what it would else have, such as training.steps."""
    levels: Mapping[str, Any] = field(default_factory=dict)
    compare_to: str | None = None
    """The arm that comparisons are flagged against when parameters or FLOPs differ; None: the first arm."""


@dataclass(frozen=True)
class Matrix:
    """One ablation. `digest` is the SHA-256 of its file."""

    name: str
    question: str
    file: Path
    digest: str
    baseline: Mapping[str, Any]
    arms: tuple[Arm, ...]
    excluded: tuple[tuple[Arm, str], ...]
    seeds: tuple[int, ...] | None
    claims: tuple[Claim, ...]
    figures: tuple[str, ...]
    only_by_name: bool = False
    """Not among those that `mmctl ablate` runs when none is named."""
    siblings: tuple[Arm, ...] = ()
    """Arms left out by a selection; others may still be matched to them."""
    across: tuple[Across, ...] = ()
    """Numbers made from several arms of one seed, for claims to compare."""

    def arm(self, name: str) -> Arm:
        return next(a for a in self.arms if a.name == name)

    def axes(self) -> dict[str, list[Any]]:
        """Every key this ablation varies, with its values in order of appearance."""
        values: dict[str, list[Any]] = {}
        for arm in self.arms:
            for key, value in arm.levels.items():
                if value not in values.setdefault(key, []):
                    values[key].append(value)
        return values


def shipped() -> dict[str, Path]:
    """The ablations that come with mmctl: name -> file."""
    import mmctl.ablations

    folder = Path(next(iter(mmctl.ablations.__path__)))
    return {path.stem: path for path in sorted(folder.glob("*.yaml"))}


def find(names: list[str]) -> list[Matrix]:
    """Load ablations by name, or by path for a user's own. No names: all that are shipped, but for those
    `only_by_name`."""
    available = shipped()
    if not names:
        return [matrix for matrix in map(load, available.values()) if not matrix.only_by_name]
    matrices = []
    for wanted in names:
        if wanted in available:
            path = available[wanted]
        elif wanted.endswith((".yaml", ".yml")) or "/" in wanted:
            path = Path(wanted)
        else:
            raise UsageError(f'"{wanted}": no such ablation{nearest(wanted, available, "ablations")}')
        matrices.append(load(path))
    for i, matrix in enumerate(matrices):
        for other in matrices[:i]:
            if other.name == matrix.name:
                raise UsageError(f'ablation "{matrix.name}" is given twice ({other.file}, {matrix.file})')
    return matrices


def load(path: Path) -> Matrix:
    """Read and check one matrix. UsageError naming file, key, what was expected and the nearest valid name."""
    from mmctl.sweeps.axes import expand

    top = reading.load(path)
    name = top.take("name", reading.name)
    question = top.take("question", reading.text)
    baseline = top.take("baseline", _baseline)
    arms: tuple[Arm, ...] = ()
    excluded: tuple[tuple[Arm, str], ...] = ()
    if top.has("arms") == top.has("axes"):
        both = ", not both" if top.has("arms") else ""
        top.attempt(lambda: top.fail("arms", f"expected either arms or axes{both}"), None)
    elif top.has("arms"):
        for key in ("combine", "exclude"):
            if top.has(key):
                top.fail(key, "belongs to axes; listed arms are simply not listed")
        arms = tuple(top.take("arms", reading.list_of(_arm, least=2)) or ())
    else:
        arms, excluded = top.attempt(lambda: expand(top), (arms, excluded))
    seeds = top.take("seeds", reading.list_of(reading.whole, least=1), None)
    known = [a.name for a in arms]
    top.attempt(lambda: reading.unique(top, "arms", known), None)
    wrong = len(top.problems)
    made = tuple(top.take("across", reading.list_of(lambda s, k, v: across.read(s, k, v, known)), []) or ())
    derived = across.names(made)
    top.attempt(lambda: reading.unique(top, "across", [*known, *derived]), None)
    # Of a wrong `across` the names are not known: claims that compare them are not called wrong for it.
    compared = [*known, *derived] if known and len(top.problems) == wrong else []
    claims = tuple(top.take("claims", reading.list_of(lambda s, k, v: read_claim(s, k, v, compared)), []) or ())
    figures = tuple(top.take("figures", reading.list_of(_figure), []) or ())
    only_by_name = top.take("only_by_name", reading.flag, False)
    top.done()
    _check_references(top, arms)
    if seeds is not None:
        reading.unique(top, "seeds", map(str, seeds))
        if min(seeds) < 0:
            top.fail("seeds", f"{min(seeds)}: expected 0 or more")
    reading.unique(top, "claims", (c.id for c in claims))
    return Matrix(
        name=name,
        question=question,
        file=path,
        digest=hashlib.sha256(path.read_bytes()).hexdigest(),
        baseline=baseline,
        arms=arms,
        excluded=excluded,
        seeds=tuple(seeds) if seeds is not None else None,
        claims=claims,
        figures=figures,
        only_by_name=only_by_name,
        across=made,
    )


def _baseline(parent: Section, key: str, value: Any) -> dict[str, Any]:
    """What every arm starts from. What is scored is the ablation's too, where its claims need other lengths than the
    preset's or the attention."""
    part, scored = reading.section(parent, key, value), ("evaluation.lengths", "evaluation.attention")
    found = part.take("set", lambda s, k, v: reading.settings(s, k, v, scored), {})
    part.done()
    return found


def _arm(parent: Section, key: str, value: Any) -> Arm:
    part = reading.section(parent, key, value)
    name = part.take("name", reading.name)
    label = part.take("label", reading.text, name)
    changed = part.take("set", reading.settings, {})
    evaluate = part.take("evaluate", changes, AS_TRAINED)
    match = part.take("match", _match, None)
    times = part.take("times", _times, {})
    compare_to = part.take("compare_to", reading.name, None)
    part.done()
    levels = dict(changed) | {f"times.{key}": factor for key, factor in times.items()}
    levels |= evaluate.levels() if evaluate else {}
    return Arm(name, label, changed, evaluate, match, times, levels, compare_to)


def changes(parent: Section, key: str, value: Any) -> Changes:
    """`evaluate: {remove_long_term: true, delay: 16, pace: {bank: true}}`, or dotted: `pace.bank: true`."""
    part = reading.section(parent, key, value)
    removed, delay = part.take("remove_long_term", reading.flag, False), part.take("delay", reading.whole, None)
    settings: dict[str, Any] = {}
    for name, given in part.values.items():
        name, dot, leaf = name.partition(".")
        if name in CHANGES:
            part.has(f"{name}{dot}{leaf}")
            if (name in settings) and not (dot and isinstance(settings[name], dict) and leaf not in settings[name]):
                part.fail(name, "is given twice")
            if dot:
                settings.setdefault(name, {})[leaf] = given
            else:
                settings[name] = given
    part.asked += CHANGES  # to be suggested for what is mistyped
    part.done()
    if delay is not None and delay < 1:
        part.fail("delay", f"{delay}: expected at least 1")
    try:
        return Changes.of({"remove_long_term": removed, "delay": delay, **settings})
    except UsageError as error:
        part.fail("", str(error))


def _match(parent: Section, key: str, value: Any) -> Match:
    part = reading.section(parent, key, value)
    of = {what: part.take(f"{what}_of", reading.name, None) for what in MATCHED}
    given = [what for what, arm in of.items() if arm is not None]
    if len(given) != 1:
        part.fail(
            "parameters_of" if not given else f"{given[1]}_of",
            f"expected one of {' and '.join(f'{w}_of' for w in MATCHED)}",
        )
    found = part.take("key", _keys)
    part.done()
    return Match(of[given[0]] if given else "", given[0] if given else MATCHED[0], found)


def _keys(section: Section, key: str, value: Any) -> tuple[str, ...]:
    """One key, or several of which each refines the ones before."""
    if isinstance(value, list):
        return tuple(reading.list_of(reading.text, least=1)(section, key, value))
    return (reading.text(section, key, value),)


def _times(section: Section, key: str, value: Any) -> dict[str, int]:
    """`times: {training.steps: 8}`."""
    found = reading.settings(section, key, value)
    for name, factor in found.items():
        if type(factor) is not int or factor < 2:
            section.fail(f"{key}.{name}", f"{factor}: expected a whole number of at least 2")
    return found


def _figure(section: Section, key: str, value: Any) -> str:
    from mmctl.plots import FIGURES

    return reading.one_of(*FIGURES)(section, key, value)


def _check_references(top: Section, arms: tuple[Arm, ...]) -> None:
    names = [a.name for a in arms]
    for i, arm in enumerate(arms):
        part = Section(top.file, f"arms[{i}]", {})
        for key, wanted in (
            (f"match.{arm.match.what}_of" if arm.match else "", arm.match.of if arm.match else None),
            ("compare_to", arm.compare_to),
        ):
            if wanted is None:
                continue
            if wanted not in names or wanted == arm.name:
                part.fail(key, f'"{wanted}": expected another arm{nearest(wanted, names, "arms")}')
        if arm.match and next(a for a in arms if a.name == arm.match.of).match:
            part.fail(f"match.{arm.match.what}_of", f'"{arm.match.of}" is matched itself: name the arm it follows')
