"""The paper's apparatus: datasets, networks, tasks, sweeps, tables and appendix A."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from virgo.experiments.sweep.studies import StudyResult, study

__all__ = ["StudyResult", "study"]


def __getattr__(name: str) -> Any:
    """``study`` and its result, imported when they are used: they need optuna."""
    if name in __all__:
        import virgo.experiments.sweep.storage  # noqa: F401  (names a missing extra)
        from virgo.experiments.sweep import studies

        return getattr(studies, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
