"""``virgo compare`` and ``check`` on the networks of link prediction and graph classification."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from kit.ogb_library import ogb_or_skip
from kit.snapshots import untouched
from torch import Tensor, nn
from torch_geometric.data import Batch, Data

import virgo
from virgo import cli
from virgo.experiments.data.datasets import Dataset
from virgo.experiments.models import build
from virgo.experiments.models.link import link_loss
from virgo.experiments.tasks import Seeds, Settings, task_of
from virgo.experiments.tasks.graph import GraphTask
from virgo.experiments.tasks.link import LinkTask
from virgo.experiments.tasks.subjects import Subject, with_batch_statistics

LINKS, GRAPHS, MOLECULES = "like:ogbl-collab@0.002", "like:imdb-b@0.08", "like:ogbg-molhiv@0.003"
METHODS = ["xavier", "virgo-backward", "virgo-backward+measured"]


@pytest.fixture(scope="module")
def links() -> LinkTask:
    """Nodes without features, as in ddi, whose stand-ins are too dense to be small."""
    generator = torch.Generator().manual_seed(0)
    pairs = torch.combinations(torch.arange(60))
    pairs = pairs[torch.randperm(len(pairs), generator=generator)]
    train, valid, test, wrong = pairs[:300], pairs[300:330], pairs[330:360], pairs[360:400]
    data = Data(edge_index=torch.cat([train, train.flip(1)]).t().contiguous(), num_nodes=60)
    split = {
        "train": {"edge": train},
        "valid": {"edge": valid, "edge_neg": wrong},
        "test": {"edge": test, "edge_neg": wrong},
    }
    return LinkTask(Dataset("like:ogbl-ddi@0.01", "link", data, split, "hits@20", 0))


@pytest.fixture(scope="module")
def featured() -> LinkTask:
    """Nodes with features and edges with weights."""
    return LinkTask(virgo.data.load(LINKS))


@pytest.fixture(scope="module")
def graphs() -> GraphTask:
    return GraphTask(virgo.data.load(GRAPHS))


def settings(layers: int = 3, width: int = 16) -> Settings:
    return Settings(hidden_channels=width, num_layers=layers, dropout=0.5)


def compared(subject: Subject, methods: list[str], seeds: int = 1) -> virgo.Comparison:
    return virgo.compare(
        lambda: subject.model,
        subject.data,
        methods,
        seeds=seeds,
        loss=subject.loss,
        forward=subject.forward,
        planner=subject.plan,
    )


def variance(h: Tensor) -> float:
    return float(h.detach().double().var(1, correction=0).mean())


def layer_by_layer(convs: Any, run: Any) -> tuple[list[float], list[float]]:
    """The slow reference: keep every layer's input and the last output, then look at them."""
    kept: list[Tensor] = []
    handles = [
        conv.register_forward_pre_hook(lambda _, args: kept.append(args[0])) for conv in convs
    ]
    handles += [convs[-1].register_forward_hook(lambda _, args, out: kept.append(out))]
    loss = run()
    for handle in handles:
        handle.remove()
    gradients = torch.autograd.grad(loss, kept)
    return [variance(h) for h in kept], [variance(g) for g in gradients]


def curves(study: virgo.Comparison, method: str) -> list[list[float]]:
    (depth,) = study.depths
    return [list(study.at(depth, way)[method].values) for way in ("forward", "backward")]


# --- against a slow reference ---------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["links", "featured"])
@pytest.mark.parametrize("name", ["gcn", "ngnn-sage"])
@pytest.mark.parametrize("method", ["xavier", "virgo-backward+measured"])
def test_links_are_what_pygs_layers_and_the_tasks_loss_show(
    kind: str, name: str, method: str, request: pytest.FixtureRequest
) -> None:
    task: LinkTask = request.getfixturevalue(kind)
    subject = task.subject(name, settings(), seed=1)
    found = curves(compared(subject, [method]), method)
    model: Any = subject.model
    subject.plan(model, method, 0).apply_(model)
    model.eval()
    loss, data = task.loss_of(model, 1), task.dataset.data
    assert (model.embedding is None) == (kind == "featured")

    def run() -> Tensor:
        x = model.inputs(data.x).detach().requires_grad_()
        return loss(model.encode(x, data.edge_index, data.get("edge_weight")), None)

    expected = layer_by_layer(model.encoder.convs, run)
    for ours, slow in zip(found, expected, strict=True):
        assert ours == pytest.approx(slow, rel=1e-3)


def test_the_loss_of_links_is_the_training_loss(links: LinkTask) -> None:
    model: Any = links.subject("gcn", settings()).model
    model.eval()
    h = model(None, links.dataset.data.edge_index)
    value = links.loss_of(model, 0)(h, None)
    # at the start a score is near zero on either side: log 2 each
    assert float(value.detach()) == pytest.approx(2 * 0.6931, rel=0.1)
    few = torch.zeros(2, 1, dtype=torch.long)
    with torch.no_grad():
        certain = link_loss(model.score(h, few) + 50, model.score(h, few) - 50)
    assert float(certain) < 1e-6


@pytest.mark.parametrize("norms", ["batch", "fresh"])
@pytest.mark.parametrize("name", ["gcn", "gin"])
def test_graphs_are_what_pygs_layers_and_the_tasks_loss_show(
    norms: str, name: str, graphs: GraphTask
) -> None:
    subject = graphs.subject(name, settings(), norms=norms)
    found = curves(compared(subject, ["xavier"]), "xavier")
    model: Any = subject.model
    subject.plan(model, "xavier", 0).apply_(model)
    model.dropout = 0.0
    model.train(norms == "batch")
    members: Any = [graphs.dataset.data[int(i)] for i in graphs.split_of(0)["train"]]
    batch: Any = Batch.from_data_list(members)
    batch.x = batch.x.float().requires_grad_()

    def run() -> Tensor:
        output = model(batch.x, batch.edge_index, batch.batch)
        return nn.functional.cross_entropy(output, batch.y)

    expected = layer_by_layer(model.convs, run)
    for ours, slow in zip(found, expected, strict=True):
        assert ours == pytest.approx(slow, rel=1e-3)


# --- what BatchNorm does --------------------------------------------------------------------------


def test_batchnorm_hides_the_scale_in_training_and_not_before(graphs: GraphTask) -> None:
    """Lecun's and Kaiming's weights differ by a factor only: behind BatchNorm they are alike."""
    hidden = {}
    for norms in ("batch", "fresh"):
        study = compared(graphs.subject("gcn", settings(), norms=norms), ["lecun", "xavier"])
        one, other = (curves(study, name)[0][1:-1] for name in ("lecun", "xavier"))
        hidden[norms] = [a / b for a, b in zip(one, other, strict=True)]
    assert hidden["batch"] == pytest.approx([1.0, 1.0], rel=0.1)  # the last bit is BatchNorm's eps
    assert max(hidden["fresh"]) < 0.5


def test_statistics_and_modes_are_left_as_they_were(graphs: GraphTask) -> None:
    subject = graphs.subject("gin", settings())
    subject.model.train()
    with untouched(subject.model):
        compared(subject, METHODS)
    norms = [m for m in subject.model.modules() if isinstance(m, nn.BatchNorm1d)]
    assert all(int(norm.num_batches_tracked or 0) == 0 for norm in norms)


def test_modes_are_restored_when_a_pass_raises(graphs: GraphTask) -> None:
    model = graphs.subject("gcn", settings()).model.eval()
    with pytest.raises(virgo.GraphError, match="edge_index: expected a tensor"):
        with_batch_statistics(model, Data(x=torch.ones(2, 3)))
    assert not any(module.training for module in model.modules())


# --- plans are those of the runs ------------------------------------------------------------------


def starts_from_the_plan(task: Any, name: str, init: str, seeds: Seeds) -> bool:
    """Whether every weight that a run begins with is the one that a comparison looks at."""
    started = task.start(name, init, settings(), seeds)
    subject = task.subject(name, settings(), seeds.initialisation)
    subject.plan(subject.model, init, seeds.initialisation).apply_(subject.model)
    drawn = subject.model.state_dict()
    return all(torch.equal(value, drawn[name]) for name, value in started.state_dict().items())


@pytest.mark.parametrize("init", METHODS)
def test_links_start_from_the_plan_that_is_compared(init: str, links: LinkTask) -> None:
    assert starts_from_the_plan(links, "sage", init, Seeds.of(3))


@pytest.mark.parametrize("init", METHODS)
def test_graphs_start_from_the_plan_that_is_compared(init: str, graphs: GraphTask) -> None:
    assert starts_from_the_plan(graphs, "gin", init, Seeds.of(0))


def test_a_measured_plan_meets_its_target_under_the_tasks_loss(links: LinkTask) -> None:
    subject = links.subject("gcn", settings(width=64))
    study = compared(subject, ["xavier", "virgo-backward+measured"])
    panel = study.at(3, "backward")
    assert panel["virgo-backward+measured"].stability < 1.05
    assert panel["xavier"].stability > 3


def test_a_given_loss_is_also_the_plans() -> None:
    """A gradient of another loss has another profile: a plan for it would miss the target."""
    data = virgo.data.citation_like(num_nodes=150, num_features=48, seed=0)
    torch.manual_seed(0)
    model = build("gcn", 48, 7, {"hidden_channels": 16, "num_layers": 3})

    def loss(output: Tensor, data: Any) -> Tensor:
        return output[:5].square().sum()

    def other(model: Any, name: str, seed: int) -> virgo.Plan:
        return virgo.plan(model, data, "virgo-backward", estimate="measured", seed=seed)

    ranges = {}
    for planner in (None, other):
        study = virgo.compare(
            lambda: model, data, ["virgo-backward+measured"], seeds=1, loss=loss, planner=planner
        )
        ranges[planner is None] = study.at(3, "backward")["virgo-backward+measured"].stability
    assert ranges[True] < 1.05
    assert ranges[False] > 1.2


# --- bounded, and said ----------------------------------------------------------------------------


def test_a_sample_of_graphs_is_bounded_and_said(graphs: GraphTask) -> None:
    subject = graphs.subject("gcn", settings(), max_graphs=10)
    assert subject.facts == {"graphs": 10, "training graphs": 64, "norms": "batch"}
    assert subject.notes[0] == "measured on 10 of 64 training graphs"
    assert subject.data.num_graphs == 10
    plans = [subject.plan(subject.model, name, 1) for name in ("xavier", "virgo+measured")]
    assert [plan.graph["sampled"]["graphs"] for plan in plans] == [64, 10]
    whole = graphs.subject("gcn", settings())
    assert whole.facts["graphs"] == 64


def test_wide_networks_are_looked_at_on_fewer_graphs(
    graphs: GraphTask, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("virgo.experiments.tasks.graph.SEEN_NUMBERS", 1 << 18)
    seen = [graphs.subject("gcn", settings(width=w)).facts["graphs"] for w in (4, 16, 64, 1024)]
    assert 64 >= seen[0] > seen[1] > seen[2] > seen[3] == 1


def test_bad_arguments_of_a_subject(graphs: GraphTask, links: LinkTask) -> None:
    with pytest.raises(virgo.OptionError, match="norms: expected batch or fresh, got 'none'"):
        graphs.subject("gcn", settings(), norms="none")
    with pytest.raises(virgo.OptionError, match="max_graphs: expected at least 1, got 0"):
        graphs.subject("gcn", settings(), max_graphs=0)
    with pytest.raises(virgo.OptionError, match="for graph classification, got 'sage'"):
        graphs.subject("sage", settings())
    with pytest.raises(virgo.OptionError, match="for link prediction, got 'gin'"):
        links.subject("gin", settings())


# --- the command line -----------------------------------------------------------------------------


def test_compare_links(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = tmp_path / "c.json"
    argv = [
        "compare",
        "--dataset",
        LINKS,
        "--model",
        "ngnn-gcn",
        "--seeds",
        "1",
        "--layers",
        "2",
        "3",
        "--width",
        "16",
        "--methods",
        *METHODS,
        "--json",
        str(found),
    ]
    assert cli.main(argv) == 0
    out = capsys.readouterr().out
    assert f"ngnn-gcn on {LINKS}, mean of 1 draws" in out
    assert "\n2 layers" in out
    assert "\n3 layers" in out
    assert "training edges and as many negatives" in out
    assert "note: generated: like ogbl-collab" in out
    read = json.loads(found.read_text(encoding="utf-8"))
    assert [(one["method"], one["depth"]) for one in read["health"]] == [
        (name, depth) for depth in (2, 3) for name in METHODS
    ]
    assert read["facts"]["width"] == 16
    assert read["failures"] == {}


@pytest.mark.parametrize(("name", "model"), [(GRAPHS, "gin"), (MOLECULES, "gcn")])
def test_compare_graphs_at_the_papers_sizes(
    name: str, model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if name is MOLECULES:
        ogb_or_skip()
    found = tmp_path / "c.json"
    argv = [
        "compare",
        name,
        "--model",
        model,
        "--seeds",
        "1",
        "--graphs",
        "20",
        "--norms",
        "fresh",
        "--methods",
        "xavier",
        "virgo-backward",
        "--json",
        str(found),
    ]
    assert cli.main(argv) == 0
    out = capsys.readouterr().out
    assert "\n5 layers" in out
    assert "measured on 20 of " in out
    assert "BatchNorm is as in evaluation" in out
    facts = json.loads(found.read_text(encoding="utf-8"))["facts"]
    assert facts["width"] == (300 if name is MOLECULES else 32)
    assert facts["graphs"] == 20


def test_a_method_that_fails_is_listed_with_its_depth(capsys: pytest.CaptureFixture[str]) -> None:
    argv = [
        "compare",
        GRAPHS,
        "--seeds",
        "1",
        "--layers",
        "2",
        "3",
        "--width",
        "8",
        "--methods",
        "xavier",
        "xavier+measured",
    ]
    assert cli.main(argv) == 0
    out = capsys.readouterr().out
    assert "failed: xavier+measured, 2 layers: estimate='measured'" in out
    assert "failed: xavier+measured, 3 layers: estimate='measured'" in out


def test_check(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["check", GRAPHS, "--model", "gin", "--method", "virgo-backward"]) == 0
    out = capsys.readouterr().out
    assert f"gin with virgo-backward on {GRAPHS}" in out
    assert "the prediction is of the network without BatchNorm" in out
    deep = ["check", "--dataset", GRAPHS, "--layers", "12", "--method", "lecun", "--norms"]
    assert cli.main([*deep, "fresh"]) == 1
    assert "vanishes" in capsys.readouterr().out
    assert cli.main([*deep, "batch"]) == 0  # BatchNorm saves it
    shallow = ["check", LINKS, "--model", "sage", "--width", "16", "--layers", "2"]
    assert cli.main(shallow) == 0
    assert f"sage as it is on {LINKS}" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (
            ["cora", "--dataset", LINKS],
            "--dataset: expected one name, got 'cora' beside 'like:ogbl-collab@0.002'",
        ),
        (["--dataset", LINKS, "--nodes", "9"], "--nodes: expected a dataset of node classif"),
        ([GRAPHS, "--all-nodes"], "--all-nodes: expected a dataset of node classification"),
        ([LINKS, "--graphs", "9"], "--graphs: expected a dataset of graphs, got like:ogbl-collab"),
        (["like:cora@0.1", "--graphs", "9"], "--graphs: expected a dataset of graphs"),
        ([GRAPHS, "--graphs", "0"], "max_graphs: expected at least 1, got 0"),
        ([LINKS, "--model", "gin"], "--model: expected one of gcn, ngnn-gcn, sage, ngnn-sage"),
        ([GRAPHS, "--model", "my.code:make"], "--model: expected one of gcn, gin"),
        (["like:imdb-b@x"], "like:imdb-b@x: expected a scale above 0"),
    ],
    ids=lambda value: None if isinstance(value, str) else " ".join(value),
)
@pytest.mark.parametrize("command", ["check", "compare"])
def test_bad_options(
    command: str, argv: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main([command, *argv]) == 2
    captured = capsys.readouterr()
    assert said in " ".join(captured.err.split())
    assert not captured.out


@pytest.mark.parametrize("name", ["ogbl-ddi", "imdb-b"])
def test_real_datasets(
    name: str, data_root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    argv = [
        "compare",
        name,
        "--root",
        str(data_root),
        "--seeds",
        "1",
        "--width",
        "8",
        "--methods",
        "lecun",
        "virgo-forward",
    ]
    assert cli.main(argv) == 0
    out = capsys.readouterr().out
    counted = {"ogbl-ddi": "32,768 of 1,067,911 training edges", "imdb-b": "800 of 800 training"}
    assert counted[name] in out


def test_every_dataset_of_links_and_graphs_has_sizes() -> None:
    """What the command line takes the paper's sizes from knows each of them."""
    from virgo.experiments.data.catalogue import CATALOGUE
    from virgo.experiments.sweep.grids import datasets

    wanted = {name for name, entry in CATALOGUE.items() if entry.task != "node"}
    assert wanted == {*datasets("table2"), *datasets("table3")}


def test_the_task_is_shared(links: LinkTask) -> None:
    dataset = links.dataset
    assert task_of(dataset) is task_of(dataset)
