"""What cannot work, as a sentence with the value and the remedy: checked before any model is loaded."""

import re

from minirl.config.options import Config, every_option
from minirl.utils.errors import ConfigError, require
from minirl.verify.rewards import reward_file


def check(config: Config) -> None:
    """ConfigError for the first value or combination that cannot work."""
    d, v, r, a, o, e = config.data, config.verifier, config.rollout, config.algorithm, config.optimizer, config.eval
    estimator = config.build_estimator()
    binary = next((name for name in ("pkpo", "passk") if a.estimator.split("+")[0] == name), None)
    for key, value, limits in every_option(config):
        known, minimum = limits.get("choices"), limits.get("minimum")
        require(known is None or value in known, f"{key} is one of {', '.join(known or ())}, not {value!r}")
        require(minimum is None or value is None or value >= minimum, f"{key} must be at least {minimum}, not {value}")
    require(
        r.temperature > 0, f"rollout.temperature must be above 0, not {r.temperature}: greedy samples of a group are all alike"
    )
    require(0 < e.top_p <= 1, f"eval.top_p must be in (0, 1], not {e.top_p}")
    require(o.max_grad_norm > 0, f"optimizer.max_grad_norm must be above 0, not {o.max_grad_norm}")
    require(
        len(o.betas) == 2 and all(0 <= b < 1 for b in o.betas), f"optimizer.betas takes two numbers in [0, 1), not {o.betas}"
    )
    require(
        a.requirements.clip_low <= 1,
        f"algorithm.clip_low must be 1, for no bound, or below 1, not {a.requirements.clip_low}: a ratio is never negative",
    )
    require(
        a.rollout_is_high > 0 and 0 <= a.rollout_is_low <= a.rollout_is_high,
        f"algorithm.rollout_is_low={a.rollout_is_low} and rollout_is_high={a.rollout_is_high} must be a range of ratios",
    )
    require(
        r.abort_longest <= 0.5,
        f"rollout.abort_longest must be at most 0.5, not {r.abort_longest}: more than half of the work would be thrown away",
    )
    require(all(r.stop), "rollout.stop has an empty text, which every token contains: remove it")
    share = r.vllm.gpu_memory_utilization
    require(0 < share <= 1, f"rollout.vllm.gpu_memory_utilization must be in (0, 1], not {share}")
    require(v.timeout > 0, f"verifier.timeout must be above 0 seconds, not {v.timeout}")
    require(a.dual_clip is None or a.dual_clip > 1, f"algorithm.dual_clip must be above 1 or null, not {a.dual_clip}")
    require(
        r.group_size >= estimator.requirements.min_group_size,
        f"rollout.group_size={r.group_size} is too small for {a.estimator}, which compares the responses of a group: at least "
        f"{estimator.requirements.min_group_size}",
    )
    require(
        r.prompts % a.mini_batch_prompts == 0,
        f"algorithm.mini_batch_prompts={a.mini_batch_prompts} does not divide rollout.prompts={r.prompts}: choose a divisor",
    )
    require(e.k <= e.samples, f"eval.k={e.k} is more than eval.samples={e.samples}: pass@k needs at least k samples")
    require(
        e.temperature > 0 or e.samples == 1,
        f"eval.temperature=0 is greedy, so eval.samples={e.samples} would be the same response {e.samples} times: set it to 1",
    )
    require(
        a.overlong_buffer < r.max_response_tokens,
        f"algorithm.overlong_buffer={a.overlong_buffer} must be below rollout.max_response_tokens={r.max_response_tokens}",
    )
    require(
        not (binary and a.overlong_buffer),
        f"{binary} is defined for right and wrong only: set algorithm.overlong_buffer=0",
    )
    require(not (binary and v.rewards), f"{binary} is defined for right and wrong only: remove verifier.rewards")
    require(not (binary and a.kl_reward_coef), f"{binary} is defined for right and wrong only: set algorithm.kl_reward_coef=0")
    require(
        not (r.carry_over and a.old_logprobs == "trainer" and a.rollout_is == "none"),
        "rollout.carry_over trains on groups of an older policy: set algorithm.rollout_is=truncate (or mask), or "
        "algorithm.old_logprobs=rollout, so that their ratio is taken against the policy that sampled them",
    )
    require(
        not (a.old_logprobs == "rollout" and a.rollout_is != "none"),
        f"algorithm.rollout_is={a.rollout_is} corrects old log-probs of the trainer: with old_logprobs=rollout there "
        "is nothing to correct, set it to none",
    )
    require(
        not (a.old_logprobs == "rollout" and estimator.requirements.needs_entropy),
        f"{a.estimator} needs the policy's entropies, which come with old log-probs: set algorithm.old_logprobs=trainer",
    )
    require(
        v.labeller is None or ((file := reward_file(v.labeller)) is not None and file.is_file()),
        f"verifier.labeller takes file.py:function of a file that exists, not {v.labeller!r}",
    )
    if config.run.stop_after is not None:
        duration(config.run.stop_after)
    if d.task == "dataset":
        require(bool(d.train), "data.task=dataset needs data.train: a .jsonl or .parquet file, or a Hub name")
        require("{problem}" in d.template, f"data.template must contain {{problem}}, not just {d.template!r}")
    for entry in v.rewards:
        require(
            isinstance(entry, list) and len(entry) == 2 and isinstance(entry[0], str) and isinstance(entry[1], int | float),
            f"verifier.rewards takes a list of [file.py:function, weight], not {entry!r}",
        )
    require(
        v.name in ("math", "code") or ".py:" in v.name,
        f"verifier.name is math, code or file.py:function, not {v.name!r}",
    )


def duration(text: str) -> float:
    """Seconds of a text such as 2h50m, 90s or 1d. ConfigError when it is none."""
    parts = re.findall(r"(\d+(?:\.\d+)?)([dhms])", text)
    if not parts or "".join(number + unit for number, unit in parts) != text:
        raise ConfigError(f"run.stop_after takes a time such as 2h50m, 90s or 1d, not {text!r}")
    return sum(float(number) * {"d": 86400, "h": 3600, "m": 60, "s": 1}[unit] for number, unit in parts)
