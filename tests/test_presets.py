"""The files in configs/: the paper's settings (arXiv 2605.17333 and its public code), and how ranks are launched."""

import re
from argparse import Namespace

import pytest
import yaml

from benchmarks.common import qwen3_config
from benchmarks.limit import estimate
from minirl.config.command_line import load
from minirl.config.options import every_option
from minirl.policy import plan
from minirl.watch import limit
from tests.conftest import ROOT

CONFIGS = ROOT / "configs"
MATH = ("qwen3-8b-math", "qwen3-4b-math", "qwen3-4b-base-math")
MODELS = {"qwen3-8b-math": "Qwen/Qwen3-8B", "qwen3-4b-math": "Qwen/Qwen3-4B", "qwen3-4b-base-math": "Qwen/Qwen3-4B-Base",
          "qwen3-4b-code": "Qwen/Qwen3-4B"}  # fmt: skip
# clip range, dynamic sampling, needs entropies
ESTIMATORS = {
    "grpo": (0.2, 0.2, False, False),
    "pkpo": (0.2, 0.2, False, False),
    "grpo+edas": (0.2, 0.2, False, False),
    "dapo": (0.2, 0.28, True, False),
    "dapo+entropy": (0.2, 0.28, True, True),
    "dapo+edas": (0.2, 0.28, True, False),
}


def preset(name, *options):
    return load([str(CONFIGS / f"{name}.yaml"), *options])


@pytest.mark.parametrize("name", MODELS)
def test_the_papers_presets_have_its_settings(name):
    c = preset(name)
    assert c.model.path == MODELS[name]
    assert (c.model.dtype, c.rollout.engine, c.data.chat_arguments) == ("bfloat16", "vllm", {"enable_thinking": False})
    assert (c.rollout.prompts, c.rollout.group_size, c.algorithm.mini_batch_prompts, c.algorithm.epochs) == (256, 10, 64, 1)
    assert (c.rollout.temperature, c.rollout.max_generation_batches) == (1.0, 20)
    assert (c.optimizer.lr, c.optimizer.schedule, c.optimizer.warmup_steps) == (1e-6, "constant", 0)
    assert (c.optimizer.betas, c.optimizer.weight_decay, c.optimizer.max_grad_norm) == ([0.9, 0.999], 0.01, 1.0)
    assert (c.algorithm.dual_clip, c.algorithm.kl_coef) == (3.0, 0.0)
    assert (c.algorithm.overlong_buffer, c.algorithm.mask_truncated) == (0, False)
    assert (c.estimator.edas.alpha, c.estimator.edas.beta, c.estimator.edas.kappa) == (0.4, 0.2, 2.0)
    assert (c.estimator.entropy.alpha, c.estimator.entropy.kappa, c.estimator.pkpo.k) == (0.4, 2.0, 8)
    limits = (c.run.epochs, c.data.max_prompt_tokens, c.rollout.max_response_tokens)
    sampling = (c.verifier.name, c.eval.temperature, c.eval.top_p, c.eval.top_k)
    if name in MATH:
        assert (limits, sampling) == ((2, 2048, 8192), ("math", 0.7, 0.95, 40))
    else:
        assert (limits, sampling) == ((1, 2048, 4096), ("code", 0.7, 0.8, 0))


def test_the_fast_preset_differs_from_the_papers_where_it_says_so():
    def values(name):
        return {key: value for key, value, _ in every_option(preset(name)) if not key.startswith("plan.")}

    paper, fast = values("qwen3-8b-math"), values("qwen3-8b-math-fast")
    assert {key: fast[key] for key in fast if fast[key] != paper[key]} == {
        "model.compile_layers": True, "rollout.carry_over": True, "rollout.logprob_diff_stop": 0.1,
        "algorithm.old_logprobs": "rollout", "eval.every": 25, "rollout.vllm.gpu_memory_utilization": 0.65,
    }  # fmt: skip


@pytest.mark.parametrize("name", ["qwen3-8b-math", "qwen3-8b-math-fast", "qwen3-4b-math", "qwen3-4b-code", "qwen3-0.6b-gsm8k"])
def test_presets_fit_their_gpus_without_recomputing(name):
    config = preset(name)
    size = re.search(r"Qwen3-([\d.]+B)", config.model.path)[1].lower()
    lines = "\n".join(plan.report(config, plan.measure(qwen3_config(size))))
    assert "activations kept" in lines
    assert "WARNING" not in lines


@pytest.mark.parametrize(("name", "kept"), [("qwen3-8b-math-lora", True), ("qwen3-4b-math-lora-24gb", False)])
def test_presets_with_adapters_fit_one_card(name, kept):
    config = preset(name)
    assert config.plan.gpus == 1
    size = re.search(r"Qwen3-([\d.]+B)", config.model.path)[1].lower()
    lines = "\n".join(plan.report(config, plan.measure(qwen3_config(size), config.model.lora)))
    assert ("activations kept" if kept else "activations recomputed") in lines
    assert "WARNING" not in lines
    whole = preset(name, "--model.lora.r=0")
    assert "do not fit" in "\n".join(plan.report(whole, plan.measure(qwen3_config(size)))), "all weights do not"


def test_the_estimate_of_the_fast_preset_is_below_the_papers():
    arguments = Namespace(mean=2048, sigma=1.0, prompt=150)
    sizes, h200 = plan.measure(qwen3_config("8b")), limit.hardware_of("H200")
    for kept in (0.5, 0.7, 0.85):
        paper, fast = (estimate(preset(n), sizes, h200, arguments, kept) for n in ("qwen3-8b-math", "qwen3-8b-math-fast"))
        assert fast["limit: step"] < fast["step"] < 0.95 * paper["step"]


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_every_row_of_the_papers_table_is_a_preset_and_an_estimator(estimator):
    for name in MATH if "dapo" not in estimator or "entropy" in estimator else MODELS:
        c = preset(name, f"--algorithm.estimator={estimator}")
        a = c.algorithm.requirements
        got = (a.clip_low, a.clip_high, a.dynamic_sampling, c.build_estimator().requirements.needs_entropy)
        assert got == ESTIMATORS[estimator], name


@pytest.mark.parametrize("path", sorted(CONFIGS.glob("[!b]*.yaml")), ids=lambda path: path.stem)
def test_every_file_but_the_table_of_benchmarks_is_a_config_and_says_how_to_start_it(path):
    assert load([str(path)]).run.steps > 0
    assert f"configs/{path.name}" in path.read_text().partition("model:")[0]


def test_the_launchers_files_are_for_1_8_and_2_x_8_gpus():
    def launch(name):
        return yaml.safe_load((CONFIGS / "accelerate" / f"{name}.yaml").read_text())

    one, node, nodes, two = map(launch, ("one-gpu", "zero3", "zero3-2nodes", "zero2"))
    assert (two["deepspeed_config"]["zero_stage"], two["num_processes"]) == (2, 8)
    assert [(f["num_machines"], f["num_processes"]) for f in (one, node, nodes)] == [(1, 1), (1, 8), (2, 16)]
    assert one["distributed_type"] == "NO"
    for f in (node, nodes):
        assert (f["distributed_type"], f["deepspeed_config"]["zero_stage"]) == ("DEEPSPEED", 3)
        assert f["deepspeed_config"]["zero3_init_flag"]
        assert "gradient_accumulation_steps" not in f["deepspeed_config"], "counted by us"
