"""The fifteen datasets of the paper's tables and three more, as data: no code that loads.

Counts are those that PyG and OGB publish. ``virgo data check`` compares what the loaders return
with them; :mod:`virgo.experiments.data.stand_ins` generates stand-ins of these shapes.
"""

from __future__ import annotations

from dataclasses import dataclass

from virgo.errors import DataError, suggestion


@dataclass(frozen=True)
class Entry:
    """One dataset: its folder, its required files and its published counts.

    Attributes:
        name: what :func:`virgo.data.load` takes.
        task: ``"node"``, ``"link"`` or ``"graph"``.
        kind: the loader that reads it: ``"planetoid"``, ``"tu"``, ``"ogb"``, ``"amazon"`` or
            ``"coauthor"``.
        folder: its folder in a data root.
        files: required paths in that folder; a bar separates alternatives.
        archive: a zip file in that folder that may stand for ``files``.
        num_nodes: nodes, of all graphs together.
        num_edges: edges as published, of all graphs together: pairs of nodes, arcs, or columns of
            ``edge_index``. For link prediction, training, validation and test edges together.
        num_entries: columns of ``edge_index`` after our preparation; ``None`` where nobody has
            published that number.
        num_features: columns of ``x`` after our preparation; 0 where there are none (ddi).
        num_classes: outputs of a model: classes, or tasks where there are several; 0 for links.
        num_graphs: graphs.
        num_tasks: labels of one node or graph.
        metric: the benchmark's own.
        split_type: OGB's name of its split; ``"seeded"`` for one that is drawn per class
            (:func:`virgo.experiments.data.datasets.split_per_class`), ``""`` for the public and the
            ten-fold one.
        split: sizes of training, validation and test part; empty for ten folds.
        extra: whether it is not in the paper's tables.
    """

    name: str
    task: str
    kind: str
    folder: str
    files: tuple[str, ...]
    num_nodes: int
    num_edges: int
    num_features: int
    num_classes: int
    metric: str
    num_entries: int | None = None
    num_graphs: int = 1
    num_tasks: int = 1
    split_type: str = ""
    split: tuple[int, ...] = ()
    archive: str | None = None
    extra: bool = False


PLANETOID_FILES = ("x", "tx", "allx", "y", "ty", "ally", "graph", "test.index")
"""The endings of a Planetoid dataset's eight raw files."""

TRAIN_PER_CLASS, VALID_PER_CLASS = 20, 30
"""Training and validation nodes per class of a seeded split."""

COUNTS = ("num-node-list", "num-edge-list")
"""OGB's lists of the sizes of graphs, also where there is one graph only."""


def _planetoid(folder: str, nodes: int, edges: int, features: int, classes: int) -> Entry:
    return Entry(
        name=folder.lower(),
        task="node",
        kind="planetoid",
        folder=folder,
        files=tuple(f"raw/ind.{folder.lower()}.{part}" for part in PLANETOID_FILES),
        num_nodes=nodes,
        num_edges=edges,
        num_entries=edges,
        num_features=features,
        num_classes=classes,
        metric="accuracy",
        split=(20 * classes, 500, 1000),
    )


def _tu(
    name: str, folder: str, graphs: int, nodes: int, edges: int, features: int, classes: int
) -> Entry:
    parts = ("A", "graph_indicator", "graph_labels")
    return Entry(
        name=name,
        task="graph",
        kind="tu",
        folder=folder,
        files=tuple(f"raw/{folder}_{part}.txt" for part in parts),
        archive=f"{folder}.zip",
        num_nodes=nodes,
        num_edges=edges,
        num_entries=edges,
        num_features=features,
        num_classes=classes,
        num_graphs=graphs,
        metric="accuracy",
    )


def _npz(kind: str, folder: str, file: str, nodes: int, edges: int, *shape: int) -> Entry:
    """A graph of Shchur et al. (2018), without a public split."""
    features, classes = shape
    train, valid = TRAIN_PER_CLASS * classes, VALID_PER_CLASS * classes
    return Entry(
        name=folder.lower(),
        task="node",
        kind=kind,
        folder=folder,
        files=(f"raw/{file}.npz",),
        num_nodes=nodes,
        num_edges=edges,
        num_entries=edges,
        num_features=features,
        num_classes=classes,
        metric="accuracy",
        split_type="seeded",
        split=(train, valid, nodes - train - valid),
        extra=True,
    )


def _ogb_files(raw: str, split: str, ending: str = "csv.gz") -> tuple[str, ...]:
    # OGB asks on the terminal whether to delete the folder if the release note is not there.
    tables = (
        "|".join(f"raw/{name}.csv.gz" for name in table.split("|"))
        for table in ("edge", *COUNTS, *raw.split())
    )
    parts = (f"split/{split}/{part}.{ending}" for part in ("train", "valid", "test"))
    return ("RELEASE_v1.txt", *tables, *parts)


ENTRIES: tuple[Entry, ...] = (
    _planetoid("Cora", nodes=2708, edges=10556, features=1433, classes=7),
    _planetoid("CiteSeer", nodes=3327, edges=9104, features=3703, classes=6),
    _planetoid("PubMed", nodes=19717, edges=88648, features=500, classes=3),
    Entry(
        name="ogbn-arxiv",
        task="node",
        kind="ogb",
        folder="ogbn_arxiv",
        files=_ogb_files("node-feat node-label node_year", "time"),
        num_nodes=169343,
        num_edges=1166243,
        num_entries=2315598,
        num_features=128,
        num_classes=40,
        metric="accuracy",
        split_type="time",
        split=(90941, 29799, 48603),
    ),
    Entry(
        name="ogbn-proteins",
        task="node",
        kind="ogb",
        folder="ogbn_proteins",
        files=_ogb_files("edge-feat node-label node_species|species", "species"),
        num_nodes=132534,
        num_edges=39561252,
        num_entries=79122504,
        num_features=8,
        num_classes=112,
        num_tasks=112,
        metric="rocauc",
        split_type="species",
        split=(86619, 21236, 24679),
    ),
    Entry(
        name="ogbn-products",
        task="node",
        kind="ogb",
        folder="ogbn_products",
        files=_ogb_files("node-feat node-label", "sales_ranking"),
        num_nodes=2449029,
        num_edges=61859140,
        num_entries=123718280,
        num_features=100,
        num_classes=47,
        metric="accuracy",
        split_type="sales_ranking",
        split=(196615, 39323, 2213091),
    ),
    Entry(
        name="ogbl-ddi",
        task="link",
        kind="ogb",
        folder="ogbl_ddi",
        files=_ogb_files("", "target", "pt"),
        num_nodes=4267,
        num_edges=1334889,
        num_entries=2135822,
        num_features=0,
        num_classes=0,
        metric="hits@20",
        split_type="target",
        split=(1067911, 133489, 133489),
    ),
    Entry(
        name="ogbl-collab",
        task="link",
        kind="ogb",
        folder="ogbl_collab",
        files=_ogb_files("node-feat edge_weight edge_year", "time", "pt"),
        num_nodes=235868,
        num_edges=1285465,
        num_entries=2358104,
        num_features=128,
        num_classes=0,
        metric="hits@50",
        split_type="time",
        split=(1179052, 60084, 46329),
    ),
    Entry(
        name="ogbl-citation2",
        task="link",
        kind="ogb",
        folder="ogbl_citation2",
        files=_ogb_files("node-feat node_year", "time", "pt"),
        num_nodes=2927963,
        num_edges=30561187,
        num_features=128,
        num_classes=0,
        metric="mrr",
        split_type="time",
        split=(30387995, 86596, 86596),
    ),
    Entry(
        name="ogbl-ppa",
        task="link",
        kind="ogb",
        folder="ogbl_ppa",
        files=_ogb_files("node-feat", "throughput", "pt"),
        num_nodes=576289,
        num_edges=30326273,
        num_entries=42463862,
        num_features=58,
        num_classes=0,
        metric="hits@100",
        split_type="throughput",
        split=(21231931, 6062562, 3031780),
    ),
    _tu("imdb-b", "IMDB-BINARY", 1000, 19773, 193062, features=136, classes=2),
    _tu("imdb-m", "IMDB-MULTI", 1500, 19502, 197806, features=89, classes=3),
    _tu("collab", "COLLAB", 5000, 372474, 24572158, features=492, classes=3),
    Entry(
        name="ogbg-molhiv",
        task="graph",
        kind="ogb",
        folder="ogbg_molhiv",
        files=_ogb_files("node-feat edge-feat graph-label", "scaffold"),
        num_nodes=1049163,
        num_edges=1129688,
        num_entries=2259376,
        num_features=9,
        num_classes=1,
        num_graphs=41127,
        metric="rocauc",
        split_type="scaffold",
        split=(32901, 4113, 4113),
    ),
    Entry(
        name="ogbg-molpcba",
        task="graph",
        kind="ogb",
        folder="ogbg_molpcba",
        files=_ogb_files("node-feat edge-feat graph-label", "scaffold"),
        num_nodes=11373137,
        num_edges=12309186,
        num_entries=24618372,
        num_features=9,
        num_classes=128,
        num_tasks=128,
        num_graphs=437929,
        metric="ap",
        split_type="scaffold",
        split=(350343, 43793, 43793),
    ),
)

EXTRA_ENTRIES: tuple[Entry, ...] = (
    _npz("amazon", "Photo", "amazon_electronics_photo", 7650, 238162, 745, 8),
    _npz("amazon", "Computers", "amazon_electronics_computers", 13752, 491722, 767, 10),
    _npz("coauthor", "CS", "ms_academic_cs", 18333, 163788, 6805, 15),
)
"""Datasets that are not in the paper's tables."""

CATALOGUE: dict[str, Entry] = {entry.name: entry for entry in (*ENTRIES, *EXTRA_ENTRIES)}


def names() -> tuple[str, ...]:
    """The names that :func:`virgo.data.load` takes.

    Returns:
        The paper's fifteen, in the order of its tables, then ``photo``, ``computers`` and ``cs``.

    >>> names()[:4]
    ('cora', 'citeseer', 'pubmed', 'ogbn-arxiv')
    """
    return tuple(CATALOGUE)


def entry(name: str) -> Entry:
    """The catalogue's entry of a dataset.

    Args:
        name: its name, in upper or lower case.

    Returns:
        The entry.

    Raises:
        DataError: there is no such dataset.
    """
    known = CATALOGUE.get(name.lower())
    if known is None:
        raise DataError(
            f"name: expected one of {', '.join(CATALOGUE)}, or like:NAME for a generated stand-in, "
            f"got {name!r}.{suggestion(name, CATALOGUE)} Choose one."
        )
    return known
