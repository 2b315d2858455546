#include "dispatch.hpp"

#include <cstring>
#include <initializer_list>

#include "cost.hpp"

namespace pyblas {

// A family joins the table here, and only here.
#define PYBLAS_CPU_FAMILIES(X) X(cpu)
#ifdef PYBLAS_HAVE_CUDA
#define PYBLAS_LADDER_FAMILIES(X)                                                                                      \
    X(naive)                                                                                                           \
    X(coalesced)                                                                                                       \
    X(smem_tile)                                                                                                       \
    X(thread_tile_1d)                                                                                                  \
    X(thread_tile_2d)                                                                                                  \
    X(vectorized) X(conflict_free) X(double_buffer) X(async_pipeline) X(wmma_tf32) X(mma_tf32) X(wgmma_tf32)
#define PYBLAS_SHIPPED_FAMILIES(X)                                                                                     \
    X(warp_tile)                                                                                                       \
    X(producer_tile)                                                                                                   \
    X(box_tile)                                                                                                        \
    X(team_tile)                                                                                                       \
    X(split_k)                                                                                                         \
    X(stream_k)                                                                                                        \
    X(skinny)                                                                                                          \
    X(small_batch) X(wgmma) X(wgmma_skinny) X(wgmma_deep) X(mma_split) X(mma_planes) X(half_tile) X(half_wgmma)
#else
#define PYBLAS_LADDER_FAMILIES(X)
#define PYBLAS_SHIPPED_FAMILIES(X)
#endif

#define PYBLAS_DECLARE(family) KernelRows family##_rows();
PYBLAS_CPU_FAMILIES(PYBLAS_DECLARE)
PYBLAS_LADDER_FAMILIES(PYBLAS_DECLARE)
PYBLAS_SHIPPED_FAMILIES(PYBLAS_DECLARE)
#undef PYBLAS_DECLARE

namespace {

// Each walks some families in table order until visit(kernel) says true.
#define PYBLAS_VISIT(family)                                                                                           \
    for (const Kernel &kernel : family##_rows())                                                                       \
        if (visit(kernel))                                                                                             \
            return true;
template <class Visit>
bool visit_cpu(Visit visit) {
    PYBLAS_CPU_FAMILIES(PYBLAS_VISIT)
    return false;
}
template <class Visit>
bool visit_ladder([[maybe_unused]] Visit visit) {
    PYBLAS_LADDER_FAMILIES(PYBLAS_VISIT)
    return false;
}
template <class Visit>
bool visit_shipped([[maybe_unused]] Visit visit) {
    PYBLAS_SHIPPED_FAMILIES(PYBLAS_VISIT)
    return false;
}
#undef PYBLAS_VISIT

template <class Accept>
const Kernel *find_row(Accept accept) {
    const Kernel *found = nullptr;
    const auto visit = [&](const Kernel &kernel) {
        if (!accept(kernel))
            return false;
        found = &kernel;
        return true;
    };
    (void)(visit_ladder(visit) || visit_shipped(visit) || visit_cpu(visit));
    return found;
}

size_t wants(const Kernel &kernel, const Problem &problem, const Device &device) {
    return kernel.workspace ? kernel.workspace(problem, device) : 0;
}

// The problem as far as rows may ask for it.
Problem question_of(const Problem &problem) {
    static float somewhere = 0;
    static void *const some_array[] = {&somewhere};
    Problem question = problem;
    for (Operand *operand : {&question.a, &question.b, &question.c}) {
        operand->data = operand->data ? &somewhere : nullptr;
        operand->array = operand->array ? some_array : nullptr;
    }
    for (Scalar *scalar : {&question.alpha, &question.beta}) {
        scalar->value = scalar->value == 0.0f ? 0.0f : 1.0f;
        scalar->device = scalar->device ? &somewhere : nullptr;
    }
    return question;
}

bool same(const Operand &x, const Operand &y) {
    return x.data == y.data && x.array == y.array && x.ld == y.ld && x.stride == y.stride && x.dtype == y.dtype;
}
bool same(const Scalar &x, const Scalar &y) {
    return x.value == y.value && x.device == y.device;
}
bool same(const Problem &x, const Problem &y) {
    static_assert(sizeof(Problem) == 8 + 4 * 8 + 3 * sizeof(Operand) + 2 * sizeof(Scalar), "nothing is left out here");
    return x.m == y.m && x.n == y.n && x.k == y.k && x.batch == y.batch && x.transa == y.transa &&
           x.transb == y.transb && x.mode == y.mode && x.batch_invariant == y.batch_invariant && same(x.a, y.a) &&
           same(x.b, y.b) && same(x.c, y.c) && same(x.alpha, y.alpha) && same(x.beta, y.beta);
}

// Any number will do that is the same for the same question and seldom for others.
uint64_t place_of(const Problem &question) {
    uint64_t mixed = static_cast<uint64_t>(question.transa) * 2 + static_cast<uint64_t>(question.transb) +
                     static_cast<uint64_t>(question.a.dtype) * 4;
    for (const int64_t size : {question.m, question.n, question.k, question.batch, question.a.ld, question.b.ld})
        mixed = (mixed ^ static_cast<uint64_t>(size)) * 0x9e3779b97f4a7c15;
    return mixed >> 32;
}

} // namespace

const Kernel *kernel_at(int index) {
    return index < 0 ? nullptr : find_row([&](const Kernel &) { return index-- == 0; });
}

const Kernel *kernel_named(const char *name) {
    return find_row([&](const Kernel &kernel) { return std::strcmp(kernel.name, name) == 0; });
}

SumOrder invariant_order(const Problem &problem, const Device &device, size_t workspace_limit) {
    // Below, small products pay too much for packing; above, few outputs do for a single walk of all of k.
    constexpr int64_t kLeastDepth = 512, kMostDepth = 16384, kMostHalfDepth = int64_t{1} << 30;
    if (!device.has_90a_code || problem.mode == ComputeMode::fp32_pedantic)
        return SumOrder::parts;
    if (problem.a.dtype != Dtype::f32)
        return problem.mode == ComputeMode::fp32 && problem.k <= kMostHalfDepth ? SumOrder::halves : SumOrder::parts;
    if (problem.k < kLeastDepth || problem.k > kMostDepth || workspace_limit < kPlanesBytes)
        return SumOrder::parts;
    return problem.mode == ComputeMode::tf32 ? SumOrder::one_plane : SumOrder::two_planes;
}

namespace {

Device within(const Device &device, size_t workspace_limit) {
    Device bounded = device;
    bounded.workspace = workspace_limit;
    return bounded;
}

const char *illegal(const Kernel &kernel, const Problem &problem, const Device &device) {
    if (kernel.engine != device.engine)
        return kernel.engine == Engine::cpu ? "it computes on host memory and the handle is for a GPU"
                                            : "it runs on a GPU and the handle is for the CPU";
    if (!(kernel.types >> static_cast<int>(problem.a.dtype) & 1))
        return "it does not compute with matrices of these types";
    if (!(kernel.modes & modes(problem.mode)))
        return "it does not serve the compute mode";
    if (problem.batch_invariant && !kernel.batch_invariant)
        return "the bits of its rows depend on the sizes, which batch_invariant forbids";
    if (device.sm < kernel.min_sm)
        return "the GPU is older than the kernel needs";
    if (kernel.needs_90a && !device.has_90a_code)
        return "it needs an sm_90 GPU and a build with 90a code";
    if (const char *reason = kernel.refuses(problem, device))
        return reason;
    if (wants(kernel, problem, device) > device.workspace)
        return "it needs more workspace than the limit allows";
    return nullptr;
}

} // namespace

const char *illegal(const Kernel &kernel, const Problem &problem, const Device &device, size_t workspace_limit) {
    return illegal(kernel, problem, within(device, workspace_limit));
}

Status select(const Problem &problem, const Device &any, size_t workspace_limit, const Kernel *forced,
              Selection *selection) {
    const Device device = within(any, workspace_limit);
    *selection = {};
    if (forced) {
        if (const char *reason = illegal(*forced, problem, device))
            return fail(PYBLAS_STATUS_NOT_SUPPORTED, "kernel %s was forced, but %s", forced->name, reason);
        *selection = {forced, predict(*forced, problem, device), wants(*forced, problem, device), 1};
        return kSuccess;
    }
    const SumOrder order = invariant_order(problem, device, workspace_limit);
    const auto consider = [&](const Kernel &kernel) {
        if ((problem.batch_invariant && kernel.sum_order != order) || illegal(kernel, problem, device))
            return false;
        const double seconds = predict(kernel, problem, device);
        if (!selection->kernel || seconds < selection->seconds) {
            selection->kernel = &kernel;
            selection->seconds = seconds;
        }
        ++selection->legal;
        return false;
    };
    if (device.engine == Engine::cpu) {
        visit_cpu(consider);
    } else {
        visit_shipped(consider);
        if (!selection->kernel) // the ladder is there to be called by name, and because naive is always legal
            visit_ladder(consider);
    }
    if (!selection->kernel)
        return fail(PYBLAS_STATUS_NOT_SUPPORTED, "no kernel serves the compute mode%s on this device",
                    problem.batch_invariant ? " with batch_invariant" : "");
    selection->workspace = wants(*selection->kernel, problem, device);
    return kSuccess;
}

Status Choices::select(const Problem &problem, const Device &device, size_t workspace_limit, const Kernel *forced,
                       Selection *selection) {
    if (!answers_)
        answers_ = std::make_unique<Answer[]>(kAnswers);
    const Problem question = question_of(problem);
    Answer &answer = answers_[place_of(question) % kAnswers];
    if (!answer.selection.kernel || answer.workspace_limit != workspace_limit || answer.forced != forced ||
        !same(answer.question, question)) {
        PYBLAS_TRY(pyblas::select(question, device, workspace_limit, forced, selection));
        answer = {question, workspace_limit, forced, *selection};
    }
    *selection = answer.selection;
    return kSuccess;
}

} // namespace pyblas
