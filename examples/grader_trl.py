"""The grader as a reward function of TRL's GRPOTrainer; `accuracy` is all that is needed.

    pip install trl && python examples/grader_trl.py        # two steps of the embedded model; a CPU will do

The data set's column `answer` has the gold answers, and TRL hands it to the function.
"""

import tempfile
from typing import Any

from minirl.verify import ERROR, RIGHT, Problem, load_verifier

verify = load_verifier("math")


def accuracy(completions: list[Any], answer: list[str], **columns: Any) -> list[float | None]:
    """1 for a right completion and 0 for a wrong one; None, which TRL leaves out, where the grader itself failed.

    completions: texts, or lists of messages, of which the last one is judged; answer: the gold answer of each.
    """
    texts = [c if isinstance(c, str) else c[-1]["content"] for c in completions]
    verdicts = [verify(Problem("", "", gold), text) for text, gold in zip(texts, answer, strict=True)]
    return [None if v.status == ERROR else float(v.status == RIGHT) for v in verdicts]


def main() -> None:
    """Two steps of GRPO on the rules task, and the mean reward of each."""
    from datasets import Dataset
    from trl import GRPOConfig, GRPOTrainer

    from minirl.data import rules
    from minirl.tiny.make import FOLDERS

    rows = [{"prompt": [{"role": "user", "content": p.prompt}], "answer": p.answer} for p in rules.problems("train")[:64]]
    with tempfile.TemporaryDirectory() as folder:
        options = GRPOConfig(
            output_dir=folder, max_steps=2, per_device_train_batch_size=32, num_generations=8, max_completion_length=24,
            learning_rate=4e-4, logging_steps=1, save_strategy="no", report_to="none", bf16=False, use_cpu=True,
        )  # fmt: skip
        trainer = GRPOTrainer(str(FOLDERS["embedded"]), accuracy, options, Dataset.from_list(rows))
        trainer.train()
    for row in trainer.state.log_history:
        if "reward" in row:
            print(f"step {row['step']}: reward {row['reward']:.3f}")


if __name__ == "__main__":
    main()
