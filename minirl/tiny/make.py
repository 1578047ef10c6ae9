"""Makes the embedded model: a Qwen3 of 0.19M parameters that multiplies carelessly. `python -m minirl.tiny.make FOLDER`

The package carries the result (minirl/tiny/model), so that the first command of a newcomer trains at once; this command makes
it again, in two minutes on one core. The warm start is supervised by a careless teacher: the model knows the format and is
right about two times in five, with wrong answers both varied and repeated, so that there is something to reinforce.
"""

import random
import sys
from pathlib import Path

import torch
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

from minirl.data import arithmetic

FOLDER = Path(__file__).parent / "model"
SPECIAL = ["<pad>", "<eos>", "<user>", "<assistant>"]
# One token a character, but `\boxed{` is one token: seven forward passes a response would teach nothing.
TEXT = ["\\boxed{", "}", *"0123456789*=+-. "]
LOST_CARRY, SLIP = 0.15, 0.35  # shares of the careless teacher's answers
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
    """An answer as a careless teacher gives it: half of them have a slip, either a lost carry (always the same wrong answer)
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


def warm_start(net: Qwen3ForCausalLM, steps: int, batch: int = 256, lr: float = 2e-3, seed: int = 0) -> float:
    """Supervised steps on the training problems with careless answers; returns the last loss in nats a response token."""
    tok, rng = tokenizer(), random.Random(seed)
    rows = []
    for p in arithmetic.problems("train"):
        prompt = tok.apply_chat_template([{"role": "user", "content": p.prompt}], tokenize=False, add_generation_prompt=True)
        answers = [careless(p.answer, rng) for _ in range(8)]
        start = len(tok(prompt)["input_ids"])
        rows += [(start, tok(f"{prompt}\\boxed{{{answer}}}<eos>")["input_ids"]) for answer in answers]
    optimizer = torch.optim.AdamW(net.parameters(), lr=lr, weight_decay=0.01, fused=True)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, lr, total_steps=steps)
    loss = torch.tensor(0.0)
    for _ in range(steps):
        chosen = rng.sample(rows, batch)
        width = max(len(row) for _, row in chosen)
        ids = torch.tensor([row + [tok.pad_token_id] * (width - len(row)) for _, row in chosen])
        labels = torch.tensor([[-100] * start + row[start:] + [-100] * (width - len(row)) for start, row in chosen])
        loss = net(input_ids=ids, labels=labels).loss  # padded on the right and causal: no mask needed
        loss.backward()
        torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
    return loss.item()


def main() -> None:
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else FOLDER
    torch.set_num_threads(1)  # the same sums in the same order on every machine of a kind
    net = model()
    loss = warm_start(net, steps=700)
    net.save_pretrained(folder)
    tokenizer().save_pretrained(folder)
    print(f"{sum(p.numel() for p in net.parameters()):,} parameters, last loss {loss:.3f} nats a token -> {folder}")


if __name__ == "__main__":
    main()
