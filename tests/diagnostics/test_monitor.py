"""``Monitor``: right numbers, from the training step alone, without touching the training."""

from __future__ import annotations

import copy
import io
import json
import math
import subprocess
import sys
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint
from torch_geometric.data import Data
from torch_geometric.nn import GCN, GCNConv, SAGEConv

import virgo
from virgo.diagnostics.integrations import LightningMonitor
from virgo.diagnostics.monitor import Monitor
from virgo.errors import LayerError, OptionError
from virgo.network.probe import variance

EXACT = 1e-12  # float64 sums over at most 1e6 numbers, in another order: 1e6 eps is 2e-10 at worst


@pytest.fixture(scope="module")
def data() -> Data:
    return virgo.data.citation_like(num_nodes=300, num_features=50, words_per_node=8, seed=0)


class Net(nn.Module):
    """Three convolutions that keep what each receives, for a test to compute with."""

    def __init__(self, channels: int = 50, inplace: bool = False, dropout: float = 0.0) -> None:
        super().__init__()
        self.inplace, self.dropout = inplace, dropout
        self.convs = nn.ModuleList([GCNConv(channels, 16), GCNConv(16, 16), GCNConv(16, 7)])
        self.norm = nn.BatchNorm1d(16)
        self.kept: list[Tensor] = []

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        self.kept = []
        for conv in self.convs:
            self.kept.append(x)
            x = conv(x, edge_index)
            if conv is not self.convs[-1]:
                x = self.norm(x.relu_() if self.inplace else x.relu())
                x = functional.dropout(x, self.dropout, self.training)
        self.kept.append(x)
        if self.inplace:
            return x.mul_(2.0)  # after the last layer has returned it
        for tensor in self.kept[1:]:
            tensor.retain_grad()
        return x


def make(seed: int = 0, **options: Any) -> Net:
    torch.manual_seed(seed)
    return Net(**options)


def loss_of(model: nn.Module, data: Data) -> Tensor:
    logits = model(data.x, data.edge_index)
    return functional.cross_entropy(logits[data.train_mask], data.y[data.train_mask])


def by_hand(tensor: Tensor) -> float:
    """The definition, node by node, in Python's own arithmetic."""
    rows = tensor.detach().double().tolist()
    means = [math.fsum(row) / len(row) for row in rows]
    spreads = [
        math.fsum((v - mean) ** 2 for v in row) / len(row)
        for row, mean in zip(rows, means, strict=True)
    ]
    return math.fsum(spreads) / len(rows)


def hooks_of(model: nn.Module) -> int:
    kinds = ("_forward_pre_hooks", "_forward_hooks", "_backward_hooks", "_backward_pre_hooks")
    on_modules = sum(len(getattr(m, kind)) for m in model.modules() for kind in kinds)
    parameters = list(model.parameters())
    kinds = ("_backward_hooks", "_post_accumulate_grad_hooks")
    return on_modules + sum(len(getattr(p, kind) or ()) for p in parameters for kind in kinds)


def test_the_numbers_are_those_of_the_definition(data: Data) -> None:
    model = make()
    with Monitor(model) as monitor:
        loss_of(model, data).backward()
        monitor.step()
    (record,) = monitor.records
    assert record.names == ("input", "into convs.1", "into convs.2", "output")
    assert record.forward == pytest.approx([by_hand(h) for h in model.kept], rel=EXACT)
    gradients = [by_hand(h.grad) for h in model.kept[1:]]
    assert math.isnan(record.backward[0])  # nobody asked for a gradient of the features
    assert record.backward[1:] == pytest.approx(gradients, rel=EXACT)
    assert min(gradients) > 0
    assert len(set(record.forward)) == 4
    norms = {n: float(p.grad.double().norm()) for n, p in model.convs.named_parameters("convs")}
    assert record.gradient_norms == pytest.approx(norms, rel=EXACT)
    assert (record.step, record.nodes) == (0, 300)


def test_agrees_with_measure(data: Data) -> None:
    """``measure`` looks in eval mode; without dropout and norms that is the training pass."""
    torch.manual_seed(0)
    model = GCN(50, 16, num_layers=4, out_channels=7)
    trace = virgo.measure(model, data)
    features = data.x.clone().requires_grad_()
    with Monitor(model) as monitor:
        loss_of(model, Data(**{**data.to_dict(), "x": features})).backward()
        monitor.step()
    assert monitor.records[0].forward == pytest.approx(trace.forward, rel=EXACT)
    assert monitor.records[0].backward == pytest.approx(trace.backward, rel=EXACT)
    assert features._backward_hooks is None or len(features._backward_hooks) == 0


def test_a_step_later_the_numbers_are_others(data: Data) -> None:
    model = make()
    optimiser = torch.optim.SGD(model.parameters(), lr=1.0)
    with Monitor(model, every=1) as monitor:
        for _ in range(2):
            optimiser.zero_grad()
            loss_of(model, data).backward()
            optimiser.step()
            monitor.step()
    first, second = monitor.records
    assert first.forward[0] == second.forward[0]
    assert all(a != b for a, b in zip(first.forward[1:], second.forward[1:], strict=True))


def train(data: Data, every: int | None, inplace: bool) -> tuple[list[float], nn.Module, Tensor]:
    model = make(inplace=inplace, dropout=0.5)
    optimiser = torch.optim.Adam(model.parameters(), lr=0.01)
    monitor = Monitor(model, every=every) if every else None
    if monitor:
        monitor.start()
    losses = []
    for _ in range(12):
        model.train()
        optimiser.zero_grad()
        loss = loss_of(model, data)
        loss.backward()
        optimiser.step()
        if monitor:
            monitor.step()
        losses.append(loss.item())
    if monitor:
        monitor.stop()
        assert len(monitor.records) == math.ceil(12 / every)
    return losses, model, torch.get_rng_state()


@pytest.mark.parametrize("inplace", [False, True])
def test_training_is_the_same_to_the_last_bit(data: Data, inplace: bool) -> None:
    losses, model, state = train(data, None, inplace)
    for every in (1, 5):
        watched_losses, watched, watched_state = train(data, every, inplace)
        assert losses == watched_losses
        assert torch.equal(state, watched_state)
        for (name, a), b in zip(
            model.state_dict().items(), watched.state_dict().values(), strict=True
        ):
            assert torch.equal(a, b), name
    assert len(set(losses)) > 6  # it did train


def test_hooks_are_there_only_during_a_recorded_step(data: Data) -> None:
    model = make()
    assert hooks_of(model) == 0
    with Monitor(model, every=3) as monitor:
        placed = []
        for _ in range(8):
            placed.append(hooks_of(model) > 0)
            loss_of(model, data).backward()
            monitor.step()
        assert placed == [True, False, False, True, False, False, True, False]
    assert [record.step for record in monitor.records] == [0, 3, 6]
    assert hooks_of(model) == 0


def test_hooks_are_gone_after_an_exception(data: Data) -> None:
    model = make()

    class Stop(Exception):
        pass

    def fail() -> None:
        with Monitor(model) as monitor:
            loss_of(model, data)
            assert hooks_of(model) > 0
            kept.append(monitor)
            raise Stop

    kept: list[Monitor] = []
    with pytest.raises(Stop):
        fail()
    assert hooks_of(model) == 0
    assert kept[0].records == []
    with kept[0] as monitor:  # and it can be taken up again
        loss_of(model, data).backward()
        monitor.step()
    assert len(monitor.records) == 1


def test_a_layer_that_raises_does_not_end_the_monitor(data: Data) -> None:
    model = make()
    with Monitor(model) as monitor:
        with pytest.raises(RuntimeError, match="out of bounds"):
            model(data.x[:10], data.edge_index)
        monitor.step()  # no layer returned: nothing to record
        assert monitor.records == []


def test_gradient_accumulation(data: Data) -> None:
    model = make()
    with Monitor(model) as monitor:
        loss_of(model, data).backward()
        first = [by_hand(h.grad) for h in model.kept[1:]]
        (3 * loss_of(model, data)).backward()
        monitor.step()
    (record,) = monitor.records
    assert len(record.forward) == 4
    assert record.backward[1:] == pytest.approx(first, rel=EXACT)
    norm = float(model.convs[0].lin.weight.grad.double().norm())
    assert record.gradient_norms["convs.0.lin.weight"] == pytest.approx(norm, rel=EXACT)


def test_norms_do_not_wait_for_step(data: Data) -> None:
    """``zero_grad()`` before ``monitor.step()`` is as good as after it."""
    model = make()
    with Monitor(model) as monitor:
        loss_of(model, data).backward()
        model.zero_grad()
        monitor.step()
    assert all(norm > 0 for n, norm in monitor.records[0].gradient_norms.items() if "lin" in n)


def test_evaluation_is_ignored(data: Data) -> None:
    model = make(dropout=0.5)
    with Monitor(model) as monitor:
        model.eval()
        loss_of(model, data).backward()  # eval mode, though with gradients
        model.train()
        with torch.no_grad():
            model.convs[0](data.x, data.edge_index)
        monitor.step()
        assert monitor.records == []
        loss_of(model, data).backward()
        kept = model.kept
        model.eval()
        with torch.no_grad():
            for conv in model.convs[:1]:
                conv(data.x, data.edge_index)
        model.train()
        monitor.step()
    (record,) = monitor.records
    assert record.step == 1  # in place of step 0, which had no training pass
    assert record.forward == pytest.approx([by_hand(h) for h in kept], rel=EXACT)


def test_a_reused_module_has_a_row_a_call(data: Data) -> None:
    class Loop(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = GCNConv(50, 50)

        def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
            for _ in range(3):
                x = self.conv(x=x, edge_index=edge_index).relu()
            return x

    model = Loop()
    with Monitor(model) as monitor:
        loss_of(model, data).backward()
        monitor.step()
    (record,) = monitor.records
    assert record.names == ("input", "into conv", "into conv", "output")
    assert list(record.gradient_norms) == ["conv.bias", "conv.lin.weight"]
    assert len({*record.forward}) == 4


def test_minibatches_and_a_bare_layer(data: Data) -> None:
    model = GCNConv(50, 7)
    sizes = [200, 100, 250, 300, 150]
    with Monitor(model, every=2) as monitor:
        for size in sizes:
            loss_of(model, data.subgraph(torch.arange(size))).backward()
            monitor.step()
    assert [record.nodes for record in monitor.records] == [200, 250, 150]
    assert monitor.records[0].names == ("input", "output")


def test_two_sided_input() -> None:
    """A bipartite layer receives two tensors: their rows are pooled, in both directions."""
    torch.manual_seed(0)
    model = SAGEConv((4, 3), 5)
    left, right = torch.randn(6, 4, requires_grad=True), torch.randn(2, 3, requires_grad=True)
    edges = torch.tensor([[0, 1, 2, 5], [0, 1, 1, 0]])
    with Monitor(model) as monitor:
        model((left, right), edges).square().sum().backward()
        monitor.step()
    (record,) = monitor.records
    assert record.nodes == 8
    assert record.forward[0] == pytest.approx((6 * by_hand(left) + 2 * by_hand(right)) / 8)
    pooled = (6 * by_hand(left.grad) + 2 * by_hand(right.grad)) / 8
    assert record.backward[0] == pytest.approx(pooled)


def test_activation_checkpointing_is_seen_once(data: Data) -> None:
    class Checkpointed(Net):
        def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
            for conv in self.convs:
                x = checkpoint(conv, x, edge_index, use_reentrant=False).relu()
            return x

    torch.manual_seed(0)
    model = Checkpointed()
    with Monitor(model) as monitor:
        loss_of(model, data).backward()
        monitor.step()
    assert len(monitor.records[0].forward) == 4


def test_a_copied_or_saved_model_is_not_watched(data: Data) -> None:
    torch.manual_seed(0)
    model = GCN(50, 16, num_layers=2, out_channels=7)
    with Monitor(model) as monitor:
        twin = copy.deepcopy(model)
        stored = io.BytesIO()
        torch.save(model, stored)
        stored.seek(0)
        loaded = torch.load(stored, weights_only=False)
        loss_of(twin, data).backward()
        loss_of(loaded, data).backward()
        monitor.step()
        assert monitor.records == []
        loss_of(model, data).backward()
        monitor.step()
    assert len(monitor.records[0].forward) == 3


def test_variance_of_other_shapes() -> None:
    torch.manual_seed(0)
    x = torch.randn(40, 30).relu()
    x[x < 1] = 0
    assert variance([x]) == pytest.approx(by_hand(x), rel=EXACT)
    assert variance([x.to_sparse()]) == pytest.approx(by_hand(x), rel=EXACT)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Sparse CSR tensor support is in beta")
        assert variance([x.to_sparse_csr()]) == pytest.approx(by_hand(x), rel=EXACT)
    assert variance([x.view(4, 10, 30)]) == pytest.approx(by_hand(x), rel=EXACT)
    assert variance([x.bfloat16()]) == pytest.approx(by_hand(x.bfloat16()), rel=EXACT)
    double = x.double()
    before = double.clone()
    variance([double])
    assert torch.equal(double, before)  # it works on a copy
    wide = torch.randn(3, 100_000)  # one row is more than a piece
    assert variance([wide]) == pytest.approx(by_hand(wide), rel=EXACT)
    assert math.isnan(variance([x[:, :1]]))
    assert math.isnan(variance([x[:0]]))
    assert math.isnan(variance([]))


def test_what_leaves_float32_is_still_seen() -> None:
    """Squares of 1e-30 and 1e30 are zero and infinity in float32."""
    small = torch.tensor([[1e-30, 3e-30]])
    assert variance([small]) == pytest.approx(1e-60, rel=1e-6)  # 1e-30 itself is rounded
    assert variance([small.reciprocal()]) == pytest.approx((1e30 / 3) ** 2, rel=1e-6)
    assert variance([torch.tensor([[1.0, math.inf]])]) == math.inf


def test_an_exploding_pass_says_so(data: Data) -> None:
    model = make()
    model.norm = nn.Identity()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1e20)
    with Monitor(model) as monitor:
        loss_of(model, data).backward()
        monitor.step()
    assert monitor.records[0].forward[-1] == math.inf
    told = json.loads(monitor.to_json())
    assert told["records"][0]["forward"][-1] == "infinity"
    assert told["records"][0]["backward"][0] is None
    assert "infinite" in monitor.plot().axes[0].texts[0].get_text()


def test_json_and_repr(data: Data) -> None:
    monitor = recorded(data, 3)
    told = json.loads(monitor.to_json(indent=1))
    assert (told["format"], told["model"], told["every"]) == (1, "Net", 1)
    assert [record["step"] for record in told["records"]] == [0, 1, 2]
    assert told["records"][1]["forward"] == monitor.records[1].forward
    assert told["records"][1]["names"] == list(monitor.records[1].names)
    assert repr(monitor) == "Monitor(Net, every=1, records=3)"


def recorded(data: Data, steps: int, **options: Any) -> Monitor:
    model = make()
    optimiser = torch.optim.SGD(model.parameters(), lr=0.5)
    with Monitor(model, every=1, **options) as monitor:
        for _ in range(steps):
            optimiser.zero_grad()
            loss_of(model, data).backward()
            optimiser.step()
            monitor.step()
    return monitor


def test_plot(data: Data, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="the plot extra is not installed")
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    monitor = recorded(data, 5)
    figure = monitor.plot()
    FigureCanvasAgg(figure).draw()
    forward, backward, bar = figure.axes
    for axes, values in ((forward, "forward"), (backward, "backward")):
        assert axes.get_yscale() == "log"
        assert axes.get_xlabel() == "layer"
        assert len(axes.lines) == 5
        drawn = list(axes.lines[2].get_ydata())
        assert drawn == pytest.approx(getattr(monitor.records[2], values), nan_ok=True)
        colours = [line.get_color() for line in axes.lines]
        light = [0.2126 * r + 0.7152 * g + 0.0722 * b for r, g, b, _ in colours]
        assert light == sorted(light, reverse=True)  # time reads in grey as well
    assert bar.get_ylabel() == "step"
    figure.savefig(tmp_path / "x.png")
    assert (tmp_path / "x.png").stat().st_size > 5000
    FigureCanvasAgg(recorded(data, 1).plot()).draw()  # a single record


def test_plot_without_gradients(data: Data) -> None:
    pytest.importorskip("matplotlib", reason="the plot extra is not installed")
    model = make()
    with Monitor(model) as monitor:
        loss_of(model, data)
        monitor.step()
    assert all(map(math.isnan, monitor.records[0].backward))
    assert monitor.plot().axes[1].texts[0].get_text() == "nothing recorded"


def test_bad_input(data: Data, monkeypatch: pytest.MonkeyPatch) -> None:
    model = make()
    with pytest.raises(OptionError, match=r"every: expected at least 1, .* got 0"):
        Monitor(model, every=0)
    with pytest.raises(OptionError, match=r"writer: expected a SummaryWriter, .*, got str"):
        Monitor(model, writer="runs")  # type: ignore[arg-type]
    with pytest.raises(LayerError, match="expected at least one message-passing layer"):
        Monitor(nn.Linear(2, 2))
    with pytest.raises(LayerError, match="got lazy ones"):
        Monitor(GCNConv(-1, 4))
    with pytest.raises(LayerError, match="Net: expected a model that is not compiled"):
        Monitor(torch.compile(model, backend="eager"))
    with pytest.raises(OptionError, match=r"monitor\.step: expected a running monitor"):
        Monitor(model).step()
    with Monitor(model) as monitor:
        monitor.step()
    with pytest.raises(OptionError, match="at least one record, got none in 1 steps"):
        monitor.plot()
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(ImportError, match=r"virgo-gnn\[plot\]"):
        monitor.plot()


def test_tensorboard(data: Data, tmp_path: Path) -> None:
    pytest.importorskip("tensorboard", reason="the tensorboard extra is not installed")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from torch.utils.tensorboard import SummaryWriter

    with SummaryWriter(tmp_path / "live") as live, SummaryWriter(tmp_path / "after") as after:
        monitor = recorded(data, 3, writer=live)
        monitor.to_tensorboard(after)
    for folder in ("live", "after"):
        events = EventAccumulator(str(tmp_path / folder))
        events.Reload()
        tags = events.Tags()["scalars"]
        layers = ["0_input", "1_into_convs.1", "2_into_convs.2", "3_output"]
        assert [t for t in tags if "/forward/" in t] == [f"virgo/forward/{n}" for n in layers]
        assert [t for t in tags if "/backward/" in t] == [f"virgo/backward/{n}" for n in layers[1:]]
        assert "virgo/gradient_norm/convs.0.lin.weight" in tags
        points = events.Scalars("virgo/backward/2_into_convs.2")
        assert [point.step for point in points] == [0, 1, 2]
        # TensorBoard stores float32
        assert [p.value for p in points] == pytest.approx(
            [r.backward[2] for r in monitor.records], rel=1e-6
        )


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
def test_mlflow(data: Data, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Local files, no server."""
    monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    mlflow = pytest.importorskip("mlflow", reason="the mlflow extra is not installed")
    mlflow.set_tracking_uri((tmp_path / "mlruns").as_uri())
    with mlflow.start_run() as run:
        monitor = recorded(data, 3, writer=mlflow)
    client = mlflow.MlflowClient()
    points = client.get_metric_history(run.info.run_id, "virgo/backward/2_into_convs.2")
    assert {p.step: p.value for p in points} == {r.step: r.backward[2] for r in monitor.records}
    assert "virgo/gradient_norm/convs.0.lin.weight" in client.get_run(run.info.run_id).data.metrics


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning")
def test_wandb_offline(data: Data, tmp_path: Path) -> None:
    """The records are in the summary and in the file that an offline run writes."""
    wandb = pytest.importorskip("wandb", reason="the wandb extra is not installed")
    settings = wandb.Settings(silent=True, console="off", x_disable_stats=True)
    with wandb.init(mode="offline", project="virgo", dir=tmp_path, settings=settings) as run:
        run.log({"loss": 1.0}, step=100)  # a user's step, which virgo's must not run into
        monitor = recorded(data, 3, writer=run)
        last = dict(run.summary)
    assert last["virgo/step"] == 2
    assert last["virgo/backward/2_into_convs.2"] == monitor.records[-1].backward[2]
    (written,) = tmp_path.rglob("run-*.wandb")
    limit = time.monotonic() + 60  # another process writes it, and may still be at it
    while b"virgo/backward/2_into_convs.2" not in written.read_bytes():
        assert time.monotonic() < limit
        time.sleep(0.1)


def test_writers_are_told_by_their_methods(data: Data) -> None:
    class Run:
        def __init__(self) -> None:
            self.axes: dict[str, str] = {}
            self.rows: list[dict[str, float]] = []

        def define_metric(self, name: str, *, step_metric: str) -> None:
            self.axes[name] = step_metric

        def log(self, row: dict[str, float]) -> None:
            self.rows.append(row)

    class Metrics:
        def __init__(self) -> None:
            self.rows: dict[int, dict[str, float]] = {}

        def log_metrics(self, metrics: dict[str, float], *, step: int) -> None:
            self.rows[step] = metrics

    run, metrics = Run(), Metrics()
    monitor = recorded(data, 2, writer=run)
    monitor.write_to(metrics)
    assert run.axes == {"virgo/*": "virgo/step"}
    assert [row.pop("virgo/step") for row in run.rows] == [0, 1] == list(metrics.rows)
    assert run.rows == list(metrics.rows.values()) == [r.scalars() for r in monitor.records]
    record = monitor.records[0]
    odd = type(record)(0, ("<a__to__b>",), [1.0], [2.0], {"convs.<a>.w": 3.0}, 1)
    assert set(odd.scalars()) == {
        "virgo/forward/0__a__to__b_",
        "virgo/backward/0__a__to__b_",
        "virgo/gradient_norm/convs._a_.w",
    }


@pytest.fixture
def lightning() -> Iterator[Any]:
    with warnings.catch_warnings():
        # its own imports and its advice on workers and loggers
        warnings.filterwarnings("ignore", category=DeprecationWarning)
        warnings.filterwarnings("ignore", message=".*LeafSpec.*deprecated", category=FutureWarning)
        warnings.filterwarnings("ignore", message=".*does not have many workers.*")
        yield pytest.importorskip(
            "lightning.pytorch", reason="the lightning extra is not installed"
        )


def fit(lightning: Any, data: Data, callback: Any, tmp_path: Path, **options: Any) -> Any:
    class Module(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net = make()

        def training_step(self, batch: Any, index: int) -> Tensor:
            return loss_of(self.net, data)

        def validation_step(self, batch: Any, index: int) -> None:
            self.net.convs[0](data.x, data.edge_index)

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=0.1)

    module = Module()
    loader = torch.utils.data.DataLoader(torch.zeros(40, 1), batch_size=1)
    trainer = lightning.Trainer(
        **{
            "accelerator": "cpu",
            "max_steps": 40,
            "callbacks": [callback] if callback else [],
            "logger": False,
            "enable_checkpointing": False,
            "enable_progress_bar": False,
            "enable_model_summary": False,
            "default_root_dir": tmp_path,
            "max_epochs": -1,
            "val_check_interval": 10,
            "log_every_n_steps": 1,
            **options,
        }
    )
    trainer.fit(module, loader, loader)
    return module


def test_lightning(lightning: Any, data: Data, tmp_path: Path) -> None:
    callback = LightningMonitor(every=20)
    assert isinstance(callback, lightning.Callback)
    assert isinstance(callback, LightningMonitor)
    watched = fit(lightning, data, callback, tmp_path)
    records = callback.monitor.records
    assert [record.step for record in records] == [0, 20]
    assert records[0].names == ("input", "into net.convs.1", "into net.convs.2", "output")
    assert hooks_of(watched) == 0

    plain = fit(lightning, data, None, tmp_path)
    for a, b in zip(plain.parameters(), watched.parameters(), strict=True):
        assert torch.equal(a, b)
    model = make()
    model(data.x, data.edge_index)
    assert records[0].forward == pytest.approx([by_hand(h) for h in model.kept], rel=EXACT)


def test_lightning_accumulates_and_logs(lightning: Any, data: Data, tmp_path: Path) -> None:
    from lightning.pytorch.loggers import CSVLogger

    logger = CSVLogger(tmp_path, flush_logs_every_n_steps=1)
    callback = LightningMonitor(every=2)
    options = {"accumulate_grad_batches": 4, "max_steps": 5, "logger": logger}
    fit(lightning, data, callback, tmp_path, **options)
    records = callback.monitor.records
    assert [record.step for record in records] == [0, 2, 4]
    assert all(len(record.forward) == 4 for record in records)
    written = (Path(logger.log_dir) / "metrics.csv").read_text().splitlines()
    assert "virgo/forward/3_output" in written[0]
    assert len(written) == 1 + 3


def test_lightning_stops_on_an_exception(lightning: Any, data: Data, tmp_path: Path) -> None:
    class Fail(lightning.Callback):
        def on_before_optimizer_step(self, trainer: Any, pl_module: Any, optimizer: Any) -> None:
            assert hooks_of(pl_module) > 0
            modules.append(pl_module)
            raise RuntimeError("stop here")

    modules: list[nn.Module] = []
    with pytest.raises(RuntimeError, match="stop here"):
        fit(lightning, data, None, tmp_path, callbacks=[LightningMonitor(), Fail()])
    assert hooks_of(modules[0]) == 0


def test_lightning_callback_copies(lightning: Any) -> None:
    twin = copy.deepcopy(LightningMonitor(every=7, log=False))
    assert (twin.every, twin.log) == (7, False)
    assert isinstance(twin, lightning.Callback)
    with pytest.raises(OptionError, match="every: expected at least 1"):
        LightningMonitor(every=0)


def test_without_lightning(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("lightning", "lightning.pytorch", "pytorch_lightning"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ImportError, match=r"virgo-gnn\[lightning\]"):
        LightningMonitor()


def test_importing_it_imports_none_of_the_extras() -> None:
    code = (
        "import sys, virgo.diagnostics.monitor\n"
        "print([m for m in ('lightning', 'pytorch_lightning', 'tensorboard', 'matplotlib')"
        " if m in sys.modules])"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "[]"
