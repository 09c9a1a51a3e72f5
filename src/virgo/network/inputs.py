"""Whatever the user calls data, as one thing a model can be run on.

A plan needs three views of the input: the whole of it (for the operators), one number per node
(the signal), and a handful of nodes (to watch the model run once at no cost).
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch_geometric.data import HeteroData
from torch_geometric.data.hypergraph_data import HyperGraphData

from virgo.devices import has_csr, widest
from virgo.errors import GraphError, LayerError
from virgo.graph.device import graph_of, vector_of
from virgo.graph.neighbourhoods import grow
from virgo.graph.operators import Graph
from virgo.graph.vectors import AnyVector, extent
from virgo.network import dgl_graphs

Forward = Callable[[nn.Module, Any], Any]
_CPU = torch.device("cpu")

NO_EDGES = (
    "data.edge_index: expected a tensor of shape [2, num_edges], got NoneType. "
    "Set data.edge_index or data.adj_t."
)
NO_FEATURES = "no features to average: every node starts with amplitude 1"
SAMPLE_EDGES = 32  # how many a model is watched on
_CHUNK = 1 << 17  # numbers converted to float64 at a time: the copy stays in the cache
#: Other names under which people take the features and the edges in ``forward``.
_ALIASES = {
    "x": ("x", "features", "feature", "feats", "feat", "h", "inputs", "node_features"),
    "edge_index": ("edge_index", "adj_t", "adj", "edges"),
    "edge_weight": ("edge_weight", "edge_weights", "weight"),
}
#: Names of a single argument that takes the data as a whole.
_WHOLE = ("data", "graph", "batch", "g", "input", "sample")


@dataclass(frozen=True)
class Inputs:
    """The graph a plan is made for.

    ``sampled`` says which graphs of a dataset were merged.
    """

    data: Any
    sampled: dict[str, Any] | None = None
    _signals: dict[str, AnyVector] = field(
        default_factory=dict, init=False, compare=False, repr=False
    )

    @property
    def is_hetero(self) -> bool:
        return isinstance(self.data, HeteroData)

    @property
    def x(self) -> Tensor | None:
        x = self.data.get("x")
        return x if isinstance(x, Tensor) else None

    @property
    def feature_matrix(self) -> Any:
        """The features as a tensor, or as an array that may be a file's; None without any."""
        return self.x

    @property
    def adjacency(self) -> Tensor | None:
        """The sparse adjacency the model is run on, where there is one instead of edges."""
        for key in ("adj_t", "edge_index"):
            value = self.data.get(key)
            if isinstance(value, Tensor) and value.layout != torch.strided:
                return value
        return None

    @property
    def has_edges(self) -> bool:
        """Whether there are edges between nodes, and not points, hyperedges or a dense matrix."""
        if isinstance(self.data, HyperGraphData):
            return False
        return self.adjacency is not None or self.data.get("edge_index") is not None

    @property
    def has_more_hyperedges(self) -> bool:
        """Whether there are more hyperedges than nodes, so that no square matrix holds them."""
        if not isinstance(self.data, HyperGraphData) or self.data.edge_index is None:
            return False
        hyperedges = self.data.edge_index[1]
        return hyperedges.numel() > 0 and int(hyperedges.max()) >= self.num_nodes

    @property
    def num_nodes(self) -> int:
        return int(self.data.num_nodes or 0)

    @property
    def num_edges(self) -> int:
        if self.is_hetero or not self.has_edges:
            return int(self.data.num_edges)
        return int(self.edges()[0].size(1))

    #: Whether :meth:`signal` and :meth:`ones` return a new vector each time, whose memory a hop
    #: may use.
    signal_is_new = False

    def signal(self, kind: str) -> Any:
        """One number per node, see :func:`node_signal`; computed once."""
        if kind not in self._signals:
            self._signals[kind] = node_signal(self, kind)
        return self._signals[kind]

    def ones(self) -> Any:
        """The number one for every node."""
        return vector_of(torch.ones(self.num_nodes, dtype=widest(self.device), device=self.device))

    @property
    def device(self) -> torch.device:
        """Where the features are, or without any the edges: planning happens there."""
        if self.x is not None:
            return self.x.device
        return self.edges()[0].device if self.has_edges and not self.is_hetero else _CPU

    def check_signal(self, looks_up: bool) -> list[str]:
        """Refuse NaN, infinite and all-zero features, which are wrong for every method.

        Args:
            looks_up: whether the features are ids that the model looks up in an embedding.

        Returns:
            Notes for the plan.

        Raises:
            GraphError: the features are wrong for every method.
        """
        if self.is_hetero:
            self._check_kinds()
            return []
        if self.x is None or looks_up:
            return [NO_FEATURES]
        if not any(extent(self.signal(kind)).magnitude for kind in ("mean", "rms")):
            raise GraphError(
                "data.x: expected features, got only zeros. Virgo scales what the features send "
                "through the graph; pass real features (or ones)."
            )
        return []

    def _check_kinds(self) -> None:
        """:meth:`check_signal` of data with several kinds of node."""
        features = {
            store._key: store["x"]
            for store in self.data.node_stores
            if isinstance(store.get("x"), Tensor) and store["x"].is_floating_point()
        }
        for kind, x in features.items():
            if not bool(torch.isfinite(stored_values(x)).all()):
                raise GraphError(
                    f"data[{kind!r}].x: expected finite features, got NaN or infinity. Clean the "
                    f"features, e.g. torch.nan_to_num(data[{kind!r}].x)."
                )
        if features and not any(bool(stored_values(x).any()) for x in features.values()):
            raise GraphError(
                "data: expected features, got only zeros for every kind of node. Virgo scales what "
                "the features send through the graph; pass real features (or ones)."
            )

    def label_gradient(self, num_classes: int) -> AnyVector | None:
        """``1/C`` minus the one-hot label on the training nodes; None without such labels."""
        y = self.data.get("y")
        if not is_classes(y) or y.numel() != self.num_nodes or int(y.max()) >= num_classes:
            return None
        one_hot = nn.functional.one_hot(y.reshape(-1).long(), num_classes)
        gradient = 1.0 / num_classes - one_hot.to(widest(y))
        mask = counted_rows(self.data.get("train_mask"), self.num_nodes)
        if mask is not None:
            gradient[~mask] = 0.0
        return vector_of(gradient.to(self.device))

    def facts(self) -> dict[str, Any]:
        """What a plan records of the graph."""
        facts: dict[str, Any] = {"nodes": self.num_nodes, "edges": self.num_edges}
        if self.sampled is not None:
            facts["sampled"] = self.sampled
        return facts

    def edges(self) -> tuple[Tensor, Tensor | None]:
        """``edge_index`` and, for a sparse adjacency, its values (which always act as weights)."""
        adjacency = self.adjacency
        if adjacency is None:
            edge_index = self.data.get("edge_index")
            if edge_index is None:
                raise GraphError(NO_EDGES)
            return edge_index.as_subclass(Tensor), None
        coo = adjacency.to_sparse_coo().coalesce()
        # the rows of adj_t are targets
        return coo.indices().flip(0).contiguous(), coo.values()

    def graph(self, edge_weight: Tensor | None = None) -> Graph:
        """The operators' view of the edges, with the weights a layer is given."""
        edge_index, values = self.edges()
        edge_index = edge_index.to(self.device)
        if values is not None:
            return graph_of(edge_index, self.num_nodes, values, keep_loops=False)
        return graph_of(edge_index, self.num_nodes, edge_weight)

    def few_nodes(self) -> Inputs:
        """A subgraph of a few edges with everything the model may ask for, to watch it run."""
        if self.is_hetero or not self.has_edges:
            return self
        edge_index, values = self.edges()
        total, wanted = edge_index.size(1), min(SAMPLE_EDGES, edge_index.size(1))
        picks = torch.arange(wanted, device=edge_index.device) * (total - 1) // max(1, wanted - 1)
        chosen = edge_index[:, picks]
        nodes, relabelled = torch.unique(chosen, return_inverse=True)
        small = copy.copy(self.data)  # its own class, so that its own methods are there
        whole = copy.copy(self.data)  # PyG notes in it what it is asked below
        for key, value in self.data.to_dict().items():
            if not isinstance(value, Tensor):
                continue
            if key == "batch":
                small[key] = torch.zeros(nodes.numel(), dtype=torch.long, device=value.device)
            elif key == "ptr":
                small[key] = torch.tensor([0, nodes.numel()], device=value.device)
            elif value.layout != torch.strided:
                small[key] = (
                    _dense_rows(value, nodes)
                    if key == "x"
                    else _like(value, relabelled, values, picks, nodes.numel())
                )
            elif key == "edge_index":
                small[key] = relabelled
            elif whole.is_edge_attr(key) and value.size(0) == total:
                small[key] = value[picks]
            elif whole.is_node_attr(key):
                small[key] = value[nodes]
        small.num_nodes = nodes.numel()
        if hasattr(small, "_num_graphs"):
            small._num_graphs = 1
        return Inputs(small.both_ways() if isinstance(small, dgl_graphs.DGLData) else small)

    def neighbourhood(self, nodes: int, seed: int = 0) -> Inputs:
        """A connected sample of about ``nodes`` nodes with everything the model may ask for."""
        if self.is_hetero:
            raise GraphError("nodes: expected one kind of node, got a HeteroData. Sample it first.")
        edge_index = self.edges()[0]
        # neighbours are followed on the CPU: the edges, not the features, come there
        chosen = torch.from_numpy(grow(Graph(edge_index, self.num_nodes), nodes, seed))
        return self._among(chosen.to(edge_index.device))

    def _among(self, nodes: Tensor) -> Inputs:
        """The graph on ``nodes`` (sorted) and the edges among them."""
        adjacency, data = self.adjacency, copy.copy(self.data)
        if adjacency is None:
            data = data.subgraph(nodes)
        else:  # which `subgraph` leaves as it is
            key = next(key for key, value in data.to_dict().items() if value is adjacency)
            del data[key]
            data.num_nodes = self.num_nodes
            data = data.subgraph(nodes)
            edges, values = self.edges()
            place = torch.full((self.num_nodes,), -1, device=edges.device)
            place[nodes] = torch.arange(nodes.numel(), device=edges.device)
            relabelled = place[edges]
            picks = (relabelled >= 0).all(0).nonzero()[:, 0]
            data[key] = _like(adjacency, relabelled[:, picks], values, picks, nodes.numel())
        among = Inputs(data, self.sampled)
        if not among.edges()[0].size(1):
            raise GraphError(
                f"nodes: expected a sample with edges, got {nodes.numel()} nodes without any. "
                f"Raise nodes=."
            )
        return among

    def prepared_for(self, model: nn.Module) -> Inputs:
        """The same data on the model's device, its floating tensors in the model's precision.

        Integer features become floating ones unless the model looks them up in an embedding.

        Args:
            model: the model that will run on it.

        Returns:
            New inputs; these stay as they are.
        """
        like = next((p for p in model.parameters() if p.is_floating_point()), None)
        if like is None:
            return Inputs(copy.copy(self.data), self.sampled)
        embeds = any(isinstance(module, nn.Embedding) for module in model.modules())

        def convert(value: Tensor, key: str) -> Tensor:
            to_float = value.is_floating_point() or (key == "x" and not embeds)
            if key == "x" and value.layout != torch.strided and not has_csr(like.device):
                value = value.to_dense()  # that device has no sparse tensors
            moved = value.to(like.device, like.dtype if to_float else value.dtype)
            if moved.requires_grad:  # a leaf of our own: gradients that arrive are no one else's
                moved = moved.detach().requires_grad_()
            return moved

        data = copy.copy(self.data)
        for store in data.stores:
            for key, value in list(store.items()):
                if isinstance(value, Tensor):
                    store[key] = convert(value, key)
        if not self.is_hetero:
            data.num_nodes = self.num_nodes
        return Inputs(data, self.sampled)


def stored_values(x: Tensor) -> Tensor:
    """The numbers of a tensor that are stored: of a sparse one those that are not zero.

    Args:
        x: in any layout.

    Returns:
        The tensor, or its entries.
    """
    return x if x.layout == torch.strided else x.to_sparse_coo().coalesce().values()


def _dense_rows(x: Tensor, nodes: Tensor) -> Tensor:
    """The rows ``nodes`` of a sparse feature matrix, dense."""
    coo = x.to_sparse_coo().coalesce()
    rows, columns = coo.indices()
    place = torch.full((x.size(0),), -1, device=x.device)
    place[nodes] = torch.arange(nodes.numel(), device=x.device)
    mine = place[rows] >= 0
    dense = torch.zeros(nodes.numel(), x.size(1), dtype=x.dtype, device=x.device)
    dense[place[rows[mine]], columns[mine]] = coo.values()[mine]
    return dense


def _like(
    adjacency: Tensor, edges: Tensor, values: Tensor | None, picks: Tensor, num_nodes: int
) -> Tensor:
    """A small adjacency in the layout of ``adjacency``."""
    assert values is not None
    small = torch.sparse_coo_tensor(
        edges.flip(0), values[picks], (num_nodes, num_nodes), check_invariants=False
    ).coalesce()
    return small.to_sparse(layout=adjacency.layout) if adjacency.layout != small.layout else small


def node_signal(inputs: Inputs, kind: str) -> AnyVector:
    """One float64 per node: the mean of its features (the paper) or their root mean square.

    Rows are reduced a chunk at a time, so no second copy of the feature matrix is made.

    Args:
        inputs: the graph; without features every node has a one.
        kind: ``"mean"`` or ``"rms"``.

    Returns:
        The signal, of length ``num_nodes``.

    Raises:
        GraphError: a feature is NaN or infinite; names the first node.
    """
    x = inputs.x
    if x is None:
        return inputs.ones()
    if x.dim() == 1:
        x = x[:, None]
    out = _sparse_rows(x, kind) if x.layout != torch.strided else _dense_reduce(x, kind)
    finite = torch.isfinite(out)
    if not bool(finite.all()):
        bad = int((~finite).nonzero()[0])
        raise GraphError(
            f"data.x: expected finite features, got NaN or infinity (first at node {bad}). "
            f"Clean the features, e.g. torch.nan_to_num(data.x)."
        )
    return vector_of(out)


def _dense_reduce(x: Tensor, kind: str) -> Tensor:
    rows = max(1, _CHUNK // max(1, x.size(1)))
    parts = []
    for chunk in x.detach().split(rows):
        wide = chunk.to(widest(chunk))
        parts.append(wide.mean(1) if kind == "mean" else wide.square().mean(1).sqrt())
    return torch.cat(parts)


def _sparse_rows(x: Tensor, kind: str) -> Tensor:
    coo = x.detach().to_sparse_coo().coalesce()
    values = coo.values().to(widest(x))
    total = torch.zeros(x.size(0), dtype=values.dtype, device=x.device)
    total.index_add_(0, coo.indices()[0], values if kind == "mean" else values.square())
    total /= x.size(1)
    return total if kind == "mean" else total.sqrt()


def is_classes(y: Any) -> bool:
    """Whether these are class labels: one integer from 0 per node or graph."""
    return (
        isinstance(y, Tensor)
        and not y.is_floating_point()
        and y.dim() > 0
        and y.numel() == y.size(0) > 0
        and int(y.min()) >= 0
    )


def counted_rows(mask: object, rows: int) -> Tensor | None:
    """The rows that a ``train_mask`` picks; of several splits side by side those of the first.

    Args:
        mask: a tensor of booleans, or anything else.
        rows: how many there are.

    Returns:
        One boolean per row, or None where it picks none: then all rows count.

    >>> counted_rows(torch.tensor([[True, False], [False, True]]), 2)
    tensor([ True, False])
    """
    if not isinstance(mask, Tensor) or mask.dtype != torch.bool or mask.dim() not in (1, 2):
        return None
    first = mask if mask.dim() == 1 else mask[:, 0]
    return first if first.numel() == rows and bool(first.any()) else None


def training_rows(data: Any) -> Tensor | None:
    """``data.train_mask``, for what is trained on labels and so must not see those of the test.

    Args:
        data: of one kind of node.

    Returns:
        One boolean per row, or None without a mask: then all rows count.

    Raises:
        GraphError: it is anything else, such as several splits side by side.
    """
    mask = data.get("train_mask")
    if mask is None:
        return None
    is_mask = isinstance(mask, Tensor) and mask.dtype == torch.bool and mask.dim() == 1
    if is_mask and bool(mask.any()):
        return cast(Tensor, mask)
    got, remedy = type(mask).__name__, "Set it, or delete it to train on all rows"
    if isinstance(mask, Tensor):
        got = "only False" if is_mask else f"{mask.dtype} of shape {list(mask.shape)}"
        if mask.dim() == 2:
            remedy = "Choose a split: data.train_mask = data.train_mask[:, 0]"
    raise GraphError(
        f"data.train_mask: expected True or False for each row, some of them True, got {got}. "
        f"{remedy}."
    )


def run(model: nn.Module, data: Any, forward: Forward | None = None) -> Any:
    """Call a model the way its ``forward`` asks to be called."""
    if isinstance(data, dgl_graphs.DGLData):
        return dgl_graphs.call(model, data, forward)
    # copies, which share all tensors: layers of GraphGym's kind write into the data they are given
    if forward is not None:
        return forward(model, copy.copy(data))
    names = getattr(getattr(model, "signature", None), "param_dict", None)
    if names:  # torch_geometric.nn.Sequential keeps its arguments here
        return model(*[_lookup(data, name) for name in names])
    parameters = [
        p
        for p in inspect.signature(model.forward).parameters.values()
        if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)
    ]
    required = [p.name for p in parameters if p.default is p.empty]
    if isinstance(model, nn.Sequential) and required == ["input"]:
        return model(data.x)
    if len(required) == 1 and (required[0] in _WHOLE or _lookup(data, required[0]) is None):
        return model(copy.copy(data))
    arguments: dict[str, Any] = {}
    for parameter in parameters:
        value = _lookup(data, parameter.name)
        if value is None and parameter.name in required and "edge" in parameter.name:
            value = _lookup(data, "edge_index")  # whatever the user calls them
        if value is None and parameter.name == "batch" and parameter.name in required:
            value = torch.zeros(data.num_nodes, dtype=torch.long, device=_device(data))
        if value is not None:
            arguments[parameter.name] = value
        elif parameter.name in required:
            if parameter.name in _ALIASES["edge_index"]:
                raise GraphError(NO_EDGES)
            raise LayerError(
                f"{type(model).__name__}.forward: its argument {parameter.name!r} is nowhere in "
                f"the data. Pass forward=lambda model, data: model(...)."
            )
    return model(**arguments)


def _device(data: Any) -> torch.device:
    return next(
        (v.device for v in data.to_dict().values() if isinstance(v, Tensor)), torch.device("cpu")
    )


def _lookup(data: Any, name: str) -> Any:
    names = next((group for group in _ALIASES.values() if name in group), (name,))
    for candidate in (name, *names):
        if isinstance(data, HeteroData):  # x is x_dict there; to_hetero() keeps calling it x
            value = data.collect(candidate.removesuffix("_dict"), allow_empty=True) or None
        else:
            value = data.get(candidate)
        if value is not None:
            return value
    return None
