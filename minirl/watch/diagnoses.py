"""Diagnoses: sentences that say what is wrong with a run, with numbers, cause and remedy, from its metrics alone.

A rule is a pure function of the metrics up to a step. It compares medians of a few steps with those of the run's own first
steps where a level alone says little, so that one odd step raises no alarm; each threshold stands with its reason.
docs/diagnoses.md has the table of all faults.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import nan, sqrt
from statistics import median

from minirl.config.options import Config

Row = dict[str, float]
Rule = Callable[[Sequence[Row], Config], str | None]
START = 3  # steps that show how a run began: one may be odd
RECENT = 5  # steps whose median is taken as the present level: two may be odd


@dataclass(frozen=True)
class Diagnosis:
    """step: at which `name`, the fault, was first seen; text: a sentence."""

    step: int
    name: str
    text: str


def diagnose(history: Sequence[Row], config: Config) -> list[Diagnosis]:
    """Every fault seen in a run, once each, in the order seen. history: the lines of metrics.jsonl."""
    seen: list[Diagnosis] = []
    for end in range(1, len(history) + 1):
        seen += newly_seen(history[:end], config, {d.name for d in seen})
    return seen


def newly_seen(history: Sequence[Row], config: Config, known: set[str]) -> list[Diagnosis]:
    """The faults seen at the last step of `history` whose names are not among the `known`."""
    found = ((name, rule(history, config)) for name, rule in RULES.items() if name not in known)
    return [Diagnosis(int(history[-1]["step"]), name, text) for name, text in found if text]


# ---- what rules read --------------------------------------------------------------------------------------------------------


def level(rows: Sequence[Row], *keys: str) -> float:
    """The median over `rows` of the sum of `keys`; NaN, with which no comparison holds, where no row has them."""
    values = [sum(row[key] for key in keys) for row in rows if all(key in row for key in keys)]
    return median(values) if values else nan


def total(rows: Sequence[Row], key: str) -> float:
    """The sum of a metric over `rows`."""
    return sum(row.get(key, 0.0) for row in rows)


def accuracy(rows: Sequence[Row]) -> float:
    """The share of right responses over `rows`; NaN without any group."""
    groups = total(rows, "sampling/groups")
    return sum(row["reward/accuracy"] * row["sampling/groups"] for row in rows) / groups if groups else nan


def accuracy_error(*parts: Sequence[Row]) -> float:
    """A standard error of the difference of accuracies of the `parts`, each against another. It counts groups, not responses:
    those to one prompt may all be alike."""
    variances = [(p := accuracy(rows)) * (1 - p) / max(1.0, total(rows, "sampling/groups")) for rows in parts]
    return sqrt(sum(variances))


def ends(history: Sequence[Row], count: int = RECENT) -> tuple[Sequence[Row], Sequence[Row]] | None:
    """(the first, the last `count` steps); None while they overlap."""
    return (history[:count], history[-count:]) if len(history) >= 2 * count else None


# ---- the verifier -----------------------------------------------------------------------------------------------------------


def accepts_everything(history: Sequence[Row], config: Config) -> str | None:
    """98%: a model that is right that often from the first step on has nothing to learn here, whoever is to blame. Later, only
    a jump within three steps is suspect: a model that learns gets there gradually."""
    rows, before = history[-START:], history[-2 * START : -START]
    from_start = len(history) == START
    if len(rows) < START or min(row["reward/accuracy"] for row in rows) < 0.98:
        return None
    if not from_start and not (len(before) == START and level(before, "reward/accuracy") < 0.8):
        return None
    when = (
        "from the first step on" if from_start else f"suddenly, after {level(before, 'reward/accuracy'):.0%} a few steps before"
    )
    return (
        f"{accuracy(rows):.1%} of the responses are judged right {when}: the verifier accepts everything, or the problems are "
        "too easy for the model; judge a few wrong answers with python -m minirl.verify, and look at rollouts/"
    )


def accepts_nothing(history: Sequence[Row], config: Config) -> str | None:
    """100 responses without a right one: below 3% accuracy with 95% confidence. Graded rewards (spread above 0) still teach;
    where most responses have no answer or are cut, that is the cause."""
    rows = history[:START]
    responses = total(rows, "sampling/groups") * config.rollout.group_size
    if len(history) != START or responses < 100 or any(row["reward/accuracy"] or row.get("reward/std") for row in rows):
        return None
    if unanswered(rows) > 0.5 or level(rows, "response/truncated") > 0.5:
        return None
    return (
        f"none of the first {responses:.0f} responses is judged right, though {1 - unanswered(rows):.0%} give an answer: the "
        "verifier accepts nothing, gold answers are in another format than it reads, or the problems are far too hard; judge a "
        "gold answer with python -m minirl.verify, and look at rollouts/"
    )


def unanswered(rows: Sequence[Row]) -> float:
    """The median share of responses in which the verifier finds no answer."""
    return level(rows, "response/no_answer", "response/empty_answer")


def no_answer(history: Sequence[Row], config: Config) -> str | None:
    """Half: then most of what is learned is the format. A model that starts without the format is on its way as long as the
    share falls, by a tenth at least. Where responses are cut, that is the cause."""
    if len(history) < RECENT:
        return None
    now, then, cut = unanswered(history[-RECENT:]), unanswered(history[:START]), level(history[-RECENT:], "response/truncated")
    if not (now > 0.5 and now > 0.9 * then and cut < 0.5):
        return None
    return (
        f"the verifier finds no answer in {now:.0%} of the responses ({then:.0%} in the first steps): the prompt does not ask "
        "for the format it reads; change data.template or verifier.answer, or start from a model that knows the format"
    )


def verifier_errors(history: Sequence[Row], config: Config) -> str | None:
    """2%: an error is never the model's doing, and its response is left out of its group."""
    rows = history[-RECENT:]
    share = total(rows, "verify/errors") / max(1.0, total(rows, "sampling/groups") * config.rollout.group_size)
    if share <= 0.02:
        return None
    return (
        f"{share:.0%} of the last responses have no verdict because the verifier failed: they are left out of their groups; "
        "status and detail in rollouts/ say why"
    )


def timeouts(history: Sequence[Row], config: Config) -> str | None:
    """A tenth: programs that loop are rarer than that, and each costs a worker the whole time limit."""
    rows = history[-RECENT:]
    share = total(rows, "verify/timeouts") / max(1.0, total(rows, "sampling/groups") * config.rollout.group_size)
    if share <= 0.1:
        return None
    return (
        f"the verification of {share:.0%} of the last responses timed out, which counts as wrong: raise verifier.timeout="
        f"{config.verifier.timeout:g} or, where the machine is overloaded, lower verifier.workers={config.verifier.workers}"
    )


def no_error_labels(history: Sequence[Row], config: Config) -> str | None:
    """EDAS leaves responses without an error label alone, so that with half of them it is mostly its base."""
    share = level(history, "response/unlabelled")
    if "edas" not in config.algorithm.estimator or len(history) > 1 or not share > 0:
        return None
    return (
        f"the verifier gives no error label for {share:.0%} of the wrong responses, and EDAS leaves those alone: a reward "
        "function can return a Verdict with a label"
    )


def one_error(history: Sequence[Row], config: Config) -> str | None:
    """The label that most groups share. Answers differ between problems, so that it is a few percent; in code, where labels are
    kinds of exceptions, half is common. So: nearly all, or half after a rise by a third of all. A tenth of the responses must
    be wrong: the rest of a solved task may well be of one kind."""
    rows, then = history[-START:], level(history[:START], "response/same_label")
    now = level(rows, "response/same_label")
    if len(history) < START or accuracy(rows) > 0.9 or not (now > 0.9 or (now > 0.5 and now > then + 0.33)):
        return None
    if unanswered(rows) > 0.5 * (1 - accuracy(rows)):
        return None  # no_answer says it better
    return (
        f"the wrong answers of all problems have one error label in {now:.0%} of the cases ({then:.0%} in the first steps): "
        "the policy gives one and the same answer to everything, or the verifier cannot tell errors apart, so that EDAS and "
        "other estimators by error class have nothing to work with; look at label in rollouts/, or set verifier.labeller"
    )


# ---- the engine -------------------------------------------------------------------------------------------------------------


def end_ignored(history: Sequence[Row], config: Config) -> str | None:
    """0: an engine that knows the end tokens never samples past one."""
    share = level(history[-1:], "response/past_end")
    if not share > 0:
        return None
    return (
        f"{share:.0%} of the responses go on after an end token: the engine does not stop there (padding taken for the end?), "
        "and what follows is trained on; compare eos_token_id in tokenizer_config.json and generation_config.json with the "
        "token that closes a turn of the chat template"
    )


def end_missing(history: Sequence[Row], config: Config) -> str | None:
    """0: a response that ended by itself has its end token."""
    share = level(history[-1:], "response/without_end")
    if not share > 0:
        return None
    return (
        f"{share:.0%} of the responses that ended by themselves lack their end token: it is cut off before training, so that "
        "the policy never learns to stop and responses grow; the engine must return the stop token's id"
    )


def same_responses(history: Sequence[Row], config: Config) -> str | None:
    """One different response in each group, while the policy still has entropy: 0.02 nats a token make a response of fifty
    tokens differ in most draws."""
    rows, n = history[-START:], config.rollout.group_size
    if len(rows) < START or n < 2 or not level(rows, "response/distinct") < 1.05 / n:
        return None
    entropy = level(history[:START], "policy/entropy")
    if not entropy * level(rows, "response/tokens") > 1:  # nats a response: e different ones on average
        return None
    return (
        f"the {n} responses of a group are all the same, though the policy's entropy is {entropy:.2g} nats a token: the engine "
        "gives them one seed, or samples greedily; the seed must differ from completion to completion"
    )


def logprob_gap(rows: Sequence[Row]) -> float:
    """The median gap between sampler and trainer log-probs, nats a token."""
    return level(rows, "policy/rollout_logprob_diff_mean")


def measured(history: Sequence[Row]) -> list[Row]:
    """The steps in which the gap was measured: not where a batch is empty or wholly of older versions."""
    return [row for row in history if "policy/rollout_logprob_diff_mean" in row]


def noise(config: Config) -> float:
    """The largest gap that rounding explains, nats a token: 0.0075 was measured in bfloat16, 1e-6 in float32."""
    return 0.02 if config.model.dtype == "bfloat16" or config.rollout.engine == "vllm" else 1e-3


def seen_enough(rows: Sequence[Row], config: Config) -> bool:
    """Whether the gap has been seen in enough steps, or is so large that this one is the run's last."""
    return len(rows) >= START or logprob_gap(rows[-1:]) > config.rollout.logprob_diff_stop


def wrong_temperature(history: Sequence[Row], config: Config) -> str | None:
    """A temperature stretches all log-probs alike, by 1 / temperature, from the first step on; other weights do not. An eighth:
    rounding leaves the spread within a hundredth. Where the sampler reports log-probs at the trainer's temperature, only the
    tokens tell: their surprise is the entropy on average. A half: that of a few steps varies by a tenth; dropped groups bias
    it, so that nearly all must have been kept."""
    rows: Sequence[Row] = measured(history)[:START]
    t = config.rollout.temperature
    if not seen_enough(rows, config):
        return None
    spread, gap = level(rows, "policy/rollout_spread"), logprob_gap(rows)
    if logprob_gap(rows[:1]) > noise(config) and not 7 / 8 < spread < 8 / 7:
        return (
            f"log-probs of the sampler are spread {spread:.2f} times as wide as the trainer's of the same tokens, from the "
            f"first step on (they differ by {gap:.2g} nats on average): it samples at a temperature of about {t / spread:.2g}, "
            f"the trainer computes at rollout.temperature={t:g}; both must use the same"
        )
    rows = history[-RECENT:]
    excess, kept = (
        level(rows, "policy/nll_excess"),
        total(rows, "sampling/batch_groups") / max(1.0, total(rows, "sampling/groups")),
    )
    if len(rows) == RECENT and abs(excess) > 0.5 and kept > 0.9 and logprob_gap(rows) < noise(config):
        return (
            f"sampled tokens are {abs(excess):.0%} {'more' if excess > 0 else 'less'} surprising to the trainer than its "
            "entropy says, though both report the same log-probs: the sampler draws at a "
            f"{'higher' if excess > 0 else 'lower'} temperature than rollout.temperature={t:g}, or from a cut distribution "
            "(top_p, top_k), and reports log-probs before that"
        )
    return None


def stale_weights(history: Sequence[Row], config: Config) -> str | None:
    """The gap grows with the distance from the first step, before which nothing had to be pushed. Five times: precision and
    falling entropy change it by less than two."""
    history = measured(history)
    base, now = logprob_gap(history[:1]), logprob_gap(history[-START:])
    if len(history) < 2 or not seen_enough(history, config) or not now > max(5 * base, noise(config)):
        return None
    return (
        f"log-probs of sampler and trainer differ by {now:.2g} nats a token, after {base:.1g} at the first step: the engine "
        "samples with old weights, or a push reached only a part of them; check the engine's sync, and that its prefix cache "
        "is dropped with the old weights"
    )


def other_weights(history: Sequence[Row], config: Config) -> str | None:
    """The run's own limit for a warning, from the first step on."""
    rows, limit = measured(history)[:START], config.rollout.logprob_diff_warn
    gap = min((logprob_gap([row]) for row in rows), default=nan)
    if not seen_enough(rows, config) or not gap > limit or wrong_temperature(rows, config):
        return None
    return (
        f"log-probs of sampler and trainer differ by {gap:.2g} nats a token from the first step on, more than "
        f"rollout.logprob_diff_warn={limit:g}: the engine holds another model or another precision; "
        "algorithm.rollout_is=truncate corrects for a small difference, rollout.engine=transformers has none"
    )


# ---- the policy -------------------------------------------------------------------------------------------------------------


def entropy_collapse(history: Sequence[Row], config: Config) -> str | None:
    """A policy that learns loses entropy as it becomes right, so a tenth of the responses must still be wrong. A quarter within
    25 steps, or a twentieth of the start at any time: sound runs of the embedded tasks halve it in 40 to 100 steps."""
    if len(history) < 2 * START or accuracy(history[-START:]) > 0.9:
        return None
    now = level(history[-START:], "policy/entropy")
    recently, start = (level(rows, "policy/entropy") for rows in (history[-25:][:START], history[:START]))
    if not (now < 0.25 * recently or now < 0.05 * start):
        return None
    fall = f"from {recently:.2g} to {now:.2g} nats a token within {min(25, len(history))} steps"
    if not now < 0.25 * recently:
        fall = f"to {now:.2g} nats a token, from {start:.2g} at the start"
    return (
        f"the policy's entropy fell {fall}, while {1 - accuracy(history[-START:]):.0%} of the responses are wrong: it samples "
        "the same responses again and again; lower optimizer.lr, raise algorithm.clip_high or algorithm.entropy_coef, or use "
        "an estimator that keeps diversity (+edas, +entropy)"
    )


def learning_rate(history: Sequence[Row], config: Config) -> str | None:
    """A KL of 0.05 nats a token within one batch is five times what trust-region methods aim at, and sound runs stay below
    0.005; half a nat breaks a policy in one step, be it the first. Or: half of the accuracy of the best of the last 100 steps
    is lost, by more than chance (four standard errors)."""
    rows, lr = history[-START:], config.optimizer.lr
    remedy = f"optimizer.lr={lr:g} is too high (or optimizer.max_grad_norm, algorithm.epochs); start again with a third of it"
    broken = [row for row in rows[-1:] if row["policy/approx_kl"] > 0.5]
    if broken or len(rows) == START:
        updated = broken or [row for row in rows if row["optimizer/steps"]]  # a skipped update moves nothing and clips nothing
        if (moved := level(updated, "policy/approx_kl")) > 0.05:
            return (
                f"the policy moves by {moved:.2g} nats a token within one batch, and "
                f"{level(updated, 'policy/clip_high', 'policy/clip_low'):.0%} of the tokens are clipped: {remedy}"
            )
    if len(rows) < START:
        return None
    lately = history[-100:]
    windows = [lately[i : i + START] for i in range(0, len(lately) - 2 * START + 1, START)]
    best = max(windows, key=accuracy, default=rows)
    now, then = accuracy(rows), accuracy(best)
    if now < 0.5 * then and then - now > 4 * accuracy_error(best, rows):
        return (
            f"accuracy fell from {then:.1%} around step {best[0]['step']:.0f} to {now:.1%}: {remedy}, or the verifier has "
            "begun to refuse (look at the newest of rollouts/)"
        )
    return None


def not_finite(history: Sequence[Row], config: Config) -> str | None:
    """Any."""
    skipped = total(history[-1:], "optimizer/nonfinite")
    if not skipped:
        return None
    return (
        f"the loss or gradient of {skipped:.0f} optimizer steps was not finite; they were skipped: where that repeats, lower "
        "optimizer.lr or optimizer.max_grad_norm"
    )


def no_gradient(history: Sequence[Row], config: Config) -> str | None:
    """Exactly 0 in three steps, while optimizer steps were made and groups had signal."""
    rows = history[-START:]
    if len(rows) < START or any(row["optimizer/grad_norm"] or not row["optimizer/steps"] for row in rows):
        return None
    if not level(rows, "batch/informative") > 0:
        return None
    return (
        f"the gradient is exactly 0, though {level(rows, 'batch/informative'):.0%} of the groups have rewards that differ: "
        "every advantage or token weight is 0; look at advantage in rollouts/, at the estimator and at algorithm.mask_truncated"
    )


def truncation(history: Sequence[Row], config: Config) -> str | None:
    """A quarter: as many responses are judged wrong for their length alone. Past an end token, that is the cause."""
    rows = history[-RECENT:]
    cut = level(rows, "response/truncated")
    if len(rows) < RECENT or not cut > 0.25 or level(rows, "response/past_end") > 0:
        return None
    return (
        f"{cut:.0%} of the responses are cut at rollout.max_response_tokens={config.rollout.max_response_tokens} and judged by "
        "what is there: raise it, or set algorithm.overlong_buffer or algorithm.mask_truncated"
    )


def length_growth(history: Sequence[Row], config: Config) -> str | None:
    """Half as long again, and accuracy has not risen by two standard errors: responses that grow because that helps are no
    fault."""
    if (parts := ends(history)) is None:
        return None
    then, now = (level(rows, "response/tokens") for rows in parts)
    gain = accuracy(parts[1]) - accuracy(parts[0])
    if not (now > 1.5 * then and gain < max(0.02, 2 * accuracy_error(*parts))):
        return None
    return (
        f"responses grew from {then:.4g} to {now:.4g} tokens, while accuracy went from {accuracy(parts[0]):.1%} to "
        f"{accuracy(parts[1]):.1%}: length is rewarded without being of use; look at verifier.rewards and "
        f"algorithm.loss_agg_mode={config.algorithm.loss_agg_mode}, or set algorithm.overlong_buffer"
    )


# ---- problems and rewards ---------------------------------------------------------------------------------------------------


def repeated_prompts(history: Sequence[Row], config: Config) -> str | None:
    """1% of the training prompts, or 5% of those of a step: readers and the order of prompts leave no repetition."""
    if (share := level(history[-1:], "data/repeated_prompts")) > 0.01:
        return (
            f"{share:.0%} of the training prompts equal an earlier one, token by token: they count several times, and may be "
            "among the held-out ones too; remove repetitions from the data, and check that data.template contains {problem}"
        )
    if (share := level(history[-START:], "sampling/repeated_prompts")) > 0.05 and len(history) >= START:
        return (
            f"{share:.0%} of the groups of a step are for a prompt that the step had sampled already: the order of prompts is "
            "broken, or ranks draw the same; each prompt must be drawn once in a pass over the data"
        )
    return None


def reward_hacking(history: Sequence[Row], config: Config) -> str | None:
    """Reward does not fall while accuracy does, by more than chance (three standard errors): what is paid besides being right
    outweighs it."""
    if (parts := ends(history)) is None:
        return None
    then, now = (level(rows, "reward/mean") for rows in parts)
    fall = accuracy(parts[0]) - accuracy(parts[1])
    if now < then or not fall > 3 * accuracy_error(*parts):
        return None
    terms = {key: level(parts[1], key) - level(parts[0], key) for key in history[-1] if key.startswith("reward/terms/")}
    most = max(terms, key=terms.__getitem__, default="")
    named = f" (its part {most.removeprefix('reward/terms/')} by {terms[most]:+.2g})" if most else ""
    return (
        f"reward went from {then:.3g} to {now:.3g}{named}, while accuracy fell from {accuracy(parts[0]):.1%} to "
        f"{accuracy(parts[1]):.1%}: the policy is paid for something other than being right; lower the weights of "
        "verifier.rewards, or give them to right responses only"
    )


def no_signal(history: Sequence[Row], config: Config) -> str | None:
    """A quarter of the groups: then four must be sampled for one that teaches. Where accuracy has risen by a fifth, problems
    were solved: that costs signal too, and is what the run is for."""
    rows = history[-RECENT:]
    useful = level(rows, "groups/informative")
    if len(rows) < RECENT or not useful < 0.25 or accuracy(rows) > accuracy(history[:START]) + 0.2:
        return None
    easy = accuracy(rows) > 0.5
    why = (
        "most responses are right: take harder problems" if easy else "most are wrong: take easier problems, or a better model"
    )
    return (
        f"{1 - useful:.0%} of the groups carry no signal, their responses being all right or all wrong ({accuracy(rows):.0%} "
        f"are right); {why}, or raise rollout.group_size={config.rollout.group_size}"
    )


def small_batches(history: Sequence[Row], config: Config) -> str | None:
    """An empty batch, or three of five that are not full: a single one of these is chance."""
    rows, wanted = history[-RECENT:], config.rollout.prompts
    now, small = rows[-1], sum(row["sampling/batch_groups"] < wanted for row in rows)
    if now["sampling/batch_groups"] and small < 3:
        return None
    return (
        f"the batch has {now['sampling/batch_groups']:.0f} of {wanted} groups"
        + (f", and {small} of the last {len(rows)} batches are not full" if small > 1 else "")
        + f": of {now['sampling/groups']:.0f} sampled, {now['groups/informative']:.0%} carry signal"
        + ("" if now["sampling/batch_groups"] else ", and the update was skipped")
        + "; raise rollout.group_size or rollout.max_generation_batches="
        f"{config.rollout.max_generation_batches}"
    )


RULES: dict[str, Rule] = {
    "verifier accepts everything": accepts_everything,
    "verifier accepts nothing": accepts_nothing,
    "no answer found": no_answer,
    "verifier fails": verifier_errors,
    "verifier times out": timeouts,
    "no error labels": no_error_labels,
    "one error dominates": one_error,
    "end token ignored": end_ignored,
    "end token missing": end_missing,
    "same responses": same_responses,
    "wrong temperature": wrong_temperature,
    "stale weights": stale_weights,
    "other weights": other_weights,
    "entropy collapse": entropy_collapse,
    "learning rate too high": learning_rate,
    "not finite": not_finite,
    "no gradient": no_gradient,
    "truncation": truncation,
    "length growth": length_growth,
    "repeated prompts": repeated_prompts,
    "reward hacking": reward_hacking,
    "no signal": no_signal,
    "small batches": small_batches,
}
