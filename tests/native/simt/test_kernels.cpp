// Every row of the simulated families on the simulator: sizes round the borders of its tile, all ops, ld gaps,
// alignments, scalars, batches, special values and offsets beyond 32 bits. Each case runs twice, with other alignments
// and with threads and blocks in other orders, and must give the same bits. Rows that keep batch_invariant must also
// agree with each other, and for products cut out of larger ones.
//
//   test_kernels [family]
#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include <sys/mman.h>
#include <unistd.h>

#include "cost.hpp"
#include "device/partials.cuh"
#include "device/upload.hpp"
#include "kernel.hpp"
#include "numbers.hpp"
#include "simulated_families.hpp"
#include "simulator.hpp"

namespace pyblas {
#define PYBLAS_DECLARE(family) KernelRows family##_rows();
PYBLAS_SIMULATED_FAMILIES(PYBLAS_DECLARE)
#undef PYBLAS_DECLARE
} // namespace pyblas

namespace {

using namespace pyblas;
using numbers::hash;
using simulator::Access;
using simulator::Order;
using simulator::Region;

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr uint32_t kCanary = 0x7fc5a5a5; // a NaN that no arithmetic makes

int failures = 0;

uint32_t bits(float value) {
    uint32_t result;
    std::memcpy(&result, &value, sizeof result);
    return result;
}

template <class T, size_t N>
const T &pick(const T (&choices)[N], uint64_t random) {
    return choices[random % N];
}

// ---- cases ---------------------------------------------------------------------------------------------------------

enum class Values { uniform, wide, integers, special };
enum class Batches { strided, interleaved, shared_a, shared_b, negative, pointers };

struct Case {
    Op transa = Op::N, transb = Op::N;
    int64_t m = 1, n = 1, k = 1, batch = 1;
    int64_t gap_a = 0, gap_b = 0, gap_c = 0; // ld beyond what the matrix needs
    float alpha = 1, beta = 0;
    bool device_scalars = false, batch_invariant = false;
    Values values = Values::uniform;
    Batches batches = Batches::strided;
    int64_t far = 0;    // added to strides between matrices
    bool quads = false; // of four floats everywhere: gaps are longer by what is missing, and operands aligned
    int sample = 1;     // most blocks are left out, and what they would have written stays as it was
    uint64_t seed = 0;

    bool reads_inputs() const { return k > 0 && alpha != 0; }

    std::string text() const {
        constexpr const char *kBatches[] = {"strided", "interleaved", "shared_a", "shared_b", "negative", "pointers"};
        constexpr const char *kValues[] = {"uniform", "wide", "integers", "special"};
        char buffer[320];
        std::snprintf(buffer, sizeof buffer,
                      "%c%c m=%ld n=%ld k=%ld ld gaps %ld %ld %ld alpha=%g beta=%g%s%s%s %s, %ld %s, seed %llu",
                      transa == Op::N ? 'N' : 'T', transb == Op::N ? 'N' : 'T', long(m), long(n), long(k), long(gap_a),
                      long(gap_b), long(gap_c), double(alpha), double(beta), device_scalars ? " (on the device)" : "",
                      quads ? ", quads" : "", batch_invariant ? ", batch-invariant" : "", kValues[int(values)],
                      long(batch), kBatches[int(batches)], static_cast<unsigned long long>(seed));
        return buffer;
    }
};

// Element of an input: the same wherever the operand lies.
float element(Values values, uint64_t seed, int64_t batch, int64_t i, int64_t j) {
    const uint64_t random =
        hash(seed ^ hash(static_cast<uint64_t>(batch) ^ hash(static_cast<uint64_t>(i * 1000003 + j))));
    const float uniform = numbers::uniform(random);
    switch (values) {
    case Values::uniform:
        break;
    case Values::wide:
        return numbers::wide(random, 20);
    case Values::integers:
        return static_cast<float>(static_cast<int>(random % 17) - 8);
    case Values::special:
        switch (random % 61) {
        case 0:
            return kInf;
        case 1:
            return -kInf;
        case 2:
            return kNan;
        case 3:
            return 1e-41f;
        default:
            return random % 7 == 0 ? 0.0f : uniform;
        }
    }
    return uniform;
}

// ---- operands ------------------------------------------------------------------------------------------------------

// Where the matrices of one operand lie, in floats from the first matrix.
struct Shape {
    int64_t rows, columns, ld, stride, batch;

    int64_t low() const { return std::min<int64_t>(0, (batch - 1) * stride); }
    int64_t high() const { return std::max<int64_t>(0, (batch - 1) * stride) + (columns - 1) * ld + rows; }
    int64_t at(int64_t b, int64_t i, int64_t j) const { return b * stride + i + j * ld; }
};

// Memory round an operand. Gaps and margins hold canaries. What is huge is only reserved, and pages appear where there
// are elements.
class Memory {
public:
    Memory(const Shape &shape, int offset) : shape_(shape) {
        const size_t floats = static_cast<size_t>(shape.high() - shape.low()) + 2 * kMargin + 4;
        sparse_ = floats > kDense;
        bytes_ = floats * sizeof(float);
        void *memory = sparse_ ? mmap(nullptr, bytes_, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0)
                               : std::aligned_alloc(64, (bytes_ + 63) / 64 * 64);
        if (!memory || memory == MAP_FAILED) {
            std::perror("no memory for an operand");
            std::exit(1);
        }
        begin_ = static_cast<float *>(memory);
        first_ = begin_ + kMargin + offset - shape.low();
        if (!sparse_)
            std::fill_n(reinterpret_cast<uint32_t *>(begin_), floats, kCanary);
    }
    ~Memory() {
        if (sparse_)
            munmap(begin_, bytes_);
        else
            std::free(begin_);
    }
    Memory(const Memory &) = delete;
    Memory &operator=(const Memory &) = delete;

    const Shape &shape() const { return shape_; }
    float *first() const { return first_; }
    float *begin() const { return first_ + shape_.low(); }
    size_t bytes() const { return static_cast<size_t>(shape_.high() - shape_.low()) * sizeof(float); }
    float &at(int64_t b, int64_t i, int64_t j) const { return first_[shape_.at(b, i, j)]; }

    void set(int64_t b, int64_t i, int64_t j, float value) {
        float &place = at(b, i, j);
        if (sparse_) {
            const auto page = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
            void *start = reinterpret_cast<void *>(reinterpret_cast<uintptr_t>(&place) / page * page);
            if (mprotect(start, page, PROT_READ | PROT_WRITE) != 0) {
                std::perror("no memory for an element");
                std::exit(1);
            }
        }
        place = value;
    }

    // Floats outside of every matrix that have changed.
    int64_t overwritten() const {
        if (sparse_)
            return 0; // the pages that exist are too few to tell more than the simulator does
        const int64_t all = static_cast<int64_t>(bytes_ / sizeof(float));
        std::vector<bool> inside(static_cast<size_t>(all));
        for (int64_t b = 0; b < shape_.batch; ++b)
            for (int64_t j = 0; j < shape_.columns; ++j)
                for (int64_t i = 0; i < shape_.rows; ++i)
                    inside[static_cast<size_t>(&at(b, i, j) - begin_)] = true;
        int64_t changed = 0;
        for (int64_t i = 0; i < all; ++i)
            changed += !inside[static_cast<size_t>(i)] && bits(begin_[i]) != kCanary;
        return changed;
    }

private:
    static constexpr int64_t kMargin = 64;
    static constexpr size_t kDense = size_t{1} << 26;

    Shape shape_;
    bool sparse_;
    size_t bytes_;
    float *begin_, *first_;
};

// The operand as the problem names it: by stride, or by an array of pointers.
struct Named {
    Named(Memory &memory, bool by_pointers) {
        const Shape &shape = memory.shape();
        operand.ld = shape.ld;
        if (by_pointers) {
            for (int64_t b = 0; b < shape.batch; ++b)
                pointers.push_back(memory.first() + b * shape.stride);
            operand.array = pointers.data();
            region = std::make_unique<Region>(pointers.data(), pointers.size() * sizeof(void *), Access::read,
                                              "an array of pointers");
        } else {
            operand.data = memory.first();
            operand.stride = shape.stride;
        }
    }

    std::vector<void *> pointers;
    std::unique_ptr<Region> region;
    Operand operand;
};

int64_t rounded(const Case &test, int64_t floats) {
    return test.quads ? (floats + 3) / 4 * 4 : floats;
}

Shape shape_of(const Case &test, int64_t rows, int64_t columns, int64_t gap, bool shared) {
    const int64_t each = rounded(test, std::max<int64_t>(rows, 1));
    if (test.batches == Batches::interleaved)
        return {rows, columns, rounded(test, each * test.batch + gap), each, test.batch};
    const int64_t ld = rounded(test, each + gap);
    const int64_t extent = rounded(test, (columns - 1) * ld + rows + test.far + 3);
    return {rows, columns, ld, shared ? 0 : test.batches == Batches::negative ? -extent : extent, test.batch};
}

Shape shape_a(const Case &test) {
    const bool plain = test.transa == Op::N;
    return shape_of(test, plain ? test.m : test.k, plain ? test.k : test.m, test.gap_a,
                    test.batches == Batches::shared_a);
}

Shape shape_b(const Case &test) {
    const bool plain = test.transb == Op::N;
    return shape_of(test, plain ? test.k : test.n, plain ? test.n : test.k, test.gap_b,
                    test.batches == Batches::shared_b);
}

Shape shape_c(const Case &test) {
    return shape_of(test, test.m, test.n, test.gap_c, false);
}

float a_at(const Case &test, int64_t b, int64_t i, int64_t l) {
    return element(test.values, test.seed * 3 + 1, test.batches == Batches::shared_a ? 0 : b, i, l);
}
float b_at(const Case &test, int64_t b, int64_t l, int64_t j) {
    return element(test.values, test.seed * 3 + 2, test.batches == Batches::shared_b ? 0 : b, l, j);
}
float c_at(const Case &test, int64_t b, int64_t i, int64_t j) {
    return test.beta == 0 ? kNan : element(test.values, test.seed * 3, b, i, j);
}

// ---- one run -------------------------------------------------------------------------------------------------------

struct Variant {
    int offset_a, offset_b, offset_c; // in floats, from a 64-byte boundary
    Order order;
};

void report(const Kernel &kernel, const Case &test, const std::string &what) {
    if (++failures <= 20)
        std::printf("FAILED %s: %s\n       %s\n", kernel.name, what.c_str(), test.text().c_str());
}

// C's elements after the run, or nothing after a failure.
std::vector<float> run(const Kernel &kernel, const Device &device, const Case &test, const Variant &variant) {
    const auto [offset_a, offset_b, offset_c, order] = variant;
    const bool pointers = test.batches == Batches::pointers;
    std::unique_ptr<Memory> a, b;
    std::vector<std::unique_ptr<Region>> regions;
    Problem problem;
    problem.transa = test.transa;
    problem.transb = test.transb;
    problem.mode = !(kernel.modes & modes(ComputeMode::fp32))                          ? ComputeMode::tf32
                   : test.seed % 2 && kernel.modes & modes(ComputeMode::fp32_pedantic) ? ComputeMode::fp32_pedantic
                                                                                       : ComputeMode::fp32;
    problem.batch_invariant = test.batch_invariant;
    problem.m = test.m, problem.n = test.n, problem.k = test.k, problem.batch = test.batch;

    // Inputs that must not be read do not exist.
    std::unique_ptr<Named> named_a, named_b;
    problem.a.ld = shape_a(test).ld;
    problem.b.ld = shape_b(test).ld;
    if (test.reads_inputs()) {
        a = std::make_unique<Memory>(shape_a(test), offset_a);
        b = std::make_unique<Memory>(shape_b(test), offset_b);
        for (int64_t batch = 0; batch < test.batch; ++batch)
            for (int64_t l = 0; l < test.k; ++l) {
                for (int64_t i = 0; i < test.m; ++i)
                    a->set(batch, test.transa == Op::N ? i : l, test.transa == Op::N ? l : i, a_at(test, batch, i, l));
                for (int64_t j = 0; j < test.n; ++j)
                    b->set(batch, test.transb == Op::N ? l : j, test.transb == Op::N ? j : l, b_at(test, batch, l, j));
            }
        regions.push_back(std::make_unique<Region>(a->begin(), a->bytes(), Access::read, "A"));
        regions.push_back(std::make_unique<Region>(b->begin(), b->bytes(), Access::read, "B"));
        named_a = std::make_unique<Named>(*a, pointers);
        named_b = std::make_unique<Named>(*b, pointers);
        problem.a = named_a->operand;
        problem.b = named_b->operand;
    } else if (pointers) {
        static void *const nowhere[1] = {}; // no region, so reading it is a fault
        problem.a.array = problem.b.array = nowhere;
    }

    Memory c(shape_c(test), offset_c);
    for (int64_t batch = 0; batch < test.batch; ++batch)
        for (int64_t j = 0; j < test.n; ++j)
            for (int64_t i = 0; i < test.m; ++i)
                c.set(batch, i, j, c_at(test, batch, i, j));
    const Region region_c(c.begin(), c.bytes(), test.beta == 0 ? Access::write : Access::read_write, "C");
    const Named named_c(c, pointers);
    problem.c = named_c.operand;

    const float scalars[2] = {test.alpha, test.beta};
    const Region region_scalars(scalars, test.device_scalars ? sizeof scalars : 0, Access::read, "the scalars");
    if (test.device_scalars) {
        problem.alpha.device = scalars;
        problem.beta.device = scalars + 1;
    } else {
        problem.alpha.value = test.alpha;
        problem.beta.value = test.beta;
    }

    const double seconds = predict(kernel, problem, device);
    if (!(seconds > 0 && seconds < 1e30))
        report(kernel, test, "its predicted time is " + std::to_string(seconds));
    const size_t workspace_bytes = kernel.workspace ? kernel.workspace(problem, device) : 0;
    std::unique_ptr<void, decltype(&std::free)> workspace(std::aligned_alloc(256, (workspace_bytes + 511) / 256 * 256),
                                                          &std::free);
    std::memset(workspace.get(), 0xff, workspace_bytes);
    const Region region_workspace(workspace.get(), workspace_bytes, Access::read_write, "the workspace",
                                  simulator::Content::undefined);

    // Every third case has the caller's own workspace, without zeros.
    std::vector<uint32_t> zeros(test.seed % 3 ? kZeros : 0);
    const Region region_zeros(zeros.data(), zeros.size() * sizeof(uint32_t), Access::read_write, "the zeros");

    simulator::settings = {order, device.ordinal, device.shared_per_block, test.sample};
    const Status status = kernel.launch(
        problem, {&device, nullptr, workspace.get(), workspace_bytes, zeros.empty() ? nullptr : zeros.data()});
    const size_t shared = simulator::take_dynamic_shared();
    if (shared > static_cast<size_t>(kernel.footprint.shared_bytes))
        report(kernel, test, "a block has " + std::to_string(shared) + " bytes of shared memory, more than it states");
    const simulator::Fault fault = simulator::take_fault();
    if (fault.kind != simulator::FaultKind::none) {
        report(kernel, test, std::string(simulator::fault_name(fault.kind)) + ": " + fault.text);
        return {};
    }
    if (status != kSuccess) {
        report(kernel, test, last_error_message());
        return {};
    }
    if (std::any_of(zeros.begin(), zeros.end(), [](uint32_t word) { return word != 0; })) {
        report(kernel, test, "it leaves other words than zero where it found zeros");
        return {};
    }
    if (const int64_t changed = c.overwritten()) {
        report(kernel, test, std::to_string(changed) + " floats between or round the matrices C were overwritten");
        return {};
    }
    std::vector<float> result;
    for (int64_t batch = 0; batch < test.batch; ++batch)
        for (int64_t j = 0; j < test.n; ++j)
            for (int64_t i = 0; i < test.m; ++i)
                result.push_back(c.at(batch, i, j));
    return result;
}

// ---- what is right -------------------------------------------------------------------------------------------------

// Within the bound of the mode for one element; products without depth and integers are exact.
bool right(const Kernel &kernel, const Case &test, float got, double sum, double absolute, float old) {
    const double kept = test.beta == 0 ? 0 : double(test.beta) * old;
    if (!test.reads_inputs()) {
        const float expected = test.beta == 1 ? old : test.beta == 0 ? 0.0f : test.beta * old;
        return std::isnan(expected) && test.beta != 1 ? std::isnan(got) : bits(got) == bits(expected);
    }
    const double expected = double(test.alpha) * sum + kept;
    if (!std::isfinite(expected))
        return std::isnan(expected) ? std::isnan(got) : double(got) == expected;
    if (test.values == Values::integers && test.alpha == std::floor(test.alpha) && test.beta == std::floor(test.beta))
        return double(got) == expected;
    const double u = std::ldexp(1.0, -24), k = double(test.k);
    double bound = (k + 2) * u * (std::fabs(test.alpha) * absolute + std::fabs(kept)) +
                   (k * std::fabs(test.alpha) + 2) * std::ldexp(1.0, -149);
    if (!(kernel.modes & modes(ComputeMode::fp32))) // inputs are rounded to TF32, subnormal ones too
        bound += (std::ldexp(1.0, -10) + std::ldexp(1.0, -22)) * std::fabs(test.alpha) * absolute +
                 k * std::fabs(test.alpha) * std::ldexp(1.0, -136);
    return std::fabs(double(got) - expected) <= bound;
}

void compare(const Kernel &kernel, const Case &test, const std::vector<float> &got) {
    size_t index = 0;
    for (int64_t batch = 0; batch < test.batch; ++batch) {
        std::vector<double> a(static_cast<size_t>(test.m * test.k)), b(static_cast<size_t>(test.k));
        if (test.reads_inputs())
            for (int64_t i = 0; i < test.m; ++i)
                for (int64_t l = 0; l < test.k; ++l)
                    a[static_cast<size_t>(i * test.k + l)] = a_at(test, batch, i, l);
        for (int64_t j = 0; j < test.n; ++j) {
            if (test.reads_inputs())
                for (int64_t l = 0; l < test.k; ++l)
                    b[static_cast<size_t>(l)] = b_at(test, batch, l, j);
            for (int64_t i = 0; i < test.m; ++i, ++index) {
                if (test.sample > 1 && index > 0 && index + 1 < got.size() &&
                    bits(got[index]) == bits(c_at(test, batch, i, j)))
                    continue;
                double sum = 0, absolute = 0;
                if (test.reads_inputs())
                    for (int64_t l = 0; l < test.k; ++l) {
                        const double product = a[static_cast<size_t>(i * test.k + l)] * b[static_cast<size_t>(l)];
                        sum += product;
                        absolute += std::fabs(product);
                    }
                if (!right(kernel, test, got[index], sum, absolute, c_at(test, batch, i, j))) {
                    char text[160];
                    std::snprintf(text, sizeof text, "C(%ld, %ld) of batch %ld is %.9g; the sum is %.17g, C was %.9g",
                                  long(i), long(j), long(batch), double(got[index]), sum,
                                  double(c_at(test, batch, i, j)));
                    report(kernel, test, text);
                    return;
                }
            }
        }
    }
}

// ---- the sweep -----------------------------------------------------------------------------------------------------

Device device_of(int ordinal, int sm, int shared) {
    Device device;
    device.engine = Engine::gpu;
    device.ordinal = ordinal;
    device.sm = sm;
    device.multiprocessors = 108;
    device.shared_per_block = shared;
    device.l2_bytes = 40 << 20;
    device.fp32_flops = 19.5e12;
    device.bandwidth = 1.5e12;
    device.launch_seconds = 2e-6;
    return device;
}

Device small_device() {
    return device_of(0, 75, 64 * 1024);
}
Device large_device() {
    Device device = device_of(1, 90, 227 * 1024);
    device.starts_early = true;
    device.has_90a_code = true;
    return device;
}

// Where packing needs no clusters, of which the simulator has those of one block only.
Device split_device() {
    return device_of(1, 80, 163 * 1024);
}

class Sweep {
public:
    Sweep(const Kernel &kernel, bool variant) : kernel_(kernel), variant_(variant) {
        const char *tile = kernel.name + std::strlen(kernel.family) + 1;
        if (std::sscanf(tile, "%ldx%ldx%ld", &bm_, &bn_, &bk_) != 3) {
            std::printf("FAILED %s: its name does not say its tile\n", kernel.name);
            ++failures;
        }
        Case tile_only;
        tile_only.m = bm_, tile_only.n = bn_;
        for (tile_only.k = 1; tile_only.k <= 256 && !takes(tile_only); ++tile_only.k) {
        }
        shift_ = tile_only.k <= 256 ? tile_only.k - 1 : 0;
    }

    void all() {
        edges();
        depths();
        scalars();
        batches();
        far_apart();
        if (kernel_.batch_invariant)
            invariance();
        std::printf("%-28s %5d cases, %d refused\n", kernel_.name, done_, refused_);
        if (done_ == 0)
            ++failures;
    }

private:
    // Both sides round the tile's borders, k round its depth; everything else at random.
    void edges() {
        const long ms[] = {1, 2, 3, 4, 7, bm_ / 2, bm_ - 1, bm_, bm_ + 1, bm_ + 4};
        const long ns[] = {1, 2, 3, 5, 8, bn_ / 2 + 1, bn_ - 1, bn_, bn_ + 1, bn_ + 6};
        const long ks[] = {1, 2, 3, bk_ - 1, bk_, bk_ + 1, 2 * bk_, 2 * bk_ + 1, 3 * bk_ + 3, 4 * bk_ - 1, 5 * bk_};
        const bool large = bm_ * bn_ > 64 * 64;
        bool alike = false; // large tiles take their time: each size gets NN and TT, the next one NT and TN
        for (const long m : ms) {
            alike = !alike;
            for (const long n : ns) {
                alike = !alike;
                for (const Op transa : {Op::N, Op::T})
                    for (const Op transb : {Op::N, Op::T}) {
                        if (large && (transa == transb) != alike)
                            continue;
                        Case test = random_case();
                        if ((variant_ && test.seed % 3 != 0) || (splits() && test.seed % 4 != 0))
                            continue;
                        test.transa = transa, test.transb = transb;
                        test.m = std::max(1L, m), test.n = std::max(1L, n);
                        test.k = deep(std::max(1L, pick(ks, test.seed)));
                        check(test);
                    }
            }
        }
    }

    // Long sums, where kernels change what they do.
    void depths() {
        for (const long k : {63, 64, 65, 127, 128, 129, 255, 256, 257, 272, 511, 512, 513, 528, 769}) {
            Case test = random_case();
            test.m = bm_ / 2 + 3, test.n = 5;
            test.k = std::max<int64_t>(k, shift_ + 1);
            check(test);
            test.transa = test.transa == Op::N ? Op::T : Op::N;
            test.m = 3, test.n = bn_ / 2 + 1;
            check(test);
        }
    }

    void scalars() {
        for (const float alpha : {0.0f, 1.0f, -0.75f, kNan})
            for (const float beta : {0.0f, -0.0f, 1.0f, 0.5f, kNan})
                for (const long k : {0L, bk_ + 1})
                    for (const bool device_scalars : {false, true}) {
                        Case test = random_case();
                        test.m = bm_ + 5, test.n = bn_ / 2 + 3, test.k = k ? deep(k) : 0;
                        test.alpha = alpha, test.beta = beta;
                        test.device_scalars = device_scalars;
                        check(test);
                    }
    }

    void batches() {
        for (const Batches batches : {Batches::strided, Batches::interleaved, Batches::shared_a, Batches::shared_b,
                                      Batches::negative, Batches::pointers})
            for (int i = 0; i < 3; ++i) {
                Case test = random_case();
                test.batches = batches;
                test.batch = 2 + i;
                test.m = i == 0 ? 3 : bm_ / 2 + i, test.n = i == 0 ? 2 : bn_ / 2 + 1, test.k = deep(bk_ + i);
                check(test);
            }
        if (splits())
            return;
        Case many = random_case();
        many.m = many.n = 1, many.k = 1, many.batch = 300, many.batches = Batches::pointers;
        check(many);
        many = random_case(); // more than two of CUDA's launch dimensions have
        many.m = many.n = 1, many.k = 2, many.batch = 66000;
        many.beta = 0.5f, many.values = Values::uniform;
        many.sample = 97;
        check(many);
    }

    // Elements further apart than 32 bits can say, by ld and by stride.
    void far_apart() {
        constexpr int64_t kFar = (int64_t{1} << 31) + 12;
        for (const Op trans : {Op::N, Op::T}) {
            Case test = random_case();
            test.transa = trans;
            test.transb = trans;
            test.m = 3, test.n = 5, test.k = deep(4);
            test.gap_a = kFar, test.gap_b = kFar + 3, test.gap_c = kFar + 1;
            check(test);
            test = random_case();
            test.transa = trans;
            test.m = 2, test.n = 3, test.k = deep(3), test.batch = 2;
            test.far = kFar;
            test.batches = trans == Op::N ? Batches::strided : Batches::negative;
            check(test);
        }
    }

    // Every element has the bits that the first such row of the table gives it in a larger product.
    void invariance() {
        for (const long k : {1, 2, 17, 64, 65, 300, 1025})
            for (const Op transa : kOps)
                for (const Op transb : kOps) {
                    Case whole = random_case();
                    whole.batch_invariant = true;
                    whole.transa = transa, whole.transb = transb;
                    whole.m = whole.n = 37, whole.k = k, whole.batch = 2;
                    whole.device_scalars = false;
                    if (whole.values == Values::special)
                        whole.values = Values::wide; // the payload of a NaN says which of two came first
                    const Variant aligned{0, 0, 0, Order::ascending};
                    const Kernel &first = first_batch_invariant(whole);
                    const std::vector<float> want = run(first, large_device(), whole, aligned);
                    for (const auto &[m, n, batch] :
                         {std::array{37, 37, 2}, std::array{1, 37, 1}, std::array{37, 1, 1}, std::array{4, 5, 2}}) {
                        Case part = whole;
                        part.m = m, part.n = n, part.batch = batch;
                        if (!takes(part))
                            continue;
                        const std::vector<float> got = run(kernel_, large_device(), part, aligned);
                        bool same = got.size() == size_t(m * n * batch) && want.size() == 37 * 37 * 2;
                        for (size_t e = 0; same && e < got.size(); ++e) {
                            const size_t i = e % m, j = e / m % n, b = e / m / n;
                            same = bits(got[e]) == bits(want[(b * 37 + j) * 37 + i]);
                        }
                        if (!same)
                            report(kernel_, part,
                                   std::string("its bits are not those of ") + first.name + " in a larger product");
                    }
                }
    }

    static const Kernel &first_batch_invariant(const Case &test) {
#define PYBLAS_FIND(family)                                                                                            \
    for (const Kernel &kernel : family##_rows())                                                                       \
        if (kernel.batch_invariant && Sweep(kernel, false).takes(test))                                                \
            return kernel;
        PYBLAS_SIMULATED_FAMILIES(PYBLAS_FIND)
#undef PYBLAS_FIND
        std::printf("FAILED: no row keeps batch_invariant\n");
        std::exit(1);
    }

    // Kernels that split numbers take no short sums, and multiply each several times: fewer cases will do.
    bool splits() const { return shift_ > 0; }
    int64_t deep(int64_t k) const { return k + shift_; }

    Case random_case() {
        constexpr float kAlphas[] = {1.0f, -1.0f, 0.7f, 3.0f}, kBetas[] = {0.0f, 1.0f, -0.4f, 2.0f};
        constexpr int64_t kGaps[] = {0, 0, 1, 2, 3, 4, 7};
        constexpr Values kValues[] = {Values::uniform, Values::wide, Values::integers, Values::special};
        Case test;
        test.seed = static_cast<uint64_t>(++next_seed_);
        uint64_t random = hash(test.seed);
        const auto choose = [&](const auto &choices) { return pick(choices, (random = hash(random)) >> 8); };
        test.transa = choose(kOps), test.transb = choose(kOps);
        test.gap_a = choose(kGaps), test.gap_b = choose(kGaps), test.gap_c = choose(kGaps);
        test.alpha = choose(kAlphas), test.beta = choose(kBetas);
        test.device_scalars = hash(random) % 4 == 0;
        test.batch_invariant = kernel_.batch_invariant && hash(random) / 4 % 2 == 0;
        test.values = choose(kValues);
        test.quads = hash(random) / 8 % 4 == 0;
        return test;
    }

    // Whether the kernel takes such a problem. It may ask whether a pointer is there, never for its value.
    bool takes(const Case &test, const Device &device = large_device()) const {
        Problem problem;
        problem.transa = test.transa, problem.transb = test.transb;
        problem.batch_invariant = test.batch_invariant;
        problem.m = test.m, problem.n = test.n, problem.k = test.k, problem.batch = test.batch;
        static void *const somewhere = nullptr;
        if (test.batches == Batches::pointers)
            problem.a.array = problem.b.array = problem.c.array = &somewhere;
        static const float some_scalar = 1;
        if (test.device_scalars)
            problem.alpha.device = problem.beta.device = &some_scalar;
        return !kernel_.refuses(problem, device);
    }

    // Kernels with limits get what they refuse cut to their tile: one side first, then all three, and half of it
    // turned.
    Case fitted(Case test) const {
        if (takes(test))
            return test;
        test.n = std::min<int64_t>(test.n, bn_);
        if (!takes(test)) {
            test.m = std::min<int64_t>(test.m, bm_);
            test.k = std::min<int64_t>(test.k, bk_);
        }
        Case turned = test;
        std::swap(turned.m, turned.n);
        return test.seed % 2 && takes(turned) ? turned : test;
    }

    void check(const Case &asked) {
        const Case test = fitted(asked);
        // Offsets and orders differ between the runs; every fourth first run has all operands aligned.
        const uint64_t random = hash(test.seed + 77);
        const bool aligned = test.quads || random % 4 == 0;
        const auto offset = [&](int shift) { return aligned ? 0 : static_cast<int>(random >> shift & 3); };
        const Variant first{offset(8), offset(10), offset(12), Order::ascending};
        const Variant second{(first.offset_a + 1) % 4, (first.offset_b + 2) % 4, (first.offset_c + 3) % 4,
                             random >> 20 & 1 ? Order::descending : Order::alternating};
        // Where it can, a row shows on the smaller device too that it stays within its shared memory.
        const bool small = random >> 24 & 1 && kernel_.min_sm <= small_device().sm && takes(test, small_device());
        const Device device = small ? small_device() : splits() ? split_device() : large_device();
        if (!takes(test, device)) {
            ++refused_;
            return;
        }
        ++done_;
        const std::vector<float> got = run(kernel_, device, test, first);
        if (got.empty())
            return;
        compare(kernel_, test, got);
        const std::vector<float> again = run(kernel_, device, test, second);
        // A GPU's arithmetic has one NaN; the host's keeps that of the operand which its compiler has named first.
        const auto alike = [](float x, float y) { return bits(x) == bits(y) || (std::isnan(x) && std::isnan(y)); };
        if (!again.empty() && !std::equal(again.begin(), again.end(), got.begin(), alike))
            report(kernel_, test, "the bits depend on alignment or on the order of threads");
    }

    static constexpr Op kOps[] = {Op::N, Op::T};

    const Kernel &kernel_;
    const bool variant_; // of the row before it, with the same tile: a third of the edges will do
    long bm_ = 1, bn_ = 1, bk_ = 1;
    int64_t shift_ = 0; // the least k that it takes, less one
    int next_seed_ = 0, done_ = 0, refused_ = 0;
};

// "warp_tile_128x64x16" without a variant behind it.
std::string family_and_tile(const Kernel &kernel) {
    const size_t family = std::strlen(kernel.family) + 1;
    return std::string(kernel.name, family + std::strspn(kernel.name + family, "0123456789x"));
}

void test_upload() {
    std::vector<void *> source, target(1500);
    for (size_t i = 0; i < target.size() - 1; ++i)
        source.push_back(&target[i]);
    const Region region(target.data(), source.size() * sizeof(void *), Access::write, "uploaded pointers");
    const Status status = upload_pointers(target.data(), source.data(), static_cast<int64_t>(source.size()), nullptr);
    source.push_back(nullptr); // past the end nothing is written
    if (status != kSuccess || source != target) {
        std::printf("FAILED upload_pointers: %s\n", simulator::take_fault().text.c_str());
        ++failures;
    }
}

// Ranges' sums, by single rows and by quads, must be added in one order: those of each lane, then the lanes' own.
void test_partials(int ranges, int64_t rows, float beta) {
    constexpr int64_t kColumns = 37, kBatch = 2;
    constexpr float kAlpha = 3.0f;
    const Device device = large_device();
    Problem problem;
    problem.m = rows, problem.n = kColumns, problem.k = ranges, problem.batch = kBatch;
    problem.alpha.value = kAlpha, problem.beta.value = beta;
    problem.c.ld = rows + 1, problem.c.stride = problem.c.ld * kColumns + 2;

    Partials partials = Partials::of(problem, ranges, nullptr);
    std::vector<float> memory(partials.bytes() / sizeof(float));
    partials.data = memory.data();
    for (int64_t i = 0; i < partials.range() * ranges; ++i)
        partials.data[i] = (static_cast<float>(hash(static_cast<uint64_t>(i)) % 20001) - 10000) / 3;
    const Region region(partials.data, partials.bytes(), Access::read, "partial sums");
    int lanes = 1;
    while (lanes < 32 && lanes * 8 < ranges)
        lanes *= 2;
    const int each = (ranges + lanes - 1) / lanes;

    const auto old = [](int64_t i) { return static_cast<float>(i % 7) / 7; };
    for (const bool by_quads : {false, true}) {
        std::vector<float> c(static_cast<size_t>(problem.c.stride * kBatch));
        for (size_t i = 0; i < c.size(); ++i)
            c[i] = old(static_cast<int64_t>(i));
        const Region region_c(c.data(), c.size() * sizeof(float), beta == 0 ? Access::write : Access::read_write, "C");
        problem.c.data = c.data();
        const Launch launch_on{&device, nullptr, nullptr, 0};
        simulator::settings = {Order::alternating, device.ordinal, device.shared_per_block, 1};
        const Status status =
            by_quads ? add_partials_by_quads(problem, partials, launch_on) : add_partials(problem, partials, launch_on);
        bool right = status == kSuccess && simulator::take_fault().kind == simulator::FaultKind::none;
        for (int64_t i = 0; i < problem.c.stride * kBatch; ++i) {
            const int64_t batch = i / problem.c.stride, column = i % problem.c.stride / problem.c.ld;
            const int64_t row = i % problem.c.stride % problem.c.ld;
            float want = old(i); // in gaps
            if (row < rows && column < kColumns) {
                float total = 0;
                for (int first = 0; first < ranges; first += each) {
                    float sum = 0;
                    for (int range = first; range < std::min(first + each, ranges); ++range)
                        sum += partials.data[range * partials.range() + batch * partials.matrix() +
                                             column * partials.ld + row];
                    total = first == 0 ? sum : total + sum;
                }
                want = std::fma(kAlpha, total, beta == 0 ? -0.0f : beta * want);
            }
            right &= bits(c[static_cast<size_t>(i)]) == bits(want);
        }
        if (!right) {
            std::printf("FAILED sums of %d ranges, %ld rows%s\n", ranges, static_cast<long>(rows),
                        by_quads ? ", by quads" : "");
            ++failures;
        }
    }
}

} // namespace

int main(int argc, char **argv) {
    std::setvbuf(stdout, nullptr, _IOLBF, BUFSIZ); // what was found before a crash is told
    const std::string only = argc > 1 ? argv[1] : "";
    std::string before;
    int rows_run = 0;
#define PYBLAS_RUN(family)                                                                                             \
    if (only.empty() || only == #family)                                                                               \
        for (const Kernel &kernel : family##_rows()) {                                                                 \
            const std::string tile = family_and_tile(kernel);                                                          \
            Sweep(kernel, tile == before).all();                                                                       \
            before = tile;                                                                                             \
            ++rows_run;                                                                                                \
        }
    PYBLAS_SIMULATED_FAMILIES(PYBLAS_RUN)
#undef PYBLAS_RUN
    test_upload();
    for (const int ranges : {1, 7, 8, 9, 40, 300})
        for (const int64_t rows : {1, 4, 6})
            for (const float beta : {0.0f, 0.5f})
                test_partials(ranges, rows, beta);
    std::printf("%d rows, %d failures\n", rows_run, failures);
    return failures != 0 || rows_run == 0;
}
