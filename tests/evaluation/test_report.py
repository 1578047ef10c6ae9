"""Tables of evaluations, and what was published beside them."""

import pytest
from matplotlib.figure import Figure

import eval as program
from minirl.evaluation import benchmarks
from minirl.evaluation.published import MATH, published
from minirl.evaluation.report import draw_pass_at_k, latex, main_table, markdown


def records(*names):
    known = benchmarks.read_records(program.CONFIG)
    return [known[name] for name in names]


def loaded(*names):
    return [benchmarks.Loaded(b, [], [], [], "", "", 0, 0, []) for b in records(*names)]


def test_labels_break_no_table():
    table = [["a|b\nc", r"x^2~y\z"], ["[1] $5 & 6%", "<#_{}>"]]
    assert markdown(table).splitlines()[0] == r"| a\|b c      | x^2~y\z |"
    lines = latex(table, "c|d").splitlines()
    assert lines[4] == r"a\textbar{}b c & x\textasciicircum{}2\textasciitilde{}y\textbackslash{}z \\"
    assert lines[6] == r"{}[1] \$5 \& 6\% & \textless{}\#\_\{\}\textgreater{} \\"


def test_published_values_stand_in_the_columns_that_are_there():
    entry = {"mean": 0.5, "low": 0.4, "high": 0.6, "problems": 0}
    found = {name: {"metrics": {"accuracy": entry}} for name in ("aime2024", "gsm8k")}
    results = {"results": {"mine": found}, "averages": {"mine": None}}
    chosen = loaded("aime2024", "gsm8k")
    table = main_table(results, chosen, published([one.benchmark for one in chosen]))
    assert table[:2] == [["method", "AIME24", "GSM8K"], ["mine", "50.0 [40.0, 60.0]", "50.0 [40.0, 60.0]"]]
    assert ["paper: Qwen3-8B DAPO+EDAS", "48.85", "–"] in table
    assert len(table) == 2 + 15, "the rows of mathematics"


def test_a_published_average_stands_only_beside_its_own_benchmarks():
    assert published(records("gsm8k")) == []
    seven = [name for name, _ in MATH.values()]
    whole = {(r["model"], r["method"]): r["average"] for r in published(records(*seven, "gsm8k"))}
    assert whole["Qwen3-8B", "DAPO+EDAS"] == 54.11
    assert whole["Qwen3-4B", "base"] == 33.68
    (row,) = [r for r in published(records("aime2025")) if (r["model"], r["method"]) == ("Qwen3-4B-Base", "DAPO+EnAdv")]
    assert row["values"] == {"aime2025": 17.40}
    code = benchmarks.select(benchmarks.read_records(program.CONFIG), ["code"], [], [])
    assert [r["average"] for r in published(code)] == [54.19, 55.64]
    assert {r["average"] for r in published(records(*seven[1:]))} == {None}
    assert {r["average"] for r in published(records(*seven, "humaneval_plus"))} == {None}


def test_a_value_of_another_metric_does_not_stand_beside():
    (code,) = records("livecodebench_v6")
    assert [r["values"] for r in published([code])] == [{"livecodebench_v6": 31.21}, {"livecodebench_v6": 32.07}]
    assert published([benchmarks.record(code.name, {"metric": "pass@1"}, code)]) == []


@pytest.mark.parametrize("ks", [(1, 2, 4, 8), (1, 8, 32), (1,)])
def test_the_axis_of_pass_at_k_shows_the_ks_that_were_measured(ks, tmp_path, monkeypatch):
    drawn = []
    monkeypatch.setattr(Figure, "savefig", lambda figure, path, **_: (figure.canvas.draw(), drawn.append(figure)))
    entry = {"mean": 0.5, "low": 0.4, "high": 0.6, "problems": 9}
    results = {"results": {"mine": {"aime2024": {"metrics": {f"pass@{k}": entry for k in ks}}}}}
    draw_pass_at_k(tmp_path / "p.png", results, loaded("aime2024"))
    axis = drawn[0].axes[0]
    assert [label.get_text() for label in axis.get_xticklabels(which="both")] == [str(k) for k in ks]
