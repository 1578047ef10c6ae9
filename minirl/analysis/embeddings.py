"""Can an embedding tell wrong answers apart: cosine similarity of pairs and of (right, wrong, wrong) triples."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from minirl.analysis.output import Table, number
from minirl.analysis.samples import Key, Problems, without_prose
from minirl.evaluation.metrics import Floats, mean_intervals
from minirl.evaluation.report import percent
from minirl.utils.errors import ConfigError
from minirl.utils.hub import hub_is_offline
from minirl.verify.types import RIGHT, WRONG

COMPARED = {
    "same": "two wrong, same class",
    "different": "two wrong, different classes",
    "right": "right and wrong",
    "triple": "right, wrong, other wrong",
}
LEVELS = (0.99, 0.98, 0.95)  # cosines above which the paper counts triples
MODULES = ("Transformer", "Pooling", "Normalize")
POOLINGS = ("mean_tokens", "cls_token", "lasttoken")


class Embedder:
    """A sentence-embedding model: a Hugging Face folder or name, pooled as its files ask, else by the mean."""

    def __init__(self, name: str) -> None:
        import torch
        from transformers import AutoModel, AutoTokenizer
        from transformers.utils import cached_file

        def part(file: str, missing: Any) -> Any:
            path = cached_file(name, file, _raise_exceptions_for_missing_entries=False)
            return json.loads(Path(path).read_text(encoding="utf-8")) if path else missing

        if not Path(name).exists():
            hub_is_offline()  # asked once, here: the clients would try for half a minute at every file
        try:
            # Code in a model's folder is never run; transformers would ask, and take any "yes" on standard input.
            self.tokenizer = AutoTokenizer.from_pretrained(name, trust_remote_code=False)
            model = AutoModel.from_pretrained(name, trust_remote_code=False)
            self.model = model.to("cuda" if torch.cuda.is_available() else "cpu").eval()
            pipeline = part("modules.json", [])
            pooled = [m.get("path") for m in pipeline if m["type"].endswith(".Pooling")]
            pooling = part(f"{pooled[0] if pooled else '1_Pooling'}/config.json", {})
            longest_text = part("sentence_bert_config.json", {}).get("max_seq_length")
        except (OSError, ValueError, KeyError) as error:
            raise ConfigError(f"no embedding model can be loaded from {name!r}: {error}") from error
        if unknown := [m["type"] for m in pipeline if m["type"].rpartition(".")[2] not in MODULES]:
            raise ConfigError(f"{name!r} has a module {unknown[0]}; known are {', '.join(MODULES)}: choose another model")
        self.pooling = POOLINGS[0]
        if pooling:
            modes = [k.removeprefix("pooling_mode_") for k, v in pooling.items() if k.startswith("pooling_mode_") and v]
            if len(modes) != 1 or modes[0] not in POOLINGS:
                raise ConfigError(f"{name!r} pools by {modes}; known are {', '.join(POOLINGS)}")
            self.pooling = modes[0]
        self.tokenizer.padding_side = "right"
        longest = getattr(self.model.config, "max_position_embeddings", None) or 512
        self.longest = min(longest, self.tokenizer.model_max_length, longest_text or longest)
        self.cut = 0

    def __call__(self, texts: Sequence[str], batch: int = 32) -> Floats:
        """float[N, D], unit length. Texts beyond the model's length are cut and counted in `cut`."""
        import torch

        found: list[Any] = [None] * len(texts)
        by_length = sorted(range(len(texts)), key=lambda i: len(texts[i]))
        for start in range(0, len(texts), batch):
            chunk = by_length[start : start + batch]
            full = self.tokenizer([texts[i] for i in chunk])["input_ids"]
            self.cut += sum(len(ids) > self.longest for ids in full)
            inputs = self.tokenizer(
                [texts[i] for i in chunk], padding=True, truncation=True, max_length=self.longest, return_tensors="pt"
            ).to(self.model.device)
            mask = inputs["attention_mask"]
            with torch.inference_mode():
                hidden = self.model(**inputs).last_hidden_state.double()
            if self.pooling == "mean_tokens":
                pooled = (hidden * mask[..., None]).sum(1) / mask.sum(1, keepdim=True)
            else:
                last = mask.sum(1) - 1 if self.pooling == "lasttoken" else torch.zeros_like(mask[:, 0])
                pooled = hidden[torch.arange(len(chunk), device=last.device), last]
            for i, vector in zip(chunk, torch.nn.functional.normalize(pooled, dim=1).cpu().numpy(), strict=True):
                found[i] = vector
        return np.stack(found) if found else np.zeros((0, 1))


def cosines(right: Floats, wrong: Floats, labels: Sequence[str]) -> dict[str, Floats]:
    """Cosines of one problem from unit vectors float[R, D] and float[W, D] and the classes of the wrong ones.

    same, different: pairs of wrong responses; right: right with wrong ones; triple: the least of the three cosines of a right
    one and two wrong ones of different classes: a triple above a threshold is one cluster at this threshold.
    """
    one, other = np.triu_indices(len(wrong), 1)
    classes = np.unique(labels, return_inverse=True)[1]
    equal = classes[one] == classes[other]
    pairs = (wrong[one] * wrong[other]).sum(axis=1)
    across = right @ wrong.T
    triples = np.minimum(np.minimum(across[:, one[~equal]], across[:, other[~equal]]), pairs[~equal])
    return {"same": pairs[equal], "different": pairs[~equal], "right": across.ravel(), "triple": triples.ravel()}


def deceptive(vectors: Floats, right: bool) -> tuple[Floats, Floats]:
    """(cosines of pairs, the least cosine of each triple) of one response for each different answer: unit vectors float[A, D],
    the first of them a right one if `right`. Pairs: of any two; triples: the right one and two wrong ones.

    A pair above a threshold is deceptive: it looks alike, and the answers differ.
    """
    one, other = np.triu_indices(len(vectors), 1)
    pairs = (vectors[one] * vectors[other]).sum(axis=1)
    if not right:
        return pairs, np.zeros(0)
    return pairs, cosines(vectors[:1], vectors[1:], [str(i) for i in range(len(vectors) - 1)])["triple"]


def auc(same: Floats, different: Floats) -> float:
    """The chance that a pair of one class is more similar than one of two, ties half; NaN without pairs of both sorts."""
    if not len(same) or not len(different):
        return float("nan")
    order = np.sort(different)
    below, to = np.searchsorted(order, same, "left"), np.searchsorted(order, same, "right")
    return float((below + to).mean() / 2 / len(different))


def analyse(models: Mapping[str, Problems], embedder: Embedder, threshold: float, text: str, seed: int) -> dict[str, Any]:
    """{model: {pair: cosine, above (means over problems), pairs, pooled (share of all pairs above)}, auc}; deceptive: counts of
    pairs and triples of one response for each different answer, the first of each, the right one among them."""
    result: dict[str, Any] = {"threshold": threshold, "text": text, "models": {}, "cosines": {}, "without_answer": {}}
    result["deceptive"] = {}
    prose = "whether an embedding of reasoning can tell answers apart"
    result["unreadable"] = without_prose(models, prose) if text == "response" else []
    for label, problems in models.items():
        samples = [(key, row) for key, attempts in problems.items() for row in (*attempts.right, *attempts.wrong)]
        kept = [(key, row) for key, row in samples if text == "response" or row["key"] is not None]
        result["without_answer"][label] = len(samples) - len(kept)
        vectors = embedder([row["response"] if text == "response" else row["key"] for _, row in kept])
        by_problem: dict[Key, list[int]] = {}
        for i, (key, _) in enumerate(kept):
            by_problem.setdefault(key, []).append(i)
        rows, distinct = [], []
        for mine in by_problem.values():
            right = [i for i in mine if kept[i][1]["status"] == RIGHT]
            wrong = [i for i in mine if kept[i][1]["status"] == WRONG]
            rows.append(cosines(vectors[right], vectors[wrong], [kept[i][1]["label"] for i in wrong]))
            firsts = {kept[i][1]["label"]: i for i in reversed(wrong)}
            distinct.append(deceptive(vectors[[*right[:1], *firsts.values()]], bool(right)))
        pooled = {pair: np.concatenate([row[pair] for row in rows] or [np.zeros(0)]) for pair in COMPARED}
        if not len(pooled["different"]):
            raise ConfigError(f"{label}: no problem has wrong responses of two classes, so there is no pair to compare")
        columns = {"auc": np.array([auc(row["same"], row["different"]) for row in rows])}
        for pair in COMPARED:
            columns[pair] = np.array([row[pair].mean() if len(row[pair]) else np.nan for row in rows])
            columns[f"{pair} above"] = np.array([(row[pair] > threshold).mean() if len(row[pair]) else np.nan for row in rows])
        means = mean_intervals(columns, seed)
        result["models"][label] = {"auc": means["auc"]} | {
            pair: {"pairs": len(x), "pooled": float((x > threshold).mean()) if len(x) else None,
                   "cosine": means[pair], "above": means[f"{pair} above"]}
            for pair, x in pooled.items()
        }  # fmt: skip
        result["deceptive"][label] = counted(distinct, threshold)
        result["cosines"][label] = {pair: np.histogram(np.clip(x, -1, 1), 200, (-1, 1))[0] for pair, x in pooled.items()}
    return result | {"cut": embedder.cut, "longest": embedder.longest, "pooling": embedder.pooling}


def counted(problems: Sequence[tuple[Floats, Floats]], threshold: float) -> dict[str, Any]:
    """Counts over problems, each with the cosines of its pairs and of its triples: how many there are, of how many problems,
    and how many are above `threshold`, or above each of LEVELS."""
    pairs, triples = (np.concatenate([problem[i] for problem in problems]) for i in (0, 1))
    return {
        "pairs": len(pairs),
        "problems": sum(len(p) > 0 for p, _ in problems),
        "deceptive": int((pairs > threshold).sum()),
        "deceptive_problems": sum(bool((p > threshold).any()) for p, _ in problems),
        "triples": len(triples),
        "triples_above": {f"{level:g}": int((triples > level).sum()) for level in LEVELS},
    }


def tables(result: Mapping[str, Any]) -> list[str | Table]:
    """A row for each model and sort of pair; the AUC of telling classes apart."""
    t = result["threshold"]
    table: Table = [["model", "compared", "number", "problems", "mean cosine", f"above {t:g}, %", "of all, %"]]
    notes = []
    for label, found in result["models"].items():
        for pair, name in COMPARED.items():
            f = found[pair]
            pooled = "–" if f["pooled"] is None else f"{100 * f['pooled']:.1f}"
            table.append(
                [label, name, str(f["pairs"]), str(f["cosine"]["problems"]), number(f["cosine"]), percent(f["above"]), pooled]
            )
        notes.append(
            f"{label}: a same-class pair is more similar than a different-class pair with chance {number(found['auc'])} (0.5: "
            f"the embedding knows nothing of classes, 1: it tells them apart; {found['auc']['problems']} problems)."
        )
    head = ["model", "pairs", f"above {t:g}", "%", "problems with one", "triples", *(f"above {level:g}" for level in LEVELS)]
    counts: Table = [head]
    for label, d in result["deceptive"].items():
        share = f"{100 * d['deceptive'] / d['pairs']:.1f}" if d["pairs"] else "–"
        problems = f"{d['deceptive_problems']} of {d['problems']}"
        above = [str(n) for n in d["triples_above"].values()]
        counts.append([label, str(d["pairs"]), str(d["deceptive"]), share, problems, str(d["triples"]), *above])
    what = "whole responses" if result["text"] == "response" else "canonical answers alone"
    left = [f"{n} of {m}" for m, n in result["without_answer"].items() if n]
    return [
        *result["unreadable"],
        f"Cosines of embeddings of {what}; for a triple the least of its three. Means over problems, 95% bootstrap intervals; "
        "the last column is the share of all pairs or triples. What lies above the threshold would be merged by it, though the "
        f"answers differ. {result['cut']} texts were longer than the model's {result['longest']} tokens and were cut.",
        table,
        "Deceptive pairs and triples: one response for each different answer to a problem, the first, the right answer among "
        f"them. A pair above {t:g} looks alike though the answers differ; a triple is a right response and two different wrong "
        "ones, counted where all its three cosines are above.",
        counts,
        *notes,
        *(["Without an answer to embed, left out: " + ", ".join(left) + "."] if left else []),
    ]


def draw(result: Mapping[str, Any], plt: Any) -> Any:
    """The figure. plt: matplotlib.pyplot."""
    models = list(result["cosines"])
    figure, axes = plt.subplots(1, len(models), figsize=(6 * len(models), 4), layout="constrained", squeeze=False)
    edges = np.linspace(-1, 1, 201)
    for axis, label in zip(axes.flat, models, strict=True):
        for pair, counts in result["cosines"][label].items():
            if counts.sum():
                above = [*counts[::-1].cumsum()[::-1] / counts.sum(), 0]  # of each edge
                axis.plot(edges, above, label=f"{COMPARED[pair]} ({counts.sum()})", linewidth=1.5)
        axis.axvline(result["threshold"], color="0.5", linestyle="--", linewidth=1)
        used = np.flatnonzero(sum(result["cosines"][label].values()))
        axis.set(
            title=label,
            xlabel="cosine (triples: the least of three)",
            ylabel="share above this cosine",
            xlim=(edges[used[0]] - 0.02, 1.01),
        )
        axis.legend(fontsize=7)
    return figure
