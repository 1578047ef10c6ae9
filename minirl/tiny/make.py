"""Makes the embedded models, Qwen3s of 0.19M parameters: `python -m minirl.tiny.make rules` or `arithmetic`, and a folder.

The package carries the results (minirl/tiny/rules, minirl/tiny/arithmetic), so that the first command of a newcomer trains at
once; this command makes them again, on one core in 15 and 2 minutes. The warm start is supervised by a careless teacher: the
model knows the format and is sometimes right, with wrong answers both varied and repeated, so that there is something to
reinforce. Of the arithmetic task two answers in five are right, of the rules one in six.
"""

import random
import sys
from collections.abc import Callable
from pathlib import Path

import torch
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

from minirl.config.options import EMBEDDED_TASKS
from minirl.data import arithmetic, rules

# By model.path; "embedded" alone, where no task says which, is the default task's.
FOLDERS = {f"embedded-{task}": Path(__file__).parent / task for task in EMBEDDED_TASKS}
FOLDERS["embedded"] = FOLDERS[f"embedded-{EMBEDDED_TASKS[0]}"]
SPECIAL = ["<pad>", "<eos>", "<user>", "<assistant>"]
# One token a character, but `\boxed{` is one token: seven forward passes a response would teach nothing.
TEXT = ["\\boxed{", "}", *"0123456789*=+-. ;", *rules.LETTERS]
LOST_CARRY, SLIP = 0.15, 0.35  # arithmetic: shares of the careless teacher's answers
RULES_SLIP = 0.03  # rules: share of the careless teacher's last steps that are off by a little
CHAT_TEMPLATE = (
    "{% for message in messages %}<{{ message.role }}>{{ message.content }}{% if message.role == 'assistant' %}<eos>{% endif %}"
    "{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}"
)


def tokenizer() -> PreTrainedTokenizerFast:
    """The character tokenizer with its chat template."""
    vocabulary = {token: index for index, token in enumerate([*SPECIAL, *TEXT])}
    tok = Tokenizer(models.WordLevel(vocabulary, unk_token="<pad>"))
    tok.pre_tokenizer = pre_tokenizers.Split(Regex(r"<[a-z]+>|\\boxed\{|[\s\S]"), "isolated")
    tok.decoder = decoders.Fuse()
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tok, pad_token="<pad>", eos_token="<eos>", additional_special_tokens=SPECIAL[2:]
    )
    fast.chat_template = CHAT_TEMPLATE
    return fast


def model(hidden: int = 64, layers: int = 3, seed: int = 0) -> Qwen3ForCausalLM:
    """A freshly initialised Qwen3 with tied embeddings. Heads of 32: vLLM's attention on CPUs has no smaller ones."""
    torch.manual_seed(seed)
    tok = tokenizer()
    return Qwen3ForCausalLM(
        Qwen3Config(
            hidden_size=hidden, num_hidden_layers=layers, num_attention_heads=4, num_key_value_heads=2, head_dim=32,
            intermediate_size=3 * hidden, vocab_size=len(tok), tie_word_embeddings=True, max_position_embeddings=128,
            eos_token_id=tok.eos_token_id, pad_token_id=tok.pad_token_id, bos_token_id=None,
        )
    )  # fmt: skip


def careless(answer: str, rng: random.Random) -> str:
    """A product as a careless teacher gives it: half of them have a slip, either a lost carry (always the same wrong answer)
    or one digit that is off by one or two (many different ones)."""
    kind = rng.random()
    if kind < LOST_CARRY:
        return str(int(answer) - 10)
    if kind < LOST_CARRY + SLIP:
        digits = list(answer)
        place = rng.randrange(len(digits))
        digits[place] = str((int(digits[place]) + rng.choice([-2, -1, 1, 2])) % 10)
        return "".join(digits)
    return answer


def careless_way(prompt: str, rng: random.Random) -> str:
    """A response to a problem of rules as a careless teacher gives it: a procedure by the rule's chances, rarely a slip."""
    rule, digits = rules.RULES[prompt[0]], tuple(int(digit) for digit in prompt[1:4])
    shares = [rule.dominant * (1 - rule.dominant) ** i for i in range(len(rule.procedures) - 1)]
    procedure = rule.procedures[0] if rng.random() < rule.right else rng.choices(rule.procedures[1:], shares)[0]
    steps, result = rules.work(procedure, digits)
    if rng.random() < RULES_SLIP:
        slipped = result + rng.choice([-10, -3, -2, -1, 1, 2, 3, 10])
        steps, result = f"{steps.removesuffix(f'{result};')}{slipped};", slipped
    return f"{steps}\\boxed{{{result}}}"


def warm_start(net: Qwen3ForCausalLM, draw: Callable[[], list[tuple[str, str]]], steps: int, lr: float, ramp: float) -> float:
    """Supervised steps on the (prompt, response) pairs that `draw` gives for each; returns the last loss in nats a token.

    ramp: share of the steps over which the learning rate grows to `lr`; after it, it falls to 0.
    """
    tok = tokenizer()
    optimizer = torch.optim.AdamW(net.parameters(), lr=lr, weight_decay=0.01, fused=True)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, lr, total_steps=steps, pct_start=ramp)
    loss = torch.tensor(0.0)
    for step in range(steps):
        rows = []
        for prompt, response in draw():
            start = f"<user>{prompt}<assistant>"
            rows.append((len(tok(start)["input_ids"]), tok(f"{start}{response}<eos>")["input_ids"]))
        width = max(len(row) for _, row in rows)
        ids = torch.tensor([row + [tok.pad_token_id] * (width - len(row)) for _, row in rows])
        labels = torch.tensor([[-100] * start + row[start:] + [-100] * (width - len(row)) for start, row in rows])
        loss = net(input_ids=ids, labels=labels).loss  # padded on the right and causal: no mask needed
        loss.backward()
        torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        if step % 100 == 0:
            print(f"step {step} of {steps}: {loss.item():.3f} nats a token", flush=True)
    return loss.item()


def warm_rules(seed: int = 3) -> tuple[Qwen3ForCausalLM, float]:
    """The model of the rules task, taught 1,600 x 192 fresh responses, and its last loss."""
    train, rng, net = rules.problems("train"), random.Random(seed), model()

    def draw() -> list[tuple[str, str]]:
        return [(p.prompt, careless_way(p.prompt, rng)) for p in rng.choices(train, k=192)]

    return net, warm_start(net, draw, steps=1600, lr=3e-3, ramp=0.03)


def warm_arithmetic(seed: int = 0) -> tuple[Qwen3ForCausalLM, float]:
    """The model of the arithmetic task, taught 8 careless answers a problem, 700 x 256 in all, and its last loss."""
    rng, net = random.Random(seed), model()
    rows = [(p.prompt, f"\\boxed{{{careless(p.answer, rng)}}}") for p in arithmetic.problems("train") for _ in range(8)]
    return net, warm_start(net, lambda: rng.sample(rows, 256), steps=700, lr=2e-3, ramp=0.3)


def main() -> None:
    warm, task = {"rules": warm_rules, "arithmetic": warm_arithmetic}, sys.argv[1] if len(sys.argv) > 1 else ""
    if task not in warm:
        sys.exit("usage: python -m minirl.tiny.make rules|arithmetic [FOLDER]")
    folder = Path(sys.argv[2]) if len(sys.argv) > 2 else FOLDERS[f"embedded-{task}"]
    torch.set_num_threads(1)  # the same sums in the same order on every machine of a kind
    net, loss = warm[task]()
    net.save_pretrained(folder)
    tokenizer().save_pretrained(folder)
    print(f"{sum(p.numel() for p in net.parameters()):,} parameters, last loss {loss:.3f} nats a token -> {folder}")


if __name__ == "__main__":
    main()
