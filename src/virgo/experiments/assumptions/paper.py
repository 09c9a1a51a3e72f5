"""The numbers of the paper's appendix A, as printed: table, row, then one cell per path length.

A cell is (mean, standard deviation). The tables are named by their labels in the paper's source.
"""

from __future__ import annotations

Printed = tuple[float, float]

APPENDIX: dict[str, dict[str, tuple[Printed, ...]]] = {
    "est_mpaths": {
        "cora": ((0.83, 0.13), (0.86, 0.12), (0.84, 0.15)),
        "pubmed": ((0.89, 0.09), (0.89, 0.09), (0.93, 0.06)),
        "citeseer": ((0.83, 0.12), (0.85, 0.11), (0.85, 0.12)),
        "arxiv": ((0.91, 0.06), (0.91, 0.05), (0.94, 0.04)),
    },
    "est_wpaths": {
        "cora": ((0.07, 0.05), (0.07, 0.07), (0.05, 0.07)),
        "pubmed": ((0.06, 0.04), (0.07, 0.06), (0.04, 0.06)),
        "citeseer": ((0.07, 0.05), (0.06, 0.05), (0.03, 0.04)),
        "arxiv": ((0.07, 0.06), (0.08, 0.07), (0.07, 0.06)),
    },
    "est_delta_wpaths_1": {
        "cora": ((0.04, 0.03), (0.05, 0.03), (0.06, 0.04)),
        "pubmed": ((0.04, 0.03), (0.04, 0.03), (0.06, 0.04)),
        "citeseer": ((0.04, 0.03), (0.05, 0.04), (0.04, 0.03)),
        "arxiv": ((0.02, 0.01), (0.03, 0.01), (0.1, 0.01)),
    },
    "est_delta_wpaths_2": {
        "cora": ((0.05, 0.03), (0.04, 0.03), (0.03, 0.03)),
        "pubmed": ((0.05, 0.04), (0.04, 0.03), (0.03, 0.03)),
        "citeseer": ((0.04, 0.05), (0.05, 0.03), (0.05, 0.03)),
        "arxiv": ((0.03, 0.01), (0.04, 0.01), (0.01, 0.01)),
    },
    "est_delta": {
        "cora": ((0.47, 0.03), (0.24, 0.02), (0.13, 0.01)),
        "pubmed": ((0.50, 0.03), (0.25, 0.02), (0.13, 0.02)),
        "citeseer": ((0.52, 0.03), (0.27, 0.02), (0.14, 0.02)),
        "arxiv": ((0.54, 0.01), (0.27, 0.01), (0.11, 0.01)),
    },
    "est_1c": {
        "cora": ((0.14, 0.01),),
        "pubmed": ((0.34, 0.02),),
        "citeseer": ((0.16, 0.01),),
        "arxiv": ((0.024, 0.02),),
    },
}


def printed(table: str, name: str | None) -> tuple[Printed, ...]:
    """The paper's cells for a dataset.

    Args:
        table: a key of :data:`APPENDIX`.
        name: of the dataset, in any usual spelling.

    Returns:
        One cell per path length; empty if the paper has none.

    >>> printed("est_1c", "Cora")
    ((0.14, 0.01),)
    >>> printed("est_1c", "karate")
    ()
    """
    plain = (name or "").lower().removeprefix("ogbn").lstrip("-_")
    return APPENDIX[table].get(plain, ())
