"""What a table was made from: when, with which versions and commits, and how long it took."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from virgo.experiments.sweep.records import Record
from virgo.experiments.sweep.selection import OK, key_of


@dataclass(frozen=True)
class Run:
    """Everything that was run of one dataset and model; ``hours`` are summed over seeds."""

    dataset: str
    model: str
    methods: int
    configurations: int
    seeds: tuple[int, ...]
    trained: int
    failed: int
    hours: float

    @classmethod
    def of(cls, dataset: str, model: str, records: Sequence[Record]) -> Run:
        """From the records of one dataset and model."""
        results = [result for record in records for result in record.seeds]
        return cls(
            dataset,
            model,
            methods=len({record.init for record in records}),
            configurations=len({key_of(record.config) for record in records}),
            seeds=tuple(sorted({int(result["seed"]) for result in results})),
            trained=len(results),
            failed=sum(result["status"] != OK for result in results),
            hours=sum(result["seconds"] or 0.0 for result in results) / 3600,
        )


@dataclass(frozen=True)
class Provenance:
    """Where the records of a table come from."""

    runs: tuple[Run, ...]
    versions: tuple[str, ...]
    commits: tuple[str, ...]
    first: str
    last: str

    @classmethod
    def of(cls, records: Sequence[Record]) -> Provenance:
        """From the records themselves."""
        groups: dict[tuple[str, str], list[Record]] = {}
        for record in records:
            groups.setdefault((record.dataset, record.model), []).append(record)
        times = sorted(record.time for record in records if record.time)
        versions = {
            ", ".join(f"{name} {value}" for name, value in sorted(record.versions.items()))
            for record in records
        }
        return cls(
            runs=tuple(Run.of(*key, group) for key, group in sorted(groups.items())),
            versions=tuple(sorted(versions)),
            commits=tuple(sorted({str(record.commit) for record in records if record.commit})),
            first=times[0] if times else "",
            last=times[-1] if times else "",
        )

    @property
    def header(self) -> tuple[str, ...]:
        """The header of :attr:`rows`."""
        counts = ("methods", "configurations", "seeds", "trainings", "failed", "hours, added up")
        return ("dataset", "model", *counts)

    @property
    def rows(self) -> tuple[tuple[str, ...], ...]:
        """One row per dataset and model."""
        return tuple(
            (
                run.dataset,
                run.model,
                str(run.methods),
                str(run.configurations),
                span(run.seeds),
                f"{run.trained:,}",
                f"{run.failed:,}",
                f"{run.hours:.2f}",
            )
            for run in self.runs
        )

    @property
    def sentence(self) -> str:
        """Times, commits and versions in words."""
        when = f"Run from {self.first} to {self.last}" if self.first else "Run at no known time"
        return (
            f"{when}, commit {', '.join(self.commits) or 'unknown'}, with "
            f"{'; '.join(self.versions) or 'unknown versions'}."
        )


def span(numbers: Sequence[int]) -> str:
    """Return sorted whole numbers with ranges of consecutive ones.

    >>> span([0, 1, 2, 3, 7, 9, 10])
    '0-3, 7, 9-10'
    """
    parts: list[list[int]] = []
    for number in numbers:
        if parts and number == parts[-1][-1] + 1:
            parts[-1].append(number)
        else:
            parts.append([number])
    return ", ".join(str(p[0]) if len(p) == 1 else f"{p[0]}-{p[-1]}" for p in parts)
