"""Checks of option values and their combinations, before any model is loaded."""

import re
from datetime import date
from importlib.util import find_spec

from minirl.advantages import base_estimator, check_limits
from minirl.config.options import TASKS, TRACKERS, Config, LoraConfig, every_option
from minirl.utils.errors import ConfigError, require
from minirl.verify.rewards import is_weight, reward_file

# Bases that know right and wrong only, whatever the rewards are; bases that divide by the mean of the rewards.
BINARY = ("pkpo", "passk", "wreinforce", "nsr", "psr")
OVER_MEAN = ("maxrl",)


def check(config: Config) -> None:
    """ConfigError, with the value and the remedy, for the first value or combination that cannot work."""
    d, v, r, a, o, e = config.data, config.verifier, config.rollout, config.algorithm, config.optimizer, config.eval
    estimator = config.build_estimator()
    requirements, base = estimator.requirements, base_estimator(estimator).name
    for key, value, about in every_option(config):
        if not key.startswith(("estimator.", "loss.")):  # those have looked at their own, where a value may be a schedule
            try:
                check_limits(value, about, key)
            except ValueError as error:
                raise ConfigError(str(error)) from None
    from_rollout = a.old_logprobs == "rollout"
    require(
        len(o.betas) == 2 and all(0 <= b < 1 for b in o.betas), f"optimizer.betas takes two numbers in [0, 1), not {o.betas}"
    )
    require(
        0 <= a.rollout_is_low <= a.rollout_is_high > 0,
        f"algorithm.rollout_is_low={a.rollout_is_low} and rollout_is_high={a.rollout_is_high} must be a range of ratios",
    )
    require(all(r.stop), "rollout.stop has an empty text, which every token contains: remove it")
    require(
        r.group_size >= requirements.min_group_size,
        f"rollout.group_size={r.group_size} is too small for {a.estimator}, which compares the responses of a group: at least "
        f"{requirements.min_group_size}",
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
    shaped = (
        "set algorithm.overlong_buffer=0" if a.overlong_buffer
        else "set algorithm.kl_reward_coef=0" if a.kl_reward_coef
        else ""
    )  # fmt: skip
    extra = shaped or ("remove verifier.rewards" if v.rewards else "")
    require(not (base in BINARY and extra), f"{base} is defined for right and wrong only: {extra}")
    require(not (base in OVER_MEAN and shaped), f"{base} divides by the mean reward, which must not be negative: {shaped}")
    require(
        not r.carry_over or from_rollout or a.rollout_is != "none",
        "rollout.carry_over trains on groups of an older policy: set algorithm.rollout_is=truncate (or mask), or "
        "algorithm.old_logprobs=rollout, so that their ratio is taken against the policy that sampled them",
    )
    require(
        not r.ahead or r.continuous,
        f"rollout.ahead={r.ahead} begins groups beyond the batch, which whole generation batches do not have: set "
        "rollout.continuous=true, or rollout.ahead=0",
    )
    require(
        not r.ahead or from_rollout or a.rollout_is != "none",
        f"rollout.ahead={r.ahead} trains on responses that older policies have begun, which nothing here corrects: set "
        "algorithm.rollout_is=truncate (or mask), or algorithm.old_logprobs=rollout, so that the ratio is taken against the "
        "policy that sampled each token; or rollout.ahead=0",
    )
    other = "carry_over" if r.carry_over else "abort_longest" if r.abort_longest else ""
    require(
        not (r.continuous and other),
        f"rollout.{other} is for whole generation batches, which rollout.continuous does not have: set it to its default"
        + (", and rollout.ahead to what may be begun for the next batch" if r.carry_over else ""),
    )
    require(
        not from_rollout or a.rollout_is == "none",
        f"algorithm.rollout_is={a.rollout_is} corrects old log-probs of the trainer, which old_logprobs=rollout does not use: "
        "nothing to correct, set it to none",
    )
    require(
        not (from_rollout and requirements.needs_entropy),
        f"{a.estimator} needs the policy's entropies, which come with old log-probs: set algorithm.old_logprobs=trainer",
    )
    require(
        v.labeller is None or ((file := reward_file(v.labeller)) is not None and file.is_file()),
        f"verifier.labeller takes file.py:function of a file that exists, not {v.labeller!r}",
    )
    require(
        d.task in TASKS or ((code := reward_file(d.task)) is not None and code.is_file()),
        f"data.task is one of {', '.join(TASKS)}, or file.py:function of a file that exists, not {d.task!r}",
    )
    if d.task == "dataset":
        require(bool(d.train), "data.task=dataset needs data.train: a .jsonl or .parquet file, or a Hub name")
        require("{problem}" in d.template, f"data.template must contain {{problem}}, not just {d.template!r}")
    known = v.name in ("math", "code") or ".py:" in v.name
    require(known, f"verifier.name is math, code or file.py:function, not {v.name!r}")
    require(not v.ordered or v.grader == "exact", f"verifier.ordered=true needs verifier.grader=exact, not {v.grader}")
    require(v.after != "", "verifier.after has no text: name what ends the thinking, or null to read the whole response")
    for entry in v.rewards:
        require(
            isinstance(entry, list) and len(entry) == 2 and isinstance(entry[0], str) and is_weight(entry[1]),
            f"verifier.rewards takes a list of [file.py:function, weight], the weight a finite number, not {entry!r}",
        )
    for name in config.run.trackers:
        if (code := reward_file(name)) is not None:
            require(code.is_file(), f"run.trackers={name}: there is no file {code}")
            continue
        require(name in TRACKERS, f"run.trackers takes file.py:Class, {', '.join(TRACKERS)}, not {name!r}")
        require(find_spec(name) is not None, f"run.trackers={name} needs a package that is not installed: pip install {name}")
    require(bool(config.model.lora.target_modules), "model.lora.target_modules is empty: name layers, or all-linear")
    require(
        config.model.lora.r > 0 or config.model.lora == LoraConfig(),
        "model.lora.r=0 trains all weights, without the adapters that model.lora.lora_alpha="
        f"{config.model.lora.lora_alpha} and target_modules={config.model.lora.target_modules} are for: set model.lora.r, "
        "or remove these options",
    )
    if config.run.stop_after is not None:
        duration(config.run.stop_after)
    if d.template_date is not None:
        try:
            date.fromisoformat(d.template_date)
        except ValueError:
            raise ConfigError(f"data.template_date takes a date such as 2026-01-31, not {d.template_date!r}") from None


def duration(text: str) -> float:
    """Seconds of a duration such as 2h50m, 90s or 1d. ConfigError for another text."""
    parts = re.findall(r"(\d+(?:\.\d+)?)([dhms])", text)
    if not parts or "".join(number + unit for number, unit in parts) != text:
        raise ConfigError(f"run.stop_after takes a time such as 2h50m, 90s or 1d, not {text!r}")
    return sum(float(number) * {"d": 86400, "h": 3600, "m": 60, "s": 1}[unit] for number, unit in parts)
