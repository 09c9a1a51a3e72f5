"""Appendix A on the page of results and on its own: ours beside the paper's, counted.

Called by ``docs/refresh.py``; the numbers are those of ``results/verify.json`` (``virgo verify``)
and ``results/a1_readings.json`` (``benchmarks/a1_readings.py``).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from virgo.experiments.assumptions.released import APPENDIX_ORDER, IN_ORDER, RELEASED

#: What the paper's numbers are to be met within.
CLOSE = 0.05


def _pairs(verified: Mapping[str, Any], table: str, reading: str) -> list[tuple[Any, float]]:
    """Our cell beside the paper's mean, all datasets and lengths."""
    pairs = []
    for result in verified.get("datasets", {}).values():
        for row in result[table]["rows"]:
            if row["reading"] == reading:
                cells = zip(row["cells"], row["paper"], strict=False)
                pairs += [(cell, paper[0]) for cell, paper in cells if cell]
    return pairs


def _off(verified: Mapping[str, Any], table: str, reading: str) -> float:
    pairs = _pairs(verified, table, reading)
    return max((abs(cell["mean"] - paper) for cell, paper in pairs), default=0.0)


def _close(mean: float, paper: float) -> bool:
    """Within 0.05, to the two digits that the paper prints."""
    return abs(round(mean, 2) - paper) <= CLOSE + 1e-9


def _counts(pairs: list[tuple[Any, float]]) -> tuple[int, int, int]:
    """Cells close to the paper's, cells whose range of draws holds the paper's, cells."""
    close = sum(_close(cell["mean"], paper) for cell, paper in pairs)
    inside = sum(round(c["low"], 2) <= paper <= round(c["high"], 2) for c, paper in pairs)
    return close, inside, len(pairs)


def summary(verified: Mapping[str, Any]) -> list[list[str]]:
    """The rows of the first table: claim, by its own protocol, by a clean one, why."""
    a1 = _pairs(verified, "message_paths", RELEASED)
    if not a1:
        return []
    values = [cell["mean"] for cell, _ in a1]
    printed = [paper for _, paper in a1]
    as_printed = [cell["mean"] for cell, _ in _pairs(verified, "message_paths", "as printed")]
    close, inside, number = _counts(a1)
    turned, within, _ = _counts(_pairs(verified, "message_paths", APPENDIX_ORDER))
    a2 = _off(verified, "weight_paths", RELEASED)
    a3 = _off(verified, "delta_and_weight_path", RELEASED)
    squares = _off(verified, "delta_and_weight_path", "squares, as released")
    pairs = _pairs(verified, "delta_and_weight_path", "as printed")
    first = [cell["mean"] for cell, _ in pairs][::3]
    return [
        [
            "A1: message paths are correlated by 0.83 to 0.94",
            f"as released: {min(values):.2f} to {max(values):.2f} (paper on these graphs "
            f"{min(printed):.2f} to {max(printed):.2f}); {close} of {number} cells within "
            f"{CLOSE}, {inside} within the range of our draws; with layers in the appendix's order "
            f"**{turned}** and {within}",
            f"**no**: as printed {min(as_printed):.2f} to {max(as_printed):.2f}",
            "the script compares paths of one node, without features, and counts the diagonal of "
            "ones; [details](theory_assumptions.md)",
        ],
        [
            "A2: weight paths are not correlated",
            f"as released: all cells within {a2:.2f}",
            "yes",
            "absolute values of noise over 128 neurons",
        ],
        [
            "A3: δ and weight paths are not correlated",
            f"as released: all cells within {max(a3, squares):.2f}",
            f"squares yes; plain **no** for length 1 ({min(first):.2f} to {max(first):.2f})",
            "the script picks weights at random, not those that made the sign",
        ],
        [
            "A4, A5: δ is open half of the time, softmax is 1/C",
            "yes",
            "yes",
            "[details](theory_assumptions.md)",
        ],
    ]


def a1_draws(verified: Mapping[str, Any]) -> str:
    """A1 as released in both orders: how many cells are the paper's, and which are not."""
    lines = []
    orders = (
        (RELEASED, "In the order that the script prints"),
        (IN_ORDER, "By length"),
        (APPENDIX_ORDER, "By length, layers in the appendix's order"),
    )
    for reading, words in orders:
        close, inside, number = _counts(_pairs(verified, "message_paths", reading))
        lines.append(
            f"- {words}: {close} of {number} means within {CLOSE} of the paper's, {inside} of "
            f"{number} of the paper's values inside the range of 95 % of our draws."
        )
    outside: dict[str, list[str]] = {RELEASED: [], APPENDIX_ORDER: []}
    between, draws = [], 0
    for name, result in verified.get("datasets", {}).items():
        draws = result["settings"]["seeds"]
        for row in result["message_paths"]["rows"]:
            if row["reading"] not in outside:
                continue
            for length, (cell, paper) in enumerate(zip(row["cells"], row["paper"], strict=True), 1):
                between.append(cell["between"])
                low, high = round(cell["low"], 2), round(cell["high"], 2)
                if not low <= paper[0] <= high:
                    outside[row["reading"]].append(
                        f"{name}, column {length} (paper {paper[0]:.2f}, our draws {low:.2f} to "
                        f"{high:.2f})"
                    )
    for reading, words in orders:
        if reading in outside:
            lines.append(f"- {words}, outside the range: {'; '.join(outside[reading]) or 'none'}.")
    lines.append(
        f"- Our mean moves by {min(between):.2f} to {max(between):.2f} (standard deviation) from "
        f"one draw to the next, {draws} draws; the paper shows one."
    )
    return "\n".join(lines)


def a1_readings(found: Mapping[str, Any]) -> str:
    """Each other reading of the script: its means, and how many cells are the paper's."""
    if not found:
        return "not run"
    graphs = list(found["paper"])
    header = ["reading", *graphs, "printed order: within 0.05 / in range", "by length"]
    lines = [header, ["---"] + ["--:"] * (len(header) - 1)]
    for words, by_graph in found["readings"].items():
        cells = [
            " ".join(f"{mean:.2f}" for mean in reversed(by_graph[name]["mean"])) for name in graphs
        ]
        draws = min(by_graph[name]["draws"] for name in graphs)
        counts = []
        for step in (-1, 1):
            close, inside, number = _counts(
                [
                    ({"mean": mean, "low": low, "high": high}, paper[0])
                    for name in graphs
                    for mean, low, high, paper in zip(
                        *(by_graph[name][key][::step] for key in ("mean", "low", "high")),
                        found["paper"][name],
                        strict=True,
                    )
                ]
            )
            # a range of three draws says little
            counts.append(f"{close} / {inside} of {number}" if draws >= 10 else f"{close} / -")
        lines.append([words, *cells, *counts])
    paper = [" ".join(f"{cell[0]:.2f}" for cell in found["paper"][name]) for name in graphs]
    lines.append(["**paper**", *paper, "", ""])
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)
