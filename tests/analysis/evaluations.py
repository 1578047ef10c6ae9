"""Makes evaluation folders as eval.py writes them."""

import json


def rows(model, problems, benchmark="tests", responses=None):
    """Rows of samples.jsonl. problems: for each problem its samples: "right", "error", or the class of a wrong one."""
    for index, samples in enumerate(problems):
        for number, what in enumerate(samples):
            status = what if what in ("right", "error") else "wrong"
            yield {
                "model": model, "benchmark": benchmark, "problem": f"p{index}", "index": index, "sample": number,
                "prompt": f"question {index}", "gold": f"g{index}",
                "response": responses[index][number] if responses else f"so it is \\boxed{{{what}}}",
                "status": status, "label": what if status == "wrong" else "", "key": None if status == "error" else what,
                "tokens": 10, "finish": "stop", "detail": "",
            }  # fmt: skip


def write(folder, *made):
    """A folder with samples.jsonl."""
    folder.mkdir(parents=True, exist_ok=True)
    lines = [json.dumps(row) + "\n" for part in made for row in part]
    (folder / "samples.jsonl").write_text("".join(lines), encoding="utf-8")
    return str(folder)
