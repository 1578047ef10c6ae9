"""The embedded models: their careless teachers, the warm start, and that the package carries what the command makes."""

import random
import re
import sys
from collections import Counter

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from minirl.config.options import EMBEDDED_TASKS
from minirl.data import arithmetic, rules
from minirl.tiny import make


def way(letter, digits, response):
    """Which procedure a response follows, by its first step and operations; None: none."""
    for procedure in range(7):
        steps, result = rules.work(procedure, digits)
        if response.startswith(steps.removesuffix(f"{result};")):
            return procedure
    return None


def test_a_careless_response_is_a_whole_way_by_the_rule_s_chances():
    rule, digits, rng, n = rules.RULES["W"], (3, 8, 5), random.Random(1), 20_000
    drawn = [make.careless_way("W385=", rng) for _ in range(n)]
    for response in drawn:
        assert re.fullmatch(r"(\d+[-+*]\d+=-?\d+;){2}\\boxed\{(-?\d+)\}", response)
        assert re.search(r"=(-?\d+);\\boxed", response)[1] == re.search(r"\{(.+)\}", response)[1], "the box repeats the result"
    ways = Counter(way("W", digits, response) for response in drawn)
    right, first, second, *_ = rule.procedures
    # W: right .409, dominant .828; three standard errors of a share are below .011
    assert ways[right] / n == pytest.approx(0.409, abs=0.011)
    assert ways[first] / n == pytest.approx(0.591 * 0.828, abs=0.011)
    assert ways[second] / n == pytest.approx(0.591 * 0.828 * 0.172, abs=0.009)
    assert ways[None] == 0
    slips = sum(rules.work(way("W", digits, response), digits)[0] not in response for response in drawn)
    assert slips / n == pytest.approx(0.03, abs=0.004)


def test_a_careless_product_is_right_half_the_time_and_its_commonest_error_is_the_lost_carry():
    rng, n = random.Random(2), 10_000
    drawn = Counter(make.careless("1234", rng) for _ in range(n))
    assert drawn["1234"] / n == pytest.approx(0.5, abs=0.015)
    # A lost carry, or the third of four digits off by -1, one of 16 slips
    assert drawn["1224"] / n == pytest.approx(0.15 + 0.35 / 16, abs=0.011)
    assert len(drawn) == 1 + 4 * 4


def test_a_few_steps_of_the_warm_start_lower_the_loss():
    def last_loss(steps):
        train, rng, net = rules.problems("train"), random.Random(0), make.model(hidden=32, layers=1)
        draw = lambda: [(p.prompt, make.careless_way(p.prompt, rng)) for p in rng.choices(train, k=16)]  # noqa: E731
        return make.warm_start(net, draw, steps, lr=1e-2, ramp=0.3)

    assert last_loss(1) == pytest.approx(torch.tensor(float(len(make.tokenizer()))).log().item(), abs=0.3), "knows nothing"
    assert last_loss(40) < 2.5


@pytest.mark.parametrize("task", EMBEDDED_TASKS)
def test_the_package_carries_what_the_command_makes(task):
    folder = make.FOLDERS[f"embedded-{task}"]
    net, tok = AutoModelForCausalLM.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
    fresh, shapes = make.model(), lambda model: {name: p.shape for name, p in model.named_parameters()}
    assert tok.get_vocab().items() >= {token: i for i, token in enumerate([*make.SPECIAL, "\\boxed{"])}.items()
    assert (tok.eos_token_id, tok.pad_token_id) == (net.config.eos_token_id, net.config.pad_token_id)
    if task == "rules":
        assert tok.get_vocab() == make.tokenizer().get_vocab()
        assert shapes(net) == shapes(fresh)


def test_the_embedded_model_of_no_task_is_the_default_one_s():
    assert make.FOLDERS["embedded"] == make.FOLDERS[f"embedded-{EMBEDDED_TASKS[0]}"]


@pytest.mark.parametrize(
    ("task", "draw", "nats"),
    [
        # About the teachers' own entropy a token, to which no model can come below; a model that knows nothing has 3.1 to 3.8
        ("rules", lambda p, rng: make.careless_way(p.prompt, rng), 0.15),
        ("arithmetic", lambda p, rng: f"\\boxed{{{make.careless(p.answer, rng)}}}", 0.7),
    ],
)
def test_the_shipped_model_speaks_as_its_teacher_on_problems_it_never_saw(task, draw, nats):
    folder = make.FOLDERS[f"embedded-{task}"]
    net, tok, rng = AutoModelForCausalLM.from_pretrained(folder).eval(), AutoTokenizer.from_pretrained(folder), random.Random(5)
    losses, module = [], {"rules": rules, "arithmetic": arithmetic}[task]
    for p in module.problems("test")[:64]:
        start = f"<user>{p.prompt}<assistant>"
        ids = torch.tensor([tok(f"{start}{draw(p, rng)}<eos>")["input_ids"]])
        labels = ids.clone()
        labels[:, : len(tok(start)["input_ids"])] = -100
        with torch.no_grad():
            losses.append(net(input_ids=ids, labels=labels).loss.item())
    assert sum(losses) / len(losses) < nats


def test_the_command_names_its_tasks(monkeypatch):
    monkeypatch.setattr(sys, "argv", ["make", "products"])
    with pytest.raises(SystemExit, match=r"rules\|arithmetic"):
        make.main()
