#include "dispatch.hpp"

#include <cstring>

namespace pyblas {

// A family joins the table here, and only here.
#define PYBLAS_CPU_FAMILIES(X) X(cpu)
#ifdef PYBLAS_HAVE_CUDA
#define PYBLAS_LADDER_FAMILIES(X)                                                                                      \
    X(naive)                                                                                                           \
    X(coalesced)                                                                                                       \
    X(smem_tile) X(thread_tile_1d) X(thread_tile_2d) X(vectorized) X(conflict_free) X(double_buffer) X(async_pipeline)
#define PYBLAS_SHIPPED_FAMILIES(X) X(warp_tile) X(split_k) X(skinny) X(small_batch)
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

} // namespace

const Kernel *kernel_at(int index) {
    return index < 0 ? nullptr : find_row([&](const Kernel &) { return index-- == 0; });
}

const Kernel *kernel_named(const char *name) {
    return find_row([&](const Kernel &kernel) { return std::strcmp(kernel.name, name) == 0; });
}

const char *illegal(const Kernel &kernel, const Problem &problem, const Device &device, size_t workspace_limit) {
    if (kernel.engine != device.engine)
        return kernel.engine == Engine::cpu ? "it computes on host memory and the handle is for a GPU"
                                            : "it runs on a GPU and the handle is for the CPU";
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
    if (kernel.workspace && kernel.workspace(problem, device) > workspace_limit)
        return "it needs more workspace than the limit allows";
    return nullptr;
}

Status select(const Problem &problem, const Device &device, size_t workspace_limit, const Kernel *forced,
              Selection *selection) {
    *selection = {};
    if (forced) {
        if (const char *reason = illegal(*forced, problem, device, workspace_limit))
            return fail(PYBLAS_STATUS_NOT_SUPPORTED, "kernel %s was forced, but %s", forced->name, reason);
        *selection = {forced, forced->cost(problem, device), 1};
        return kSuccess;
    }
    const auto consider = [&](const Kernel &kernel) {
        if (illegal(kernel, problem, device, workspace_limit))
            return false;
        const double seconds = kernel.cost(problem, device);
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
    return kSuccess;
}

} // namespace pyblas
