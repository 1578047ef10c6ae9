"""What the benchmarks share: models with random weights, and where numbers go."""

import argparse
import datetime
import importlib.metadata
import json
import os
import platform
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
# hidden, layers, heads, key-value heads, head size, MLP, vocabulary (None: the embedded model's), tied: Qwen3's, and small ones
SHAPES = {
    "1m": (128, 4, 4, 2, 32, 512, None, True),
    "20m": (128, 4, 4, 2, 32, 512, 151_936, True),
    "0.6b": (1024, 28, 16, 8, 128, 3072, 151_936, True),
    "1.7b": (2048, 28, 16, 8, 128, 6144, 151_936, True),
    "4b": (2560, 36, 32, 8, 128, 9728, 151_936, True),
    "8b": (4096, 36, 32, 8, 128, 12_288, 151_936, False),
}  # fmt: skip

SIZES = ("hidden_size", "num_hidden_layers", "intermediate_size", "vocab_size")


def tokenizer_of(vocabulary: int | None) -> Any:
    """The embedded model's tokenizer, with words w47, w48, ... up to `vocabulary` tokens if it is given: no id is beyond it, so
    all of a model's are sampled and scored, and random weights choose the one end token about once in `vocabulary` tokens."""
    from tokenizers import Tokenizer

    from minirl.tiny import make as tiny

    tokenizer = tiny.tokenizer()
    if vocabulary is not None:
        state = json.loads(tokenizer.backend_tokenizer.to_str())
        state["model"]["vocab"] |= {f"w{i}": i for i in range(len(tokenizer), vocabulary)}
        tokenizer = type(tokenizer)(
            tokenizer_object=Tokenizer.from_str(json.dumps(state)), pad_token=tokenizer.pad_token,
            eos_token=tokenizer.eos_token, chat_template=tokenizer.chat_template,
        )  # fmt: skip
    return tokenizer


def qwen3_config(shape: str, vocabulary: int | None = None) -> Any:
    """The config of that shape. vocabulary: where the shape has none of its own."""
    from transformers import Qwen3Config

    hidden, layers, heads, kv_heads, head_dim, mlp, own, tied = SHAPES[shape]
    return Qwen3Config(
        hidden_size=hidden, num_hidden_layers=layers, num_attention_heads=heads, num_key_value_heads=kv_heads,
        head_dim=head_dim, intermediate_size=mlp, vocab_size=own or vocabulary, tie_word_embeddings=tied,
        max_position_embeddings=40_960,
    )  # fmt: skip


def random_model(folder: Path, shape: str, dtype: str = "bfloat16") -> Path:
    """A Qwen3 of that shape with random weights and a tokenizer for its whole vocabulary, in `folder`, where the same one stays
    if it is there; returns it."""
    import torch
    from transformers import Qwen3ForCausalLM

    tokenizer = tokenizer_of(SHAPES[shape][6])
    config = qwen3_config(shape, len(tokenizer))
    if (folder / "tokenizer_config.json").exists():  # written last
        known = json.loads((folder / "config.json").read_text())
        if known["dtype"] == dtype and all(known[key] == getattr(config, key) for key in SIZES):
            return folder
    torch.manual_seed(0)
    config.update({"eos_token_id": tokenizer.eos_token_id, "pad_token_id": tokenizer.pad_token_id, "bos_token_id": None})
    Qwen3ForCausalLM(config).to(getattr(torch, dtype)).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def environment(**changes: str) -> dict[str, str]:
    """Of a child process: this checkout before whatever the caller's PYTHONPATH has, one thread unless the caller says more."""
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    return {"OMP_NUM_THREADS": "1", **os.environ, "PYTHONPATH": path, **changes}


def versions() -> dict[str, str]:
    """Of the packages that the numbers depend on, as this interpreter has them."""
    found = {}
    for name in ("torch", "transformers", "trl", "vllm", "deepspeed", "accelerate"):
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def machine() -> dict[str, Any]:
    """What the numbers were measured on."""
    import torch

    processor = platform.processor() or platform.machine()
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        names = [line.split(":")[1].strip() for line in cpuinfo.read_text().splitlines() if line.startswith("model name")]
        processor = names[0] if names else processor
    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else None
    return {
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"), "processor": processor,
        "cores": os.cpu_count(), "load": round(os.getloadavg()[0], 1), "gpu": gpu, "python": platform.python_version(),
        "versions": versions(),
    }  # fmt: skip


def result_options(parser: argparse.ArgumentParser) -> None:
    """Adds the options that `finish` takes."""
    parser.add_argument("--json", action="store_true", help="print one JSON line instead of a table")
    parser.add_argument("--results", help="file for one more JSON line; else benchmarks/results.jsonl")


def finish(benchmark: str, rows: list[dict[str, Any]], results: str | None, as_json: bool, **more: Any) -> None:
    """Appends one JSON line to the file `results`, benchmarks/results.jsonl if none is named, and prints it if `as_json`.

    more: what else the line says of the run.
    """
    line = json.dumps({"benchmark": benchmark, **machine(), **more, "rows": rows})
    with Path(results or ROOT / "benchmarks" / "results.jsonl").open("a", encoding="utf-8") as file:
        file.write(line + "\n")
    if as_json:
        print(line)


class Rows:
    """Rows of one benchmark in a file of JSON lines, each written when it is measured, with the tables of the whole file beside
    it (.md). A rerun skips what is there: see `missing`."""

    def __init__(self, benchmark: str, file: str | Path) -> None:
        self.benchmark, self.file = benchmark, Path(file)
        self.machine: dict[str, Any] | None = None

    def lines(self) -> list[dict[str, Any]]:
        """All lines of the file, of other benchmarks too."""
        text = self.file.read_text(encoding="utf-8") if self.file.exists() else ""
        return [json.loads(line) for line in text.splitlines() if line.endswith("}")]  # not one cut by a kill

    def rows(self) -> list[dict[str, Any]]:
        """Those of this benchmark so far."""
        return [row for line in self.lines() if line["benchmark"] == self.benchmark for row in line["rows"]]

    def missing(self, settings: dict[str, Any]) -> bool:
        """Whether no row has these settings."""
        return not any(all(row.get(key) == value for key, value in settings.items()) for row in self.rows())

    def add(self, row: dict[str, Any], **more: Any) -> None:
        """Appends a row, and writes the tables. more: what else its line says."""
        self.machine = self.machine or machine()
        cut = self.file.exists() and not self.file.read_bytes().endswith(b"\n")
        line = json.dumps({"benchmark": self.benchmark, **self.machine, **more, "rows": [row]})
        with self.file.open("a", encoding="utf-8") as file:
            file.write("\n" * cut + line + "\n")
        self.file.with_suffix(".md").write_text(markdown(self.lines()), encoding="utf-8")


def markdown(lines: list[dict[str, Any]]) -> str:
    """The rows of all lines as Markdown, a table for each benchmark and set of columns."""
    tables: dict[tuple[str, tuple[str, ...]], list[dict[str, Any]]] = {}
    for line in lines:
        for row in line["rows"]:
            tables.setdefault((line["benchmark"], tuple(row)), []).append(row)
    parts = []
    for (benchmark, keys), rows in tables.items():
        shown = [[f"{v:,.4g}" if isinstance(v, float) else str(v) for v in row.values()] for row in rows]
        parts += [f"## {benchmark}\n", *(f"| {' | '.join(cells)} |" for cells in (keys, ["---"] * len(keys), *shown)), ""]
    machines = sorted({f"{line['date'][:10]}, {line['gpu'] or line['processor']}, {line['versions']}" for line in lines})
    return "\n".join([*parts, *machines, ""])


def table(rows: list[dict[str, Any]]) -> str:
    """Rows of the same keys as aligned text."""
    shown = [{k: f"{v:,.3g}" if isinstance(v, float) else str(v) for k, v in row.items()} for row in rows]
    widths = {key: max(len(key), *(len(row[key]) for row in shown)) for key in shown[0]}
    lines = [" ".join(key.rjust(width) for key, width in widths.items())]
    lines += [" ".join(row[key].rjust(width) for key, width in widths.items()) for row in shown]
    return "\n".join(lines)
