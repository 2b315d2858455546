// Selection without a GPU: devices made up from published figures, shapes of every family, and the kernel each pair
// takes, compared with a recorded list. `test_dispatch FILE` compares, `test_dispatch --update FILE` records anew after
// a change that is meant.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <iterator>
#include <random>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "cost.hpp"
#include "device.hpp"
#include "dispatch.hpp"
#include "engine.hpp"
#include "workspace.hpp"

using namespace pyblas;

namespace {

constexpr char kArchitectures[] = "75 80 86 89 90a 100 120 80-ptx";

struct Model {
    const char *name;
    int sm, multiprocessors;
    double clock_hz, bandwidth;
    int64_t l2_bytes;
    int shared_per_block;
};
constexpr Model kModels[] = {
    {"T4", 75, 40, 1.59e9, 0.30e12, 4 << 20, 64 << 10},        {"A100", 80, 108, 1.41e9, 1.9e12, 40 << 20, 163 << 10},
    {"A10", 86, 72, 1.70e9, 0.57e12, 6 << 20, 99 << 10},       {"L4", 89, 58, 2.04e9, 0.28e12, 48 << 20, 99 << 10},
    {"H200", 90, 132, 1.98e9, 4.59e12, 60 << 20, 227 << 10},   {"B200", 100, 148, 1.96e9, 7.6e12, 126 << 20, 227 << 10},
    {"RTX 5090", 120, 170, 2.4e9, 1.7e12, 96 << 20, 99 << 10},
};

struct Shape {
    int64_t m, n, k, batch;
};
constexpr Shape kShapes[] = {
    {1, 1, 1, 1},          {64, 64, 64, 1},       {128, 128, 128, 1},    {256, 256, 256, 1},
    {512, 512, 512, 1},    {1024, 1024, 1024, 1}, {2048, 2048, 2048, 1}, {4096, 4096, 4096, 1},
    {8192, 8192, 8192, 1}, {1001, 777, 513, 1},   {127, 129, 131, 1},    {1, 4096, 4096, 1},
    {16, 4096, 4096, 1},   {4096, 8, 4096, 1},    {128, 4096, 14336, 1}, {65536, 256, 256, 1},
    {256, 256, 65536, 1},  {1048576, 16, 16, 1},  {32, 32, 262144, 1},   {128, 128, 64, 384},
    {2048, 2048, 64, 64},  {8, 8, 8, 100000},     {32, 32, 32, 10000},   {100, 100, 100, 500},
    {256, 256, 256, 512},  {4, 4096, 4096, 1},    {8, 4096, 4096, 1},    {2, 4096, 4096, 1},
    {32, 4096, 4096, 1},   {1, 2048, 128, 1024},  {1, 128, 2048, 1024},  {33, 33, 903168, 1},
    {16, 16, 1048576, 1},  {64, 4096, 4096, 1},   {256, 256, 4096, 1},   {4, 4, 4, 100000},
    {5, 7, 9, 65536},      {16, 16, 16, 10000},   {1048576, 3, 64, 1},   {4096, 1, 4096, 1},
    {16, 14336, 4096, 1},  {48, 4096, 4096, 1},   {48, 48, 65536, 1},    {64, 64, 64, 2000},
    {10, 10, 65536, 1},    {300, 200, 20, 1},     {33, 494, 3, 1},       {16, 1048576, 16, 1},
    {768, 768, 768, 1},    {1536, 1536, 1536, 1}, {3072, 3072, 3072, 1}, {16384, 16384, 16384, 1},
    {512, 4096, 4096, 1},  {76, 160, 3292, 1},    {48, 48, 48, 4000},    {96, 96, 96, 1000},
    {64, 128, 128, 384},
};
constexpr Shape kHalfShapes[] = {{64, 64, 64, 1},       {256, 256, 256, 1},    {1024, 1024, 1024, 1},
                                 {4096, 4096, 4096, 1}, {8192, 8192, 8192, 1}, {16, 4096, 4096, 1},
                                 {256, 256, 65536, 1},  {128, 128, 64, 384},   {2048, 2048, 64, 64},
                                 {4095, 4097, 4093, 1}, {8, 8, 8, 100000}};
constexpr Shape kPedanticShapes[] = {{2047, 2049, 1023, 1}, {2049, 2047, 1023, 1}, {4095, 4097, 4093, 1},
                                     {4097, 4095, 4093, 1}, {64, 4096, 1024, 1},   {1728, 1088, 896, 1},
                                     {14720, 64, 896, 1},   {552, 420, 116, 38}}; // for multiply-adds alone

Problem problem_of(const Shape &shape, Op transa, Op transb) {
    Problem problem;
    problem.transa = transa;
    problem.transb = transb;
    problem.m = shape.m;
    problem.n = shape.n;
    problem.k = shape.k;
    problem.batch = shape.batch;
    problem.a.ld = transa == Op::N ? shape.m : shape.k;
    problem.b.ld = transb == Op::N ? shape.k : shape.n;
    problem.c.ld = shape.m;
    problem.a.stride = shape.m * shape.k;
    problem.b.stride = shape.k * shape.n;
    problem.c.stride = shape.m * shape.n;
    problem.alpha.value = 1.0f;
    return problem;
}

constexpr size_t kWorkspace = Workspace::kDefaultLimit;
int failures = 0;

void expect(bool fact, const std::string &what) {
    if (!fact) {
        std::printf("FAILED: %s\n", what.c_str());
        ++failures;
    }
}

// What each device takes for each shape; the four op pairs stand on one line if they agree.
std::string choices(std::set<std::string> *winners, bool batch_invariant, ComputeMode mode = ComputeMode::fp32,
                    Dtype type = Dtype::f32) {
    std::ostringstream out;
    for (const Model &model : kModels) {
        const Device device = gpu_model(model.sm, model.multiprocessors, model.clock_hz, model.bandwidth,
                                        model.l2_bytes, model.shared_per_block, kArchitectures);
        // Without tensor cores most devices choose as with them.
        if (mode != ComputeMode::fp32 && !device.has_90a_code)
            continue;
        std::vector<Shape> shapes(std::begin(kShapes), std::end(kShapes));
        if (type != Dtype::f32)
            shapes.assign(std::begin(kHalfShapes), std::end(kHalfShapes));
        else if (mode == ComputeMode::fp32_pedantic)
            shapes.insert(shapes.end(), std::begin(kPedanticShapes), std::end(kPedanticShapes));
        for (const Shape &shape : shapes) {
            std::string names;
            for (const Op transa : {Op::N, Op::T})
                for (const Op transb : {Op::N, Op::T}) {
                    Selection selection;
                    Problem problem = problem_of(shape, transa, transb);
                    problem.batch_invariant = batch_invariant;
                    problem.mode = mode;
                    problem.a.dtype = problem.b.dtype = problem.c.dtype = type;
                    const Status status = select(problem, device, kWorkspace, nullptr, &selection);
                    expect(status == kSuccess, std::string("selection on ") + model.name);
                    if (status != kSuccess)
                        continue;
                    expect(selection.seconds > 0 && selection.seconds < 1e6,
                           std::string("a sensible prediction of ") + selection.kernel->name);
                    if (winners)
                        winners->insert(selection.kernel->name);
                    expect(!batch_invariant || selection.kernel->batch_invariant,
                           std::string(selection.kernel->name) + " keeps batch_invariant");
                    const std::string name = selection.kernel->name;
                    if (names != name)
                        names += (names.empty() ? "" : " ") + name;
                }
            out << model.name << (batch_invariant ? " batch-invariant" : "")
                << (mode == ComputeMode::fp32_pedantic ? " pedantic"
                    : mode == ComputeMode::tf32        ? " tf32"
                                                       : "")
                << (type == Dtype::f32 ? "" : " float16") << " m=" << shape.m << " n=" << shape.n << " k=" << shape.k
                << " batch=" << shape.batch << ": " << names << "\n";
        }
    }
    return out.str();
}

// What the H200 takes for many more shapes, which are not recorded: sizes spread evenly in their logarithms.
void add_winners(std::set<std::string> *winners) {
    const Device device = gpu_model(90, 132, 1.98e9, 4.59e12, 60 << 20, 227 << 10, kArchitectures);
    std::minstd_rand random;
    const auto size = [&](double most) {
        return static_cast<int64_t>(std::exp(std::log(most) * random() / random.max()) + 0.5);
    };
    for (int count = 0; count < 1000; ++count) {
        const int64_t to = count % 2 ? 1 : 4; // quads, or not
        const auto side = [&] { return std::max<int64_t>(1, size(9000) / to * to); };
        const Shape shape{side(), side(), side(), count % 3 ? 1 : size(2000)};
        for (const ComputeMode mode : {ComputeMode::fp32_pedantic, ComputeMode::fp32, ComputeMode::tf32})
            for (const Op transa : {Op::N, Op::T})
                for (const Op transb : {Op::N, Op::T}) {
                    Problem problem = problem_of(shape, transa, transb);
                    problem.mode = mode;
                    Selection selection;
                    if (select(problem, device, kWorkspace, nullptr, &selection) == kSuccess)
                        winners->insert(selection.kernel->name);
                }
    }
}

void compare(const std::string &got, const char *path) {
    std::ifstream file(path);
    const std::string want((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
    std::istringstream got_lines(got), want_lines(want);
    std::string line, recorded;
    while (std::getline(got_lines, line)) {
        std::getline(want_lines, recorded);
        expect(line == recorded, "'" + line + "', recorded is '" + recorded + "'");
        recorded.clear();
    }
    expect(!std::getline(want_lines, recorded), "the recorded list is longer");
}

void check_gpu_rows(int count, char **arguments) {
    std::set<std::string> winners;
    const std::string got =
        choices(&winners, false) + choices(&winners, true) + choices(&winners, false, ComputeMode::fp32_pedantic) +
        choices(&winners, false, ComputeMode::tf32) + choices(&winners, false, ComputeMode::fp32, Dtype::f16);
    std::set<std::string> more_winners;
    add_winners(&more_winners);
    for (int i = 0; const Kernel *kernel = kernel_at(i); ++i) {
        const std::string family = kernel->family;
        bool ladder = false; // its steps are there to be called by name
        for (const char *step :
             {"naive", "coalesced", "smem_tile", "thread_tile_1d", "thread_tile_2d", "vectorized", "conflict_free",
              "double_buffer", "async_pipeline", "wmma_tf32", "mma_tf32", "wgmma_tf32"})
            ladder |= family == step;
        // Half as fast as f16x2, and what that cannot hold goes to multiply-adds.
        const bool by_name = ladder || std::strcmp(kernel->name, "wgmma_128x128x64_bf16x3") == 0;
        const bool wins = winners.count(kernel->name) || (!by_name && more_winners.count(kernel->name));
        expect(kernel->engine == Engine::cpu || wins == !by_name,
               std::string(kernel->name) + (by_name ? " wins nowhere" : " wins somewhere"));
    }
    if (count == 3 && std::strcmp(arguments[1], "--update") == 0)
        std::ofstream(arguments[2]) << got;
    else if (count == 2)
        compare(got, arguments[1]);
    else
        expect(false, "usage: test_dispatch [--update] FILE");

    // naive is right for everything, also without workspace and on the least device.
    const Device least = gpu_model(75, 1, 1e9, 1e11, 1 << 20, 48 << 10, "75");
    const Kernel *naive = kernel_named("naive_32x32x1");
    expect(naive, "there is naive_32x32x1");
    for (const Shape &shape : kShapes)
        expect(naive && !illegal(*naive, problem_of(shape, Op::T, Op::T), least, 0), "naive is legal everywhere");

    // A kernel that a device cannot run is refused by name, with the reason.
    Selection selection;
    const Kernel *cpu = nullptr;
    for (int i = 0; const Kernel *kernel = kernel_at(i); ++i)
        if (kernel->engine == Engine::cpu)
            cpu = kernel;
    expect(cpu &&
               select(problem_of(kShapes[0], Op::N, Op::N), least, 0, cpu, &selection) == PYBLAS_STATUS_NOT_SUPPORTED,
           "a CPU kernel is refused on a GPU");
    expect(std::strstr(last_error_message(), "was forced, but"), "and says why");
}

void check_table() {
    std::set<std::string> names;
    for (int i = 0; const Kernel *kernel = kernel_at(i); ++i) {
        expect(names.insert(kernel->name).second, std::string(kernel->name) + " stands once in the table");
        expect(std::strncmp(kernel->name, kernel->family, std::strlen(kernel->family)) == 0,
               std::string(kernel->name) + " begins with its family");
        expect(kernel_named(kernel->name) == kernel, std::string(kernel->name) + " is found by its name");
        expect(kernel->modes != 0, std::string(kernel->name) + " serves a mode");
        expect(kernel->work ? rates_of(kernel->name) != nullptr : kernel->cost != nullptr,
               std::string(kernel->name) + " predicts its time");
        const Footprint &footprint = kernel->footprint;
        expect(kernel->engine == Engine::cpu ||
                   (footprint.threads % 32 == 0 && footprint.registers() >= 32 && footprint.shared_bytes <= 227 << 10),
               std::string(kernel->name) + " states its footprint");
    }
    expect(!kernel_at(-1) && !kernel_named("") && !kernel_named("fast"), "nothing else is found");
}

void check_architectures() {
    expect(architecture_supported(80, "80") && architecture_supported(86, "80") && !architecture_supported(75, "80"),
           "machine code serves later minor versions of its generation");
    expect(!architecture_supported(90, "80") && architecture_supported(90, "80-ptx") &&
               architecture_supported(120, "80-ptx") && !architecture_supported(75, "80-ptx"),
           "PTX serves everything later");
    expect(architecture_supported(90, "75 90a") && !architecture_supported(100, "90a"), "90a is for 9.0 only");
    expect(!architecture_supported(90, ""), "a build without CUDA serves none");
}

// Kept answers are those that select() gives, whatever was asked before, and addresses do not make new questions.
void check_kept_choices() {
    const Model &model = kModels[4];
    const Device device = gpu_model(model.sm, model.multiprocessors, model.clock_hz, model.bandwidth, model.l2_bytes,
                                    model.shared_per_block, kArchitectures);
    const Kernel *const naive = kernel_named("naive_32x32x1");
    static float somewhere[2];
    Choices choices;
    for (int round = 0; round < 3; ++round)
        for (const Shape &shape : kShapes)
            for (const Op trans : {Op::N, Op::T})
                for (int change = 0; change < 8; ++change) {
                    Problem problem = problem_of(shape, trans, Op::N);
                    problem.a.data = problem.b.data = problem.c.data = somewhere + round % 2;
                    problem.alpha.value = static_cast<float>(1 + round);
                    const Problem plain = problem;
                    if (change == 1)
                        problem.alpha.value = 0;
                    if (change == 2)
                        problem.beta.value = 0.5f;
                    if (change == 3)
                        problem.alpha.device = problem.beta.device = somewhere;
                    if (change == 4)
                        problem.a.ld += 1;
                    if (change == 5)
                        problem.batch_invariant = true;
                    const size_t limit = change == 6 ? 0 : kWorkspace;
                    const Kernel *const forced = change == 7 ? naive : nullptr;
                    Selection kept, fresh;
                    expect(choices.select(problem, device, limit, forced, &kept) == kSuccess &&
                               select(problem, device, limit, forced, &fresh) == kSuccess &&
                               kept.kernel == fresh.kernel && kept.seconds == fresh.seconds &&
                               kept.workspace == fresh.workspace && kept.legal == fresh.legal,
                           "a kept choice is the one that is made");
                    expect(choices.select(plain, device, kWorkspace, nullptr, &kept) == kSuccess &&
                               select(plain, device, kWorkspace, nullptr, &fresh) == kSuccess &&
                               kept.kernel == fresh.kernel && kept.workspace == fresh.workspace,
                           "and does not stand in the way of another");
                }
    Selection selection;
    const Kernel *cpu = kernel_named("cpu_naive");
    for (int i = 0; i < 2; ++i)
        expect(choices.select(problem_of(kShapes[0], Op::N, Op::N), device, 0, cpu, &selection) ==
                   PYBLAS_STATUS_NOT_SUPPORTED,
               "a refusal is not kept as an answer");
}

// Less workspace cuts the planes smaller before it takes them away, and nothing asks for more than there is.
void check_workspace() {
    const Model &h200 = kModels[4];
    const Device device = gpu_model(h200.sm, h200.multiprocessors, h200.clock_hz, h200.bandwidth, h200.l2_bytes,
                                    h200.shared_per_block, kArchitectures);
    for (const Shape &shape : {Shape{4096, 4096, 4096, 1}, Shape{1024, 1024, 1024, 16}, Shape{2000, 3000, 1000, 3}}) {
        const Problem problem = problem_of(shape, Op::N, Op::N);
        size_t most = 0;
        for (int bits = 16; bits < 33; ++bits) {
            const size_t limit = size_t{1} << bits;
            Selection selection;
            expect(select(problem, device, limit, nullptr, &selection) == kSuccess && selection.workspace <= limit,
                   "a kernel is found within any limit");
            const bool planes = std::strcmp(selection.kernel->family, "wgmma") == 0;
            const bool one_plane = std::strcmp(selection.kernel->family, "wgmma_skinny") == 0; // of one operand
            expect(planes || one_plane || bits < 26, "64 MiB are enough for planes of a part");
            expect(!planes || selection.workspace >= most, "and more of them hold more");
            if (planes)
                most = selection.workspace;
        }
    }
}

void check_cpu() {
    const Device device = cpu::device();
    for (const Shape &shape : kShapes)
        for (const Op transa : {Op::N, Op::T})
            for (const bool batch_invariant : {false, true}) {
                Selection selection;
                Problem problem = problem_of(shape, transa, Op::N);
                problem.batch_invariant = batch_invariant;
                expect(select(problem, device, 0, nullptr, &selection) == kSuccess &&
                           selection.kernel->engine == Engine::cpu,
                       "every shape has a CPU kernel");
            }
}

} // namespace

int main(int count, char **arguments) {
    check_table();
    check_architectures();
    check_cpu();
    if (kernel_at(0)->engine == Engine::gpu) {
        check_gpu_rows(count, arguments);
        check_kept_choices();
        check_workspace();
    }
    std::printf("%d failures\n", failures);
    return failures != 0;
}
