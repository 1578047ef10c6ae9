"""Arms, seeds and budgets of a comparison."""

from pathlib import Path

import pytest
import yaml

from minirl.ablate.cells import arms_of, budget_options, cells_of, config_of, design_of, differing
from minirl.config.command_line import load
from minirl.utils.errors import ConfigError

FAST = {"run.steps": "3"}


def design(tmp_path, text, **more):
    path = tmp_path / "base.yaml"
    path.write_text(text, encoding="utf-8")
    given = {"estimators": [], "grid": [], "options": {}, "seeds": None, "baseline": None} | more
    return design_of(path, **given)


def test_arms_are_the_product_of_estimators_and_grid():
    arms = arms_of(["dapo", "grpo"], ["optimizer.lr=1e-4,2e-4", "rollout.group_size=4,8"])
    assert len(arms) == 2 * 2 * 2
    assert arms[1].name == "dapo lr=1e-4 group_size=8"
    assert arms[1].options == {"algorithm.estimator": "dapo", "optimizer.lr": "1e-4", "rollout.group_size": "8"}
    assert [arm.name for arm in arms_of([], ["optimizer.lr=1e-4,2e-4"])] == ["lr=1e-4", "lr=2e-4"]


def test_a_grid_without_values_names_itself():
    with pytest.raises(ConfigError, match=r"'optimizer\.lr'"):
        arms_of(["dapo"], ["optimizer.lr"])


def test_cells_come_seed_by_seed_and_differ_in_nothing_but_arm_and_seed(tmp_path):
    plan = design_of(None, ["dapo", "dapo+edas"], [], FAST, seeds=2, baseline=None)
    cells = cells_of(plan, tmp_path)
    assert [(c.arm.name, c.seed) for c in cells] == [("dapo", 0), ("dapo+edas", 0), ("dapo", 1), ("dapo+edas", 1)]
    assert [c.config.run.seed for c in cells] == [0, 0, 1, 1]
    assert {c.config.run.steps for c in cells} == {3}
    assert differing(cells) == {"algorithm.estimator": {"dapo": "dapo", "dapo+edas": "dapo+edas"}}
    assert cells[0].shared == cells[1].shared != cells[2].shared, "the evaluation before is shared within a seed"


def test_cells_with_another_model_share_no_evaluation(tmp_path):
    plan = design_of(None, ["dapo"], ["model.dtype=float32,bfloat16"], FAST, seeds=1, baseline=None)
    first, second = cells_of(plan, tmp_path)
    assert first.shared != second.shared


def test_arms_must_be_evaluated_alike_and_differ(tmp_path):
    with pytest.raises(ConfigError, match=r"eval\.samples differs \(dapo samples=8: 8, dapo samples=16: 16\)"):
        cells_of(design_of(None, ["dapo"], ["eval.samples=8,16"], FAST, seeds=1, baseline=None), tmp_path)
    with pytest.raises(ConfigError, match="same options"):
        cells_of(design(tmp_path, "ablate: {arms: {a: {}, b: {}}}"), tmp_path)
    for grid in ("run.seed=1,2", "run.dir=a,b"):
        with pytest.raises(ConfigError, match="which a comparison sets itself"):
            design_of(None, ["dapo"], [grid], FAST, seeds=1, baseline=None)


def test_a_grid_may_hold_lists_and_no_empty_value():
    arms = arms_of(["dapo"], ["optimizer.betas=[0.9, 0.99],[0.9, 0.999]"])
    assert [arm.options["optimizer.betas"] for arm in arms] == ["[0.9, 0.99]", "[0.9, 0.999]"]
    with pytest.raises(ConfigError, match="empty value"):
        arms_of(["dapo"], ["optimizer.lr=1e-3,"])


def test_a_grid_is_split_outside_of_all_brackets():
    two = "[[a.py:f,1],[b.py:g,2]]"
    arms = arms_of([], [f"verifier.rewards={two},[]", "data.chat_arguments={a: [1,2], b: {c: 3}},{}"])
    assert [tuple(arm.options.values()) for arm in arms] == [
        (two, "{a: [1,2], b: {c: 3}}"), (two, "{}"), ("[]", "{a: [1,2], b: {c: 3}}"), ("[]", "{}")
    ]  # fmt: skip


def test_a_name_of_dots_stays_inside_the_folder(tmp_path):
    cells = cells_of(design(tmp_path, "ablate: {arms: {..: {}, b: {optimizer.lr: 0.1}}}"), tmp_path / "out")
    assert all((tmp_path / "out" / "runs") in cell.folder.resolve().parents for cell in cells)


def test_a_config_file_names_arms_of_its_own_and_trains_without_them(tmp_path):
    text = """
algorithm: {estimator: dapo}
ablate:
  baseline: plain
  seeds: 2
  first_seed: 7
  arms:
    plain: {}
    strong: {algorithm.estimator: dapo+edas, estimator: {edas: {alpha: 2, kappa: 1.2}}}
    packed: {data: {extra_info_columns: [a, b]}}
"""
    plan = design(tmp_path, text)
    cells = cells_of(plan, tmp_path / "out")
    assert (plan.baseline, [c.seed for c in cells]) == ("plain", [7, 7, 7, 8, 8, 8])
    assert cells[1].config.estimator.edas.alpha == 2
    assert cells[1].config.estimator.edas.kappa == 1.2
    assert cells[2].config.data.extra_info_columns == ["a", "b"]
    assert load([str(tmp_path / "base.yaml")]).algorithm.estimator == "dapo"
    assert [arm.name for arm in design(tmp_path, text, only=["plain", "strong"]).arms] == ["plain", "strong"]
    with pytest.raises(ConfigError, match="no arm weak; there are plain, strong, packed"):
        design(tmp_path, text, only=["weak", "plain"])


@pytest.mark.parametrize(
    ("text", "more", "says"),
    [
        ("run: {steps: 3}", {}, "nothing to compare"),
        ("run: {steps: 3}", {"estimators": ["dapo"]}, "two arms or more, not dapo"),
        ("run: {steps: 3}", {"estimators": ["dapo", "dapo"]}, "same name"),
        ("run: {steps: 3}", {"estimators": ["dapo", "grpo"], "baseline": "rloo"}, "baseline 'rloo'"),
        ("run: {steps: 3}", {"estimators": ["dapo", "grpo"], "seeds": 0}, "at least 1, not 0"),
        ("ablate: {arms: {a: {}, b: {}}, seed: 3}", {}, "not seed"),
        ("ablate: {arms: {a: {}, b: 5}}", {}, "not 5"),
        ("ablate: {arms: [dapo, grpo]}", {}, "is written as arms"),
        ("ablate: {arms: {a: {}, b: {}}, seeds: many}", {}, "whole number, not 'many'"),
    ],
)
def test_a_design_that_cannot_be_is_refused_with_the_value(tmp_path, text, more, says):
    with pytest.raises(ConfigError, match=says):
        design(tmp_path, text, **more)


def test_an_arm_that_cannot_work_is_named_before_anything_runs(tmp_path):
    plan = design_of(None, ["dapo", "dappo"], [], FAST, seeds=1, baseline=None)
    with pytest.raises(ConfigError, match=r"arm dappo: .*dappo"):
        cells_of(plan, tmp_path)


def test_names_that_would_share_a_folder_are_refused(tmp_path):
    plan = design(tmp_path, yaml.safe_dump({"ablate": {"arms": {"a b": {}, "a/b": {"optimizer.lr": 1e-3}}}}))
    with pytest.raises(ConfigError, match="same folder"):
        cells_of(plan, tmp_path)


def test_budgets():
    assert budget_options(None) == {}
    assert budget_options("steps=80") == {"run.steps": "80"}
    assert budget_options("tokens=2000000") == {"run.tokens": "2000000"}
    assert budget_options("time=1h30m") == {"run.seconds": "5400.0"}
    for wrong in ("80", "steps=", "steps=many", "time=", "dollars=5"):
        with pytest.raises(ConfigError, match="--budget"):
            budget_options(wrong)
    with pytest.raises(ConfigError, match=r"^--budget time=abc: a time is written as 2h50m, 90s or 1d, not 'abc'$"):
        budget_options("time=abc")


def test_the_studys_config_has_the_paper_in_it():
    plan = design_of(Path(__file__).parents[2] / "configs" / "study" / "rules.yaml", [], [], {}, None, None)
    configs = {arm.name: config_of(plan, arm, 101) for arm in plan.arms}
    edas = configs["edas"].estimator.edas
    assert (edas.alpha, edas.beta, edas.kappa) == (0.4, 0.2, 2.0), "the paper's"
    assert configs["shuffled"].algorithm.estimator == "dapo+edas-shuffled"
    assert configs["shuffled"].estimator == configs["edas-strong"].estimator
    assert (plan.baseline, plan.seeds, plan.first_seed) == ("dapo", 12, 101)
