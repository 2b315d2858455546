// The packing kernels on the simulator, bit by bit against planes computed here in float64, and the results that are
// left to FP32 multiply-adds: exactly those of unfit rows and columns. What the planes multiply to, summed exactly,
// must stay within the share of each element's bound that splitting may take. So must the sums of planes that leave
// small elements out and what is added for these. Some rows are compared with what the model in NumPy has recorded,
// too.
//
//     test_planes RECORD
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <limits>
#include <string>
#include <vector>

#include "numbers.hpp"
#include "simulator.hpp"
#include "tensor/one_sum.hpp"
#include "tensor/pack.hpp"
#include "unfit.hpp"

namespace {

using namespace pyblas;
using numbers::hash;
using simulator::Access;
using simulator::Region;

int failures = 0;

// ---- cases ---------------------------------------------------------------------------------------------------------

enum class Values { uniform, wide, wider, graded, integers, special, rare, subnormal, lines, huge, zeros, small };
constexpr const char *kValueNames[] = {"uniform", "2^+-20",    "2^+-60",     "graded", "integers", "special",
                                       "rare",    "subnormal", "tiny lines", "huge",   "zeros",    "few small"};
enum class Batches { strided, shared_a, shared_b, negative, pointers };

struct Case {
    Op transa, transb;
    int64_t m, n, k, batch;
    Batches batches;
    int64_t gap;
    int offset;
    Values values;
    float alpha, beta;
    bool batch_invariant = false;
    bool apart = false; // an operand is packed after the other

    std::string text() const {
        char buffer[200];
        std::snprintf(buffer, sizeof buffer,
                      "%c%c %ldx%ldx%ld batch %ld (%d) gap %ld offset %d %s alpha %g beta %g%s%s",
                      transa == Op::N ? 'N' : 'T', transb == Op::N ? 'N' : 'T', long(m), long(n), long(k), long(batch),
                      int(batches), long(gap), offset, kValueNames[int(values)], double(alpha), double(beta),
                      batch_invariant ? ", batch-invariant" : "", apart ? ", packed apart" : "");
        return buffer;
    }
};

float element(Values values, uint64_t seed, int64_t line, int64_t k, int64_t depth) {
    const uint64_t random = hash(seed);
    const float uniform = numbers::uniform(random);
    switch (values) {
    case Values::uniform:
        break;
    case Values::wide:
        return numbers::wide(random, 20);
    case Values::wider:
        return numbers::wide(random, 60);
    case Values::graded:
        return std::ldexp(uniform, -static_cast<int>(30 * k / depth));
    case Values::integers:
        return static_cast<float>(static_cast<int>(random % 4097) - 2048);
    case Values::special:
        switch (random % 499) {
        case 0:
            return std::numeric_limits<float>::infinity();
        case 1:
            return std::numeric_limits<float>::quiet_NaN();
        case 2:
            return 1e-41f;
        case 3:
            return -0.0f;
        }
        break;
    case Values::rare: // so that few rows are unfit
        if (random % 4001 < 2)
            return random % 4001 ? 1e-30f : std::numeric_limits<float>::infinity();
        break;
    case Values::subnormal:
        return std::ldexp(uniform, -127 - static_cast<int>(random % 20));
    case Values::lines: // whole ones, partly subnormal
        return line % 61 == 0 ? uniform * std::ldexp(1.0f, -126) : uniform;
    case Values::huge:
        return uniform < 0 ? -std::numeric_limits<float>::max() : std::ldexp(uniform, 127);
    case Values::small: // three of them, two where the other operand has some, too; B's k run backwards
        if ((line == 18 && (k == 5 || k == depth / 2 || k == depth - 1 - depth / 2)) || (line == 40 && k == depth / 2))
            return std::ldexp(uniform, -24 - static_cast<int>(random % 90));
        break;
    case Values::zeros:
        return random % 3 ? 0.0f : -0.0f;
    }
    return uniform;
}

// One operand and what lies round it.
struct Matrices {
    int64_t rows, columns, ld, stride, batch;
    std::vector<float> memory;
    float *first;

    Matrices(int64_t rows_, int64_t columns_, int64_t gap, int offset, int64_t batch_, bool shared, bool negative)
        : rows(rows_), columns(columns_), ld(rows_ + gap), stride(shared ? 0 : ld * columns_ + gap), batch(batch_) {
        const int64_t span = stride * (batch - 1) + ld * columns;
        memory.assign(static_cast<size_t>(span + offset + 16), std::numeric_limits<float>::quiet_NaN());
        const auto misaligned = reinterpret_cast<uintptr_t>(memory.data()) / 4 % 4;
        first = memory.data() + (4 - misaligned) % 4 + offset;
        if (negative) {
            first += stride * (batch - 1);
            stride = -stride;
        }
    }
    float &at(int64_t b, int64_t i, int64_t j) { return first[b * stride + i + j * ld]; }
};

// ---- planes, as numerics.md defines them --------------------------------------------------------------------------

double rounded(double value, int bits, int least) { // to bits of significand, never finer than 2^least
    if (value == 0)
        return value;
    const int unit = std::max(std::ilogb(value) - bits + 1, least);
    return std::ldexp(std::nearbyint(std::ldexp(value, -unit)), unit);
}
double truncated(double value, int bits, int least) {
    if (value == 0)
        return value;
    const int unit = std::max(std::ilogb(value) - bits + 1, least);
    return std::ldexp(std::trunc(std::ldexp(value, -unit)), unit);
}

uint16_t f16_bits(double value) {
    const uint16_t sign = std::signbit(value) ? 0x8000 : 0;
    const double magnitude = std::fabs(value);
    if (magnitude < std::ldexp(1.0, -14))
        return static_cast<uint16_t>(sign | static_cast<uint16_t>(std::ldexp(magnitude, 24)));
    const int exponent = std::ilogb(magnitude);
    return static_cast<uint16_t>(sign + ((exponent + 15) << 10) +
                                 static_cast<int>(std::ldexp(magnitude, 10 - exponent)) - 1024);
}
uint16_t bf16_bits(double value) {
    const auto single = static_cast<float>(value);
    uint32_t bits;
    std::memcpy(&bits, &single, sizeof bits);
    return static_cast<uint16_t>(bits >> 16);
}

int32_t model_exponent(Scheme scheme, const std::vector<float> &row) {
    double most = 0, least = std::numeric_limits<double>::infinity();
    for (const float value : row) {
        if (!std::isfinite(value))
            return kUnfitRow;
        const double magnitude = std::fabs(double(value));
        most = std::max(most, magnitude);
        if (magnitude > 0)
            least = std::min(least, magnitude);
    }
    const auto k = static_cast<double>(row.size());
    if (scheme == Scheme::f16x2_one)
        least = std::numeric_limits<double>::infinity(); // what is too small is left out
    int exponent = 0, finest = -110;
    if (scheme != Scheme::bf16x3) {
        finest = scheme == Scheme::f16x1 ? -14
                 : k < 128               ? -13
                                         : std::max(-23, -13 - static_cast<int>(std::floor(std::log2(k / 4) / 2)));
        if (most > 0) {
            // The largest as 16 bits hold it. The clamp makes all subnormals alike.
            exponent = static_cast<int>(std::floor((std::ilogb(rounded(most, 11, -200)) - 14) / 2.0)) * 2;
            exponent = std::max(exponent, kLeastPlaneExponent);
        }
    }
    return least >= std::ldexp(1.0, exponent + finest) ? exponent : kUnfitRow;
}

struct Split {
    double planes[3];
};

bool is_small(float value, int32_t exponent, size_t depth) {
    const int least = std::max(-14, 1 - std::ilogb(static_cast<double>(depth)));
    return value != 0 && std::fabs(double(value)) < std::ldexp(1.0, exponent + least);
}

Split model_split(Scheme scheme, float value, int32_t exponent, size_t depth) {
    Split split = {};
    if (scheme != Scheme::bf16x3) {
        double scaled = std::ldexp(double(value), -exponent);
        if (scheme == Scheme::f16x2_one && is_small(value, exponent, depth))
            scaled = 0;
        split.planes[0] = rounded(scaled, 11, -24);
        if (scheme == Scheme::f16x2)
            split.planes[1] = rounded(std::ldexp(scaled - split.planes[0], kLowPlaneBits), 11, -24);
        if (scheme == Scheme::f16x2_one)
            split.planes[1] = rounded(scaled - split.planes[0], 11, -24);
    } else {
        split.planes[0] = truncated(value, 8, -133);
        split.planes[1] = rounded(value - split.planes[0], 8, -133);
        split.planes[2] = rounded(value - split.planes[0] - split.planes[1], 8, -133);
    }
    return split;
}

// ---- the check -----------------------------------------------------------------------------------------------------

constexpr const char *kSchemeNames[] = {"f16x2", "bf16x3", "f16x1", "f16x2_one"};

bool report(const Case &test, Scheme scheme, const std::string &what) {
    std::printf("FAILED %s, %s: %s\n", kSchemeNames[static_cast<int>(scheme)], test.text().c_str(), what.c_str());
    ++failures;
    return false;
}

// One operand's planes against the model; returns what they hold, row after row, and leaves exponents.
bool check_planes(const Case &test, Scheme scheme, const char *name, const Planes &planes,
                  const std::vector<std::vector<float>> &rows, std::vector<std::vector<Split>> *held) {
    for (size_t row = 0; row < rows.size(); ++row) {
        const int32_t exponent = model_exponent(scheme, rows[row]);
        char text[160];
        if (planes.exponents[row] != exponent) {
            std::snprintf(text, sizeof text, "row %zu of %s has exponent %d, not %d", row, name, planes.exponents[row],
                          exponent);
            return report(test, scheme, text);
        }
        held->emplace_back();
        if (exponent == kUnfitRow)
            continue;
        const auto batch = static_cast<int64_t>(row) / planes.rows, inside = static_cast<int64_t>(row) % planes.rows;
        for (size_t k = 0; k < rows[row].size(); ++k) {
            const Split split = model_split(scheme, rows[row][k], exponent, rows[row].size());
            for (int plane = 0; plane < planes.count; ++plane) {
                const auto along = static_cast<int64_t>(k);
                const uint16_t got =
                    planes.data[batch * planes.matrix() + plane * planes.plane() +
                                (planes.across ? along * planes.ld() + inside : inside * planes.ld() + along)];
                const uint16_t want =
                    scheme != Scheme::bf16x3 ? f16_bits(split.planes[plane]) : bf16_bits(split.planes[plane]);
                const bool zeros = (got & 0x7fff) == 0 && (want & 0x7fff) == 0 && plane > 0;
                if (got != want && !zeros) {
                    std::snprintf(text, sizeof text, "%s(%zu, %zu) = %.9g, exponent %d: plane %d holds %04x, not %04x",
                                  name, row, k, double(rows[row][k]), exponent, plane, got, want);
                    return report(test, scheme, text);
                }
            }
            held->back().push_back(split);
        }
    }
    return true;
}

// Which rows have small elements, and how many these are, where they are not too many; and whether they are. A sample
// of elements may say so, too.
bool check_small(const Case &test, const PackedProduct &packed, const std::vector<std::vector<float>> &rows_a,
                 const std::vector<std::vector<float>> &rows_b, bool *too_many) {
    *too_many = false;
    const std::pair<const Planes *, const std::vector<std::vector<float>> *> operands[] = {{&packed.a, &rows_a},
                                                                                           {&packed.b, &rows_b}};
    std::vector<uint32_t> counts, slices;
    for (const auto &[planes, rows] : operands) {
        counts.push_back(0);
        for (size_t row = 0; row < rows->size(); ++row) {
            const std::vector<float> &values = (*rows)[row];
            const int32_t exponent = model_exponent(Scheme::f16x2_one, values);
            slices.push_back(0);
            for (size_t k = 0; k < values.size() && exponent != kUnfitRow; ++k)
                if (is_small(values[k], exponent, values.size()))
                    ++counts.back(), slices.back() |= 1u << (k >> planes->slice_bits());
        }
        *too_many |= counts.back() > planes->batch * planes->rows / 16;
    }
    const float *const scalars = packed.a.scalars();
    *too_many |= packed.a.in_vain() && packed.b.in_vain() && scalars[1] == test.beta;
    if (scalars[0] != (*too_many ? test.alpha : 0.0f) || scalars[1] != (*too_many ? test.beta : 1.0f))
        return report(test, Scheme::f16x2_one, "the scalars for another scheme are wrong");
    for (size_t i = 0; i < 2; ++i) {
        const Planes &planes = *operands[i].first;
        if (*planes.small_count() != (*too_many ? Planes::kInVain : counts[i]))
            return report(test, Scheme::f16x2_one,
                          std::to_string(counts[i]) + " small elements are counted as " +
                              std::to_string(*planes.small_count()));
        const uint32_t *const want = slices.data() + (i == 0 ? 0 : rows_a.size());
        if (!*too_many && !std::equal(want, want + operands[i].second->size(), planes.small_slices()))
            return report(test, Scheme::f16x2_one, "small elements are not where they are said to be");
    }
    return true;
}

int unfit_rows = 0, with_small = 0, without_one = 0;

// The product of a row and a column as batch_invariant adds it.
float in_parts(const std::vector<float> &row, const std::vector<float> &column) {
    const auto depth = static_cast<int64_t>(row.size());
    const int64_t part = invariant_part(depth);
    float total = 0;
    for (int64_t begin = 0; begin < depth; begin += part) {
        float sum = 0;
        for (int64_t k = begin; k < std::min(begin + part, depth); ++k)
            sum = std::fmaf(row[static_cast<size_t>(k)], column[static_cast<size_t>(k)], sum);
        total = depth > part ? total + sum : sum;
    }
    return total;
}

bool check(const Case &test, Scheme scheme) {
    const bool many = test.batch > 1;
    Matrices a(test.transa == Op::N ? test.m : test.k, test.transa == Op::N ? test.k : test.m, test.gap, test.offset,
               test.batch, many && test.batches == Batches::shared_a, many && test.batches == Batches::negative);
    Matrices b(test.transb == Op::N ? test.k : test.n, test.transb == Op::N ? test.n : test.k, test.gap, test.offset,
               test.batch, many && test.batches == Batches::shared_b, false);
    Matrices c(test.m, test.n, test.gap, test.offset, test.batch, false, false);
    const auto a_at = [&](int64_t batch, int64_t i, int64_t k) -> float & {
        return test.transa == Op::N ? a.at(batch, i, k) : a.at(batch, k, i);
    };
    const auto b_at = [&](int64_t batch, int64_t k, int64_t j) -> float & {
        return test.transb == Op::N ? b.at(batch, k, j) : b.at(batch, j, k);
    };
    uint64_t seed = hash(static_cast<uint64_t>(test.m * 7919 + test.n * 104729 + test.k + test.gap));
    for (int64_t batch = 0; batch < test.batch; ++batch) {
        for (int64_t k = 0; k < test.k; ++k) {
            for (int64_t i = 0; i < test.m; ++i)
                a_at(batch, i, k) = element(test.values, ++seed, i, k, test.k);
            for (int64_t j = 0; j < test.n; ++j)
                b_at(batch, k, j) = element(test.values, ++seed, j, test.k - 1 - k, test.k);
        }
        for (int64_t j = 0; j < test.n; ++j)
            for (int64_t i = 0; i < test.m; ++i)
                c.at(batch, i, j) = 1.0f;
    }

    Problem problem;
    problem.transa = test.transa, problem.transb = test.transb;
    problem.m = test.m, problem.n = test.n, problem.k = test.k, problem.batch = test.batch;
    problem.batch_invariant = test.batch_invariant;
    std::vector<void *> arrays[3];
    Matrices *matrices[] = {&a, &b, &c};
    Operand *operands[] = {&problem.a, &problem.b, &problem.c};
    for (int i = 0; i < 3; ++i) {
        constexpr int64_t kBehind = 3; // pointers' matrices begin so many elements further
        operands[i]->data = matrices[i]->first;
        operands[i]->ld = matrices[i]->ld;
        operands[i]->stride = matrices[i]->stride;
        for (int64_t batch = 0; batch < test.batch; ++batch)
            arrays[i].push_back(&matrices[i]->at(batch, 0, 0) - kBehind);
        if (test.batches == Batches::pointers)
            operands[i]->array = arrays[i].data(), operands[i]->stride = kBehind;
    }
    // alpha from the device, beta from the host
    problem.alpha.device = &test.alpha;
    problem.beta.value = test.beta;

    const PackedProduct sizes = PackedProduct::of(problem, scheme, nullptr);
    std::vector<double> workspace(sizes.bytes / sizeof(double) + 64);
    auto *const start = reinterpret_cast<void *>((reinterpret_cast<uintptr_t>(workspace.data()) + 255) / 256 * 256);
    const PackedProduct packed = PackedProduct::of(problem, scheme, start);
    {
        const auto bytes = [](const std::vector<float> &memory) { return memory.size() * sizeof(float); };
        const Region of_a(a.memory.data(), bytes(a.memory), Access::read, "A");
        const Region of_b(b.memory.data(), bytes(b.memory), Access::read, "B");
        const Region of_c(c.memory.data(), bytes(c.memory), Access::read_write, "C");
        const Region of_workspace(start, sizes.bytes, Access::read_write, "the workspace",
                                  simulator::Content::undefined);
        const Region of_alpha(&test.alpha, sizeof(float), Access::read, "alpha");
        const Region pointers_a(arrays[0].data(), arrays[0].size() * sizeof(void *), Access::read, "A's pointers");
        const Region pointers_b(arrays[1].data(), arrays[1].size() * sizeof(void *), Access::read, "B's pointers");
        const Region pointers_c(arrays[2].data(), arrays[2].size() * sizeof(void *), Access::read, "C's pointers");
        Device device;
        // The simulator has only clusters of one block: those of short k. Up to 512 of it no block needs others where
        // the device has a multiprocessor for each 16 columns.
        device.multiprocessors = test.k > 64 && test.k <= 512 ? 40 : 1;
        device.sm = test.k <= 512 ? 90 : 80;
        device.has_90a_code = device.sm == 90;
        const Launch launch_on = {&device, nullptr, start, sizes.bytes};
        PackedProduct first = packed, second = packed; // by one launch, or an operand after the other
        if (test.apart)
            first.b.rows = second.a.rows = 0;
        Status status = pack(problem, first, scheme, launch_on);
        if (status == kSuccess && test.apart)
            status = pack(problem, second, scheme, launch_on);
        // Where there are too many small elements, not all exponents are there.
        const bool in_vain =
            scheme == Scheme::f16x2_one && (packed.a.too_many_small() || packed.b.too_many_small()) && test.alpha != 0;
        if (status == kSuccess && !in_vain)
            status = multiply_unfit(problem, packed, launch_on);
        if (status == kSuccess && scheme == Scheme::f16x2_one)
            status = add_small_elements(problem, packed, launch_on);
        const simulator::Fault fault = simulator::take_fault();
        if (fault.kind != simulator::FaultKind::none)
            return report(test, scheme, std::string(simulator::fault_name(fault.kind)) + ": " + fault.text);
        if (status != kSuccess)
            return report(test, scheme, last_error_message());
    }

    std::vector<std::vector<float>> rows_a, rows_b;
    for (int64_t batch = 0; batch < packed.a.batch; ++batch)
        for (int64_t i = 0; i < test.m; ++i) {
            rows_a.emplace_back();
            for (int64_t k = 0; k < test.k; ++k)
                rows_a.back().push_back(a_at(batch, i, k));
        }
    for (int64_t batch = 0; batch < packed.b.batch; ++batch)
        for (int64_t j = 0; j < test.n; ++j) {
            rows_b.emplace_back();
            for (int64_t k = 0; k < test.k; ++k)
                rows_b.back().push_back(b_at(batch, k, j));
        }
    if (test.alpha == 0) // nothing was packed, and nothing may have been stored
        return std::all_of(c.memory.begin(), c.memory.end(), [](float x) { return std::isnan(x) || x == 1.0f; }) ||
               report(test, scheme, "C was written though alpha is 0");
    std::vector<std::vector<Split>> held_a, held_b;
    bool too_many = false;
    if (scheme == Scheme::f16x2_one && !check_small(test, packed, rows_a, rows_b, &too_many))
        return false;
    without_one += too_many;
    if (too_many) // and planes that are not all there, as blocks leave when they find that
        return true;
    if (!check_planes(test, scheme, "A", packed.a, rows_a, &held_a) ||
        !check_planes(test, scheme, "B", packed.b, rows_b, &held_b))
        return false;

    const double u = std::ldexp(1.0, -24), k = static_cast<double>(test.k);
    for (int64_t batch = 0; batch < test.batch; ++batch)
        for (int64_t j = 0; j < test.n; ++j)
            for (int64_t i = 0; i < test.m; ++i) {
                const auto ra = static_cast<size_t>(packed.a.shared_batch(batch) * test.m + i);
                const auto rb = static_cast<size_t>(packed.b.shared_batch(batch) * test.n + j);
                const int32_t ea = packed.a.exponents[ra], eb = packed.b.exponents[rb];
                const bool unfit = ea == kUnfitRow || eb == kUnfitRow;
                unfit_rows += unfit;
                double exact = 0, absolute = 0, product = 0, small = 0, of_small = 0;
                for (size_t l = 0; l < rows_a[ra].size(); ++l) {
                    const double term = double(rows_a[ra][l]) * double(rows_b[rb][l]);
                    exact += term;
                    absolute += std::fabs(term);
                    if (unfit)
                        continue;
                    const Split &x = held_a[ra][l], &y = held_b[rb][l];
                    if (scheme == Scheme::f16x2_one && (is_small(rows_a[ra][l], ea, rows_a[ra].size()) ||
                                                        is_small(rows_b[rb][l], eb, rows_b[rb].size())))
                        small += term, of_small += std::fabs(term);
                    if (scheme == Scheme::f16x2_one)
                        product += x.planes[0] * y.planes[0] + x.planes[0] * y.planes[1] + x.planes[1] * y.planes[0];
                    else if (scheme != Scheme::bf16x3)
                        product += x.planes[0] * y.planes[0] +
                                   std::ldexp(x.planes[0] * y.planes[1] + x.planes[1] * y.planes[0], -kLowPlaneBits);
                    else
                        product += x.planes[0] * y.planes[0] + x.planes[0] * y.planes[1] + x.planes[1] * y.planes[0] +
                                   x.planes[1] * y.planes[1] + x.planes[0] * y.planes[2] + x.planes[2] * y.planes[0];
                }
                const float got = c.at(batch, i, j);
                if (unfit) {
                    const double want = test.alpha * exact + test.beta;
                    const double bound = (k + 2) * u * (std::fabs(test.alpha) * absolute + std::fabs(test.beta)) +
                                         (k * std::fabs(test.alpha) + 2) * std::ldexp(1.0, -149);
                    const bool overflows = std::fabs(test.alpha) * absolute >= std::ldexp(1.0, 127);
                    const bool right = std::isnan(want)   ? std::isnan(got)
                                       : std::isinf(want) ? double(got) == want
                                                          : overflows || std::fabs(double(got) - want) <= bound;
                    if (!right)
                        return report(test, scheme, "an unfit result is wrong: " + std::to_string(got));
                    const float kept = test.beta != 0 ? test.beta : -0.0f;
                    if (test.batch_invariant && !std::isnan(got) &&
                        got != std::fmaf(test.alpha, in_parts(rows_a[ra], rows_b[rb]), kept))
                        return report(test, scheme, "an unfit result is added in another order");
                } else {
                    const double want = 1 + test.alpha * small;
                    with_small += of_small > 0;
                    if (of_small == 0
                            ? got != 1.0f
                            : std::fabs(got - want) > u * (std::fabs(want) + k * std::fabs(test.alpha) * of_small))
                        return report(test, scheme, "a result that planes give was written");
                    const double share = scheme == Scheme::f16x1       ? 16388
                                         : scheme == Scheme::bf16x3    ? 8
                                         : scheme == Scheme::f16x2_one ? 8 + k / 2
                                         : test.k < 128                ? 8
                                                                       : 3 * k / 8;
                    product = std::ldexp(product, ea + eb) + small;
                    if (std::fabs(product - exact) > share * u * absolute * (1 + 1e-9) + std::ldexp(1.0, -149) * k)
                        return report(test, scheme, "planes lose more than their share of the bound");
                }
            }
    return true;
}

// ---- what tests/planes.py has recorded -----------------------------------------------------------------------------

uint64_t checksum(const std::vector<uint16_t> &words) {
    uint64_t total = 0xcbf29ce484222325;
    for (const uint16_t word : words)
        total = (total ^ (word == 0x8000 ? 0 : word)) * 0x100000001b3;
    return total;
}

// Packs rows of A, along k and across, and tells exponents and checksums as the record does.
std::vector<std::string> packed_lines(Scheme scheme, int span, int64_t k, int64_t rows, Op transa) {
    constexpr int kSpans[][2] = {{4, 0}, {12, 40}, {20, -120}, {30, 100}};
    Matrices a(transa == Op::N ? rows : k, transa == Op::N ? k : rows, 1, 0, 1, false, false);
    Matrices b(k, 1, 0, 0, 1, false, false);
    for (int64_t row = 0; row < rows; ++row)
        for (int64_t i = 0; i < k; ++i) {
            const uint64_t random = hash((static_cast<uint64_t>(span * 10000 + k) << 20) + row * k + i);
            const auto [reach, scale] = kSpans[span];
            (transa == Op::N ? a.at(0, row, i) : a.at(0, i, row)) =
                std::ldexp(numbers::uniform(random),
                           static_cast<int>(random % static_cast<uint64_t>(2 * reach + 1)) - reach + scale);
        }
    for (int64_t i = 0; i < k; ++i)
        b.at(0, i, 0) = 1.0f;
    Problem problem;
    problem.transa = transa;
    problem.m = rows, problem.n = 1, problem.k = k;
    problem.a = {a.first, nullptr, a.ld, 0};
    problem.b = {b.first, nullptr, b.ld, 0};
    problem.alpha.value = 1.0f;
    const PackedProduct sizes = PackedProduct::of(problem, scheme, nullptr);
    std::vector<double> workspace(sizes.bytes / sizeof(double) + 64);
    auto *const start = reinterpret_cast<void *>((reinterpret_cast<uintptr_t>(workspace.data()) + 255) / 256 * 256);
    const PackedProduct packed = PackedProduct::of(problem, scheme, start);
    const Region of_a(a.memory.data(), a.memory.size() * sizeof(float), Access::read, "A");
    const Region of_b(b.memory.data(), b.memory.size() * sizeof(float), Access::read, "B");
    const Region of_workspace(start, sizes.bytes, Access::read_write, "the workspace", simulator::Content::undefined);
    Device device;
    device.multiprocessors = 40;
    device.sm = k <= 512 ? 90 : 80;
    device.has_90a_code = device.sm == 90;
    const Status status = pack(problem, packed, scheme, {&device, nullptr, start, sizes.bytes});
    const simulator::Fault fault = simulator::take_fault();
    if (fault.kind != simulator::FaultKind::none || status != kSuccess)
        return {"packing failed: " + fault.text};
    std::vector<std::string> lines;
    const Planes &planes = packed.a;
    for (int64_t row = 0; row < rows; ++row) {
        std::string text = std::string(kSchemeNames[static_cast<int>(scheme)]) + " " + std::to_string(span) + " " +
                           std::to_string(k) + " " + std::to_string(row) + " ";
        if (planes.exponents[row] == kUnfitRow) {
            lines.push_back(text + "unfit");
            continue;
        }
        text += std::to_string(planes.exponents[row]);
        for (int plane = 0; plane < planes.count; ++plane) {
            std::vector<uint16_t> words;
            for (int64_t i = 0; i < k; ++i)
                words.push_back(planes.data[plane * planes.plane() +
                                            (planes.across ? i * planes.ld() + row : row * planes.ld() + i)]);
            char sum[24];
            std::snprintf(sum, sizeof sum, " %016lx", static_cast<unsigned long>(checksum(words)));
            text += sum;
        }
        lines.push_back(text);
    }
    return lines;
}

int check_record(const char *path) {
    std::ifstream file(path);
    std::vector<std::string> recorded;
    for (std::string line; std::getline(file, line);)
        recorded.push_back(line);
    constexpr int64_t kRows = 5;
    constexpr int kSpans = 4;
    for (const Op transa : {Op::T, Op::N}) {
        std::vector<std::string> lines;
        for (const Scheme scheme : {Scheme::f16x2, Scheme::bf16x3, Scheme::f16x1, Scheme::f16x2_one})
            for (int span = 0; span < (scheme == Scheme::f16x2_one ? 1 : kSpans); ++span)
                for (const int64_t k : {40, 130, 600}) {
                    if (scheme == Scheme::f16x2_one && k < 513)
                        continue;
                    for (const std::string &line : packed_lines(scheme, span, k, kRows, transa))
                        lines.push_back(line);
                }
        for (size_t i = 0; i < std::max(lines.size(), recorded.size()); ++i) {
            const std::string got = i < lines.size() ? lines[i] : "nothing",
                              want = i < recorded.size() ? recorded[i] : "nothing";
            if (got != want) {
                std::printf("FAILED %s: %s, where the model has recorded %s\n",
                            transa == Op::N ? "across k" : "along k", got.c_str(), want.c_str());
                ++failures;
            }
        }
    }
    return static_cast<int>(recorded.size());
}

} // namespace

int main(int argc, char **argv) {
    std::setvbuf(stdout, nullptr, _IOLBF, BUFSIZ);
    const int recorded = argc == 2 ? check_record(argv[1]) : 0;
    constexpr int64_t kSizes[][3] = {{1, 1, 1},       {3, 5, 7},     {33, 31, 64},  {32, 64, 65},   {130, 9, 257},
                                     {129, 141, 200}, {5, 129, 128}, {64, 33, 500}, {2, 40, 1030},  {9, 3, 2050},
                                     {1, 2, 8200},    {4, 36, 4100}, {40, 4, 513},  {70, 64, 1100}, {70, 64, 2501}};
    constexpr Op kOps[] = {Op::N, Op::T};
    int cases = 0;
    const auto run = [&](Case test) {
        test.batch_invariant = cases % 2;
        test.apart = cases % 4 > 1;
        for (const Scheme scheme : {Scheme::f16x2, Scheme::bf16x3, Scheme::f16x1, Scheme::f16x2_one}) {
            if (scheme == Scheme::f16x2_one && test.k <= 512)
                continue;
            ++cases;
            simulator::settings.order = cases % 2 ? simulator::Order::ascending : simulator::Order::descending;
            check(test, scheme);
        }
    };
    for (const auto &[m, n, k] : kSizes)
        for (const Op transa : kOps)
            for (const Op transb : kOps)
                for (int values = 0; values <= int(Values::small); ++values) {
                    if (k > 600 && values != int(Values::small) &&
                        (values + (transa == Op::T) * 2 + (transb == Op::T)) % 4 != 0)
                        continue;
                    const int i = cases / 2;
                    run({transa, transb, m, n, k, 1, Batches::strided, i % 3 ? i % 5 : i % 2 * 4, i % 7 < 4 ? 0 : i % 4,
                         static_cast<Values>(values), 1.0f, i % 2 ? 0.0f : 0.5f});
                }
    for (const Batches batches :
         {Batches::strided, Batches::shared_a, Batches::shared_b, Batches::negative, Batches::pointers})
        for (const Op trans : kOps)
            run({trans, trans, 35, 6, 70, 5, batches, 1, 1, Values::special, -0.5f, 1.0f});
    for (const Op trans : kOps)
        run({trans, trans, 35, 6, 70, 2, Batches::strided, 0, 0, Values::special, 0.0f, 0.5f});
    for (const Op trans : kOps) // a block has several tiles with something unfit
        for (const Values values : {Values::rare, Values::special})
            run({trans, trans, 300, 270, 40, 1, Batches::strided, 0, 0, values, 1.0f, 0.5f});
    std::printf(
        "%d cases, %d unfit results, %d with small elements, %d cases with too many, %d recorded rows, %d failures\n",
        cases, unfit_rows, with_small, without_one, recorded, failures);
    return failures != 0 || unfit_rows == 0 || with_small == 0 || without_one == 0 || recorded == 0;
}
