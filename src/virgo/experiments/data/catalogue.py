"""The fifteen datasets of the paper's tables as data: one row each, no code that loads.

Counts are those that PyG and OGB publish. What the loaders return is held against them by
``virgo data check``; :mod:`virgo.experiments.data.likeness` generates stand-ins of these shapes.
"""

from __future__ import annotations

from dataclasses import dataclass

from virgo.errors import DataError


@dataclass(frozen=True)
class Entry:
    """One dataset: where it lies, what must be there, and what it holds.

    Attributes:
        name: what :func:`virgo.data.load` takes.
        task: ``"node"``, ``"link"`` or ``"graph"``.
        kind: which loader reads it: ``"planetoid"``, ``"tu"`` or ``"ogb"``.
        folder: its folder in a data root.
        files: paths in that folder that must be there; a bar separates alternatives.
        archive: a zip file in that folder that may stand for ``files``.
        num_nodes: nodes, of all graphs together.
        num_edges: edges as published, of all graphs together; see ``undirected``. For link
            prediction, training, validation and test edges together.
        undirected: whether ``num_edges`` counts a pair of nodes once; otherwise it counts the
            columns of ``edge_index``, or arcs where the graph is directed.
        num_entries: columns of ``edge_index`` after our preparation; ``None`` where nobody has
            published that number.
        num_features: columns of ``x`` after our preparation; 0 where there are none (ddi).
        num_classes: outputs of a model: classes, or tasks where there are several; 0 for links.
        num_graphs: graphs.
        num_tasks: how many things are predicted of a node or graph at once.
        edge_features: columns of ``edge_attr``, as the files have them.
        metric: the benchmark's own.
        split_type: OGB's name of its split; ``""`` for the public and the ten-fold one.
        split: sizes of training, validation and test part; empty for ten folds.
    """

    name: str
    task: str
    kind: str
    folder: str
    files: tuple[str, ...]
    num_nodes: int
    num_edges: int
    undirected: bool
    num_features: int
    num_classes: int
    metric: str
    num_entries: int | None = None
    num_graphs: int = 1
    num_tasks: int = 1
    edge_features: int = 0
    split_type: str = ""
    split: tuple[int, ...] = ()
    archive: str | None = None


PARTS = ("x", "tx", "allx", "y", "ty", "ally", "graph", "test.index")
"""The endings of a Planetoid dataset's eight raw files."""

COUNTS = ("num-node-list", "num-edge-list")
"""OGB's lists of the sizes of graphs, also where there is one graph only."""


def _planetoid(folder: str) -> tuple[str, ...]:
    return tuple(f"raw/ind.{folder.lower()}.{part}" for part in PARTS)


def _tu(folder: str) -> tuple[str, ...]:
    parts = ("A", "graph_indicator", "graph_labels")
    return tuple(f"raw/{folder}_{part}.txt" for part in parts)


def _ogb(raw: str, split: str, ending: str = "csv.gz") -> tuple[str, ...]:
    # OGB asks on the terminal whether to delete the folder if the release note is not there.
    tables = (
        "|".join(f"raw/{name}.csv.gz" for name in table.split("|"))
        for table in ("edge", *COUNTS, *raw.split())
    )
    parts = (f"split/{split}/{part}.{ending}" for part in ("train", "valid", "test"))
    return ("RELEASE_v1.txt", *tables, *parts)


ENTRIES: tuple[Entry, ...] = (
    Entry(
        name="cora",
        task="node",
        kind="planetoid",
        folder="Cora",
        files=_planetoid("Cora"),
        num_nodes=2708,
        num_edges=10556,
        undirected=False,
        num_entries=10556,
        num_features=1433,
        num_classes=7,
        metric="accuracy",
        split=(140, 500, 1000),
    ),
    Entry(
        name="citeseer",
        task="node",
        kind="planetoid",
        folder="CiteSeer",
        files=_planetoid("CiteSeer"),
        num_nodes=3327,
        num_edges=9104,
        undirected=False,
        num_entries=9104,
        num_features=3703,
        num_classes=6,
        metric="accuracy",
        split=(120, 500, 1000),
    ),
    Entry(
        name="pubmed",
        task="node",
        kind="planetoid",
        folder="PubMed",
        files=_planetoid("PubMed"),
        num_nodes=19717,
        num_edges=88648,
        undirected=False,
        num_entries=88648,
        num_features=500,
        num_classes=3,
        metric="accuracy",
        split=(60, 500, 1000),
    ),
    Entry(
        name="ogbn-arxiv",
        task="node",
        kind="ogb",
        folder="ogbn_arxiv",
        files=_ogb("node-feat node-label node_year", "time"),
        num_nodes=169343,
        num_edges=1166243,
        undirected=False,
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
        files=_ogb("edge-feat node-label node_species|species", "species"),
        num_nodes=132534,
        num_edges=39561252,
        undirected=True,
        num_entries=79122504,
        num_features=8,
        num_classes=112,
        num_tasks=112,
        edge_features=8,
        metric="rocauc",
        split_type="species",
        split=(86619, 21236, 24679),
    ),
    Entry(
        name="ogbn-products",
        task="node",
        kind="ogb",
        folder="ogbn_products",
        files=_ogb("node-feat node-label", "sales_ranking"),
        num_nodes=2449029,
        num_edges=61859140,
        undirected=True,
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
        files=_ogb("", "target", "pt"),
        num_nodes=4267,
        num_edges=1334889,
        undirected=True,
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
        files=_ogb("node-feat edge_weight edge_year", "time", "pt"),
        num_nodes=235868,
        num_edges=1285465,
        undirected=True,
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
        files=_ogb("node-feat node_year", "time", "pt"),
        num_nodes=2927963,
        num_edges=30561187,
        undirected=False,
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
        files=_ogb("node-feat", "throughput", "pt"),
        num_nodes=576289,
        num_edges=30326273,
        undirected=True,
        num_entries=42463862,
        num_features=58,
        num_classes=0,
        metric="hits@100",
        split_type="throughput",
        split=(21231931, 6062562, 3031780),
    ),
    Entry(
        name="imdb-b",
        task="graph",
        kind="tu",
        folder="IMDB-BINARY",
        files=_tu("IMDB-BINARY"),
        archive="IMDB-BINARY.zip",
        num_nodes=19773,
        num_edges=193062,
        undirected=False,
        num_entries=193062,
        num_features=136,
        num_classes=2,
        num_graphs=1000,
        metric="accuracy",
    ),
    Entry(
        name="imdb-m",
        task="graph",
        kind="tu",
        folder="IMDB-MULTI",
        files=_tu("IMDB-MULTI"),
        archive="IMDB-MULTI.zip",
        num_nodes=19502,
        num_edges=197806,
        undirected=False,
        num_entries=197806,
        num_features=89,
        num_classes=3,
        num_graphs=1500,
        metric="accuracy",
    ),
    Entry(
        name="collab",
        task="graph",
        kind="tu",
        folder="COLLAB",
        files=_tu("COLLAB"),
        archive="COLLAB.zip",
        num_nodes=372474,
        num_edges=24572158,
        undirected=False,
        num_entries=24572158,
        num_features=492,
        num_classes=3,
        num_graphs=5000,
        metric="accuracy",
    ),
    Entry(
        name="ogbg-molhiv",
        task="graph",
        kind="ogb",
        folder="ogbg_molhiv",
        files=_ogb("node-feat edge-feat graph-label", "scaffold"),
        num_nodes=1049163,
        num_edges=1129688,
        undirected=True,
        num_entries=2259376,
        num_features=9,
        edge_features=3,
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
        files=_ogb("node-feat edge-feat graph-label", "scaffold"),
        num_nodes=11373137,
        num_edges=12309186,
        undirected=True,
        num_entries=24618372,
        num_features=9,
        edge_features=3,
        num_classes=128,
        num_tasks=128,
        num_graphs=437929,
        metric="ap",
        split_type="scaffold",
        split=(350343, 43793, 43793),
    ),
)

CATALOGUE: dict[str, Entry] = {entry.name: entry for entry in ENTRIES}


def names() -> tuple[str, ...]:
    """The names that :func:`virgo.data.load` takes.

    >>> names()[:4]
    ('cora', 'citeseer', 'pubmed', 'ogbn-arxiv')
    """
    return tuple(CATALOGUE)


def entry(name: str) -> Entry:
    """The row of a dataset, in any case.

    Raises:
        DataError: there is no such dataset.
    """
    found = CATALOGUE.get(name.lower())
    if found is None:
        raise DataError(
            f"name: expected one of {', '.join(CATALOGUE)}, or like:NAME for a generated stand-in, "
            f"got {name!r}. Choose one."
        )
    return found
