"""Fits the rates of the kernels' predictions to times that regret.py has measured, and writes native/src/rates.inc.

    cmake -B build -DPYBLAS_BUILD_TESTS=ON && cmake --build build --target count_work
    python bench/rates.py bench/results/GPU-regret.csv --count build/count_work --write native/src/rates.inc

count_work says what each product asks of the device (native/src/cost.hpp); the formula below is that of cost.cpp. Each
row is fitted by least squares of the logarithms, against outliers and with a prior, so that what no measurement tells
stays usual, and all of them together by what wrong choices would cost. Kernels that the csv leaves out were slower.
--folds N fits N times without an N-th of the shapes and tells the regret on these. Needs NumPy and SciPy.
"""

from __future__ import annotations

import argparse
import csv
import math
import subprocess
from pathlib import Path

import numpy as np
from fit import LADDER, MODES, Row, by_shape, legal, name, seconds
from scipy.optimize import minimize

# In the order of cost.hpp: what is usual, and by how much, as a logarithm, rows differ in it.
PRIORS = {
    "start": (1.8e-6, 0.15),
    "wave": (0.4e-6, 0.7),
    "step": (8e-9, 0.7),
    "trip": (60e-9, 1.5),
    "fold": (0.05e-6, 1.0),
    "single": (0.3e-6, 1.0),
    "flop": (1.5, 0.3),
    "copy": (4.0, 1.0),
    "narrow": (4.0, 1.0),
    "byte": (0.7, 0.7),
    "block": (1e-9, 0.7),
    "crowd": (0.3e-6, 1.0),
    "read": (1.1, 0.15),
    "written": (1.1, 0.2),
    "written_singly": (2.0, 1.0),
    "second_kernel": (1.5e-6, 0.5),
    "partial_byte": (2.0, 1.0),
    "piece": (30e-9, 1.0),
}
FAMILY_PRIORS = {
    "wgmma": {"start": (6e-6, 0.3), "flop": (0.3, 0.3)},  # tensor cores multiply
    "producer_tile": {"wave": (3e-6, 0.5), "flop": (1.27, 0.2), "copy": (8.0, 1.0)},
    "team_tile": {"flop": (0.42, 0.5)},  # several teams of a block multiply
}
MODE_SHARES = {"fp32_pedantic": 1.0, "fp32": 1.0, "tf32": 0.3}
SURE = 0.025  # a prediction, as a logarithm, for what a wrong choice costs
REGRET = 40.0  # times the regret: what the fit loses by it
FAR = 1.5  # a time's weight falls with that power of how many times the best it is
# Times the best: what the csv leaves out took more; predictions of it that count at first.
LEFT_OUT, TEMPTING = 1.5, 3.0
STEPS = 700
TINY = 1e-30  # square roots of 0 have no derivative
# Of a shape, by its source: shapes.json, or these.
LISTED, WEIGHTS = 3.0, {"random": 1.0, "contested": 0.5, "odd rows": 0.5}
NOISE = 0.05  # of a time, as a logarithm: what the model and the clock leave

Values = dict[str, np.ndarray]
Rates = dict[str, float] | dict[str, np.ndarray]  # of one kernel, or of each product's kernel


class Counter:
    """What count_work says about shapes and rows."""

    def __init__(self, program: Path, rows: list[Row]) -> None:
        shapes = {self.question(row): None for row in rows}
        asked = subprocess.run([program], input="\n".join(shapes), capture_output=True, text=True, check=True)
        lines = asked.stdout.splitlines()
        self.multiprocessors, self.flops, self.bandwidth = map(float, lines[0].split())
        self.names = lines[1].split()
        self.work: dict[tuple[str, str], list[float]] = {}
        self.does: dict[tuple[str, str], str] = {}  # whose kernel
        questions = list(shapes)
        for line in lines[2:]:
            number, kernel, does, *values = line.split()
            self.work[questions[int(number)], kernel] = list(map(float, values))
            self.does[questions[int(number)], kernel] = does

    @staticmethod
    def question(row: Row) -> str:
        """Row-major C = A B is column-major C' = B' A'."""
        return f"{row['ops'][1]} {row['ops'][0]} {row['n']} {row['m']} {row['k']} {row['batch']}"

    def knows(self, row: Row) -> bool:
        return (self.question(row), row["kernel"]) in self.work

    def kernel(self, row: Row) -> str:
        return self.does[self.question(row), row["kernel"]]

    def values(self, rows: list[Row]) -> Values:
        table = np.array([self.work[self.question(row), row["kernel"]] for row in rows]).T
        return dict(zip(self.names, table, strict=True))

    def predict(self, w: Values, r: Rates) -> np.ndarray:
        processor, share = self.flops / self.multiprocessors, self.bandwidth / self.multiprocessors

        def wave(count: np.ndarray) -> np.ndarray:
            waits = r["step"] * w["steps"] + r["trip"] * w["trips"]
            issued = r["flop"] * w["flops"] + 2 * (r["copy"] * w["copies"] + r["narrow"] * w["narrow"])
            brings = count * r["byte"] * w["bytes"] / share
            overlapped = np.sqrt(waits**2 + (count * issued / processor) ** 2 + brings**2 + TINY)
            return r["wave"] + r["fold"] * w["folds"] + r["single"] * w["single"] + overlapped

        blocks = w["waves"] * wave(w["resident"]) + (w["last"] > 0) * wave(w["last"])
        moved = (r["read"] * w["read"] + r["written"] * w["written"]
                 + r["written_singly"] * w["written_singly"]) / self.bandwidth  # fmt: skip
        crowd = r["crowd"] * np.sqrt(np.minimum(1, w["blocks"] / self.multiprocessors))
        return (r["start"] + r["block"] * w["blocks"] + crowd + np.sqrt(blocks**2 + moved**2)
                + r["second_kernel"] * w["second_kernels"] + r["partial_byte"] * w["partial_bytes"] / self.bandwidth
                + r["piece"] * w["pieces"])  # fmt: skip


def priors_of(kernel: str) -> tuple[np.ndarray, np.ndarray]:
    """What is usual, and the spread."""
    family = next((family for family in FAMILY_PRIORS if kernel.startswith(family)), "")
    usual, spread = np.array(list((PRIORS | FAMILY_PRIORS.get(family, {})).values())).T
    return usual, spread


class Choices:
    """Which rows could be taken for the products that were measured, and what each would cost."""

    def __init__(self, rows: list[Row]) -> None:
        place, sets = {id(row): i for i, row in enumerate(rows)}, []
        for group in by_shape(rows):
            for mode, share in MODE_SHARES.items():
                allowed = legal(group, mode)
                if len(allowed) > 1:
                    best, weight = min(map(seconds, allowed)), share * weight_of(allowed[0])
                    sets.append((weight, [(place[id(row)], min(seconds(row) / best - 1, 1.0)) for row in allowed]))
        most = max(len(members) for _, members in sets)
        self.weight = np.array([weight for weight, _ in sets])
        self.members, self.regret = np.zeros((len(sets), most), int), np.zeros((len(sets), most))
        self.there = np.zeros((len(sets), most), bool)
        for i, (_, members) in enumerate(sets):
            self.members[i, : len(members)], self.regret[i, : len(members)] = zip(*members, strict=True)
            self.there[i, : len(members)] = True

    def cost(self, predicted: np.ndarray) -> tuple[float, np.ndarray]:
        """Expected regret where predictions, logarithms, are known to SURE, and its derivatives."""
        favour = np.where(self.there, -predicted[self.members] / SURE, -np.inf)
        likely = np.exp(favour - favour.max(1, keepdims=True))
        likely /= likely.sum(1, keepdims=True)
        expected = (likely * self.regret).sum(1)
        slopes = self.weight[:, None] * likely * (expected[:, None] - self.regret) / SURE
        found = np.zeros_like(predicted)
        np.add.at(found, self.members[self.there], slopes[self.there])
        return float((self.weight * expected).sum()), found


def left_out(counter: Counter, rows: list[Row], known: dict[str, list[float]]) -> list[Row]:
    """Of each shape, the kernels that the csv leaves out although they might be chosen."""
    modes = {row["kernel"]: row["mode"] for row in rows}
    found = []
    for group in by_shape(rows):
        there = {row["kernel"] for row in group}
        for kernel, mode in modes.items():
            row = group[0] | {"kernel": kernel, "mode": mode}
            if kernel in there or kernel not in known or not counter.knows(row) or counter.kernel(row) != kernel:
                continue
            allowed = legal(group, mode)
            if not allowed:
                continue
            row["us"] = str(LEFT_OUT * min(map(seconds, allowed)))
            found.append(row)
    rates = {kernel: dict(zip(PRIORS, values, strict=True)) for kernel, values in known.items()}
    told = predictions(counter, rates, found)
    return [row for row, us in zip(found, told, strict=True) if us < TEMPTING / LEFT_OUT * seconds(row)]


def weight_of(row: Row) -> float:
    return WEIGHTS.get(row["source"], LISTED)


def fit_all(counter: Counter, rows: list[Row], known: dict[str, list[float]]) -> dict[str, dict[str, float]]:
    """All rows' rates at once: what a prediction misses, what is unusual, and what wrong choices cost. Begins at what
    is known: wrong choices have many least costs nearby."""
    rows = [row for row in rows if counter.knows(row) and counter.kernel(row) == row["kernel"]]
    kernels = sorted({row["kernel"] for row in rows})
    timed = len(rows)
    rows = rows + left_out(counter, rows, known)
    of = np.array([kernels.index(row["kernel"]) for row in rows])
    usual, spread = np.array([priors_of(kernel) for kernel in kernels]).transpose(1, 0, 2)
    work, measured = counter.values(rows), np.log([seconds(row) * 1e-6 for row in rows])
    choices = Choices(rows)
    near = {id(row): weight_of(row) * (min(map(seconds, legal(group, row["mode"]))) / seconds(row)) ** FAR
            for group in by_shape(rows) for row in group}  # fmt: skip
    weight = np.array([near[id(row)] if i < timed else 0.0 for i, row in enumerate(rows)])

    def objective(flat: np.ndarray) -> tuple[float, np.ndarray]:
        x = flat.reshape(usual.shape)
        table = (usual * np.exp(x))[of].T
        r = dict(zip(PRIORS, table, strict=True))
        predicted = counter.predict(work, r)
        # The derivative by a logarithm, exact: a step along the imaginary axis.
        slopes = np.array([counter.predict(work, r | {key: r[key] * (1 + 1e-20j)}).imag * 1e20 for key in PRIORS])
        missed = (np.log(predicted) - measured) / NOISE
        robust = np.sqrt(1 + missed**2)
        regret, by_choice = choices.cost(np.log(predicted))
        by_prediction = weight * missed / robust / NOISE + REGRET * by_choice
        by_rate = x / spread**2
        np.add.at(by_rate, of, (slopes * by_prediction / predicted).T)
        return float((weight * robust).sum() + (x**2 / spread**2).sum() / 2 + REGRET * regret), by_rate.ravel()

    start = np.log([known.get(kernel, usual[i]) for i, kernel in enumerate(kernels)] / usual).ravel()
    options = {"maxiter": STEPS, "maxcor": 30}
    found = minimize(objective, start, jac=True, method="L-BFGS-B", options=options)
    fitted = usual * np.exp(found.x.reshape(usual.shape))
    return {kernel: dict(zip(PRIORS, map(float, values), strict=True))
            for kernel, values in zip(kernels, fitted, strict=True)}  # fmt: skip


def predictions(counter: Counter, rates: dict[str, dict[str, float]], rows: list[Row]) -> list[float]:
    """Microseconds; as the csv has them where nothing is counted."""
    counted = [row for row in rows if counter.knows(row) and counter.kernel(row) in rates]
    if counted:
        table = np.array([list(rates[counter.kernel(row)].values()) for row in counted]).T
        times = iter(counter.predict(counter.values(counted), dict(zip(PRIORS, table, strict=True))) * 1e6)
    ids = set(map(id, counted))
    return [float(next(times)) if id(row) in ids else float(row["predicted_us"]) for row in rows]


def regrets(rows: list[Row], predicted: list[float], mode: str) -> list[tuple[float, str]]:
    """Of each shape, as far as the csv has what would be chosen."""
    of_row = {id(row): value for row, value in zip(rows, predicted, strict=True)}
    found = []
    for group in by_shape(rows):
        allowed = legal(group, mode)
        shipped = [row for row in allowed if not row["kernel"].startswith(LADDER)]
        if not shipped:
            continue
        chosen, best = min(shipped, key=lambda row: of_row[id(row)]), min(allowed, key=seconds)
        told = (
            f"{name(chosen):28} {chosen['kernel']} {chosen['us']} us (predicted {of_row[id(chosen)]:.2f}),"
            f" best {best['kernel']} {best['us']} ({of_row[id(best)]:.2f})"
        )
        found.append((seconds(chosen) / seconds(best), told))
    return sorted(found, reverse=True)


def tell(title: str, found: list[tuple[float, str]], most: int = 0) -> None:
    geomean = math.exp(sum(math.log(regret) for regret, _ in found) / len(found))
    above = sum(regret > 1.15 for regret, _ in found)
    print(f"{title}: {len(found)} shapes, regret geomean {geomean:.4f}, worst {found[0][0]:.3f}, {above} above 1.15")
    for regret, line in found[:most]:
        print(f"{regret:6.3f} {line}")


def held_out(counter: Counter, rows: list[Row], folds: int) -> list[float]:
    """Predictions of each shape by rates that were fitted without it."""
    groups = by_shape(rows)
    np.random.default_rng(0).shuffle(groups)  # type: ignore[arg-type]
    told = {}
    for part in range(folds):
        rates = fit_all(counter, [row for i, group in enumerate(groups) if i % folds != part for row in group], {})
        out = [row for i, group in enumerate(groups) if i % folds == part for row in group]
        told.update(zip(map(id, out), predictions(counter, rates, out), strict=True))
    return [told[id(row)] for row in rows]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("csv", type=Path, nargs="+")
    parser.add_argument("--count", type=Path, required=True, help="the program count_work")
    parser.add_argument(
        "--write", type=Path, help="where the rates are and go; rows that were not measured keep theirs"
    )
    parser.add_argument("--folds", type=int, default=0, help="parts of the shapes that are held out in turn")
    parser.add_argument("--most", type=int, default=30, help="regrets to tell")
    options = parser.parse_args()
    rows: list[Row] = []
    for path in options.csv:
        with path.open(newline="") as file:
            rows += list(csv.DictReader(file))
    counter = Counter(options.count.resolve(), rows)
    lines = {}
    if options.write and options.write.exists():
        lines = {line.split('"')[1]: line for line in options.write.read_text().splitlines() if '"' in line}
    known = {kernel: list(map(float, line.split("{")[2].split("}")[0].split(","))) for kernel, line in lines.items()}
    rates = fit_all(counter, rows, known)
    for kernel, fitted in rates.items():
        mine = [row for row in rows if row["kernel"] == kernel and counter.kernel(row) == kernel]
        missed = np.log(
            [value / seconds(row) for value, row in zip(predictions(counter, rates, mine), mine, strict=True)]
        )
        print(f"{kernel:32} {len(mine):4} times, missed by {missed.std():.3f}, at most {abs(missed).max():.2f}  "
              + " ".join(f"{key} {value:.3g}" for key, value in fitted.items()))  # fmt: skip
    told = predictions(counter, rates, rows)
    for mode in MODES:
        tell(mode, regrets(rows, told, mode), options.most)
    if options.folds:
        told = held_out(counter, rows, options.folds)
        for mode in MODES:
            tell(f"{mode}, held out", regrets(rows, told, mode))
    if options.write:
        for kernel, fitted in rates.items():
            lines[kernel] = f'{{"{kernel}", {{{", ".join(f"{value:.4g}" for value in fitted.values())}}}}},'
        header = [f"// Written by bench/rates.py: {', '.join(PRIORS)}.", "// clang-format off"]
        options.write.write_text("\n".join([*header, *(lines[kernel] for kernel in sorted(lines))]) + "\n")


if __name__ == "__main__":
    main()
