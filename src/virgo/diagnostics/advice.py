"""The one advice of a verdict, tried before it is given: what ``virgo.init_(model, data)`` does."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from virgo import auto
from virgo.diagnostics.measurement import PreparedModel
from virgo.diagnostics.verdict import Finding
from virgo.errors import VirgoError
from virgo.network.modules import preserved
from virgo.network.probe import Loss
from virgo.planning import Options
from virgo.plans import Plan

_DIRECTIONS = {"forward": "signal", "backward": "gradient"}
_ELSE = {
    "dead units": "a wider layer or an activation that is not zero for half of its inputs",
    "no signal at the first hop": "other features or edge weights",
}
_STRUCTURE = "fewer layers, residual connections or a norm between the layers"


def advise(
    subject: PreparedModel,
    plan: Plan | None,
    loss: Loss | None,
    seed: int,
    findings: Sequence[Finding],
    level_with: Callable[[Plan], str],
) -> str:
    """What to do about the findings, with its measured effect.

    Args:
        subject: the model on its data, which come out as they went in.
        plan: start from the weights that this plan draws, not from the model's own.
        loss: of the measurement.
        seed: of what is tried.
        findings: what is wrong, worst first.
        level_with: the verdict on the model with another plan's weights.

    Returns:
        One or two sentences.
    """
    otherwise = _ELSE.get(findings[0].cause, _STRUCTURE)
    with preserved(subject.model, weights=True):
        if plan is not None:
            plan.apply_(subject.model)
        options = Options(seed=seed, forward=subject.forward, loss=loss)
        try:
            chosen = auto.choose(subject.model, subject.inputs, options)
            level = level_with(chosen) if chosen.rows else ""
        except VirgoError as error:
            return f"virgo.init_(model, data) does not serve this model ({error}) Try {otherwise}."
    if not chosen.rows:
        return f"virgo.init_(model, data) was tried and gains nothing here; try {otherwise}."
    effect = f"Try virgo.init_(model, data): tried here, it {_effect(chosen)}"
    if level == "good":
        return f"{effect}, and the verdict is then good."
    return f"{effect}, and the verdict is then {level}; beyond that, {otherwise}."


def _effect(plan: Plan) -> str:
    """What a chosen plan does to the range that it narrows most."""
    assert plan.choice is not None, "auto says what it tried"
    tried = {candidate["name"]: candidate for candidate in plan.choice["tried"]}
    before, after = plan.choice["tried"][0], tried[plan.choice["chosen"]]

    def gain(direction: str) -> float:
        now, then = after[direction], before[direction]
        if now is None:
            return 0.0
        return float("inf") if then is None else then / now

    direction = max(_DIRECTIONS, key=gain)
    was = "infinity" if before[direction] is None else f"x{before[direction]:.2g}"
    if gain(direction) < 1.1:
        return "keeps directions apart that were one"
    return f"narrows the {_DIRECTIONS[direction]}'s range from {was} to x{after[direction]:.2g}"
