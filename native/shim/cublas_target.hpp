// What the two cuBLAS shims answer differently: what stands behind a cuBLAS handle, and who does what is declined.
#pragma once

#include "cublas_call.hpp"

namespace pyblas::shim {

struct Target;

// Behind the handle of the call; nullptr if there is nothing.
Target *target_of(const Call &call) noexcept;

// Queues the product as the target's handle is set, if it is one to take.
Verdict take(Target *target, const Call &call) noexcept;

// The real library's function of that name; nullptr if there is none.
void *real_function(Target *target, Entry entry) noexcept;

// Takes a call, or passes it on as it came.
template <class... Arguments>
cublasStatus_t enter(const Call &call, Arguments... arguments) noexcept {
    const double begin = recording() ? now() : 0;
    Target *target = target_of(call);
    const Verdict verdict = take(target, call);
    if (!verdict.declined)
        return CUBLAS_STATUS_SUCCESS;
    const auto real = reinterpret_cast<cublasStatus_t (*)(Arguments...)>(real_function(target, call.entry));
    const cublasStatus_t status = real ? real(arguments...) : verdict.status;
    if (recording())
        record_declined(call, verdict.declined, now() - begin);
    return status;
}

} // namespace pyblas::shim
