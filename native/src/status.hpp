// The one way an error leaves the library: a status number and a sentence per thread.
#pragma once

#include "pyblas_sgemm.h"

namespace pyblas {

using Status = pyblasStatus_t;
constexpr Status kSuccess = PYBLAS_STATUS_SUCCESS;

// Keeps the sentence for pyblasGetLastErrorMessage() of this thread and returns status.
[[gnu::format(printf, 2, 3)]] Status fail(Status status, const char *format, ...);

const char *status_name(Status status);
const char *last_error_message();

#define PYBLAS_TRY(expression)                                                                                         \
    do {                                                                                                               \
        if (::pyblas::Status try_status_ = (expression); try_status_ != ::pyblas::kSuccess)                            \
            return try_status_;                                                                                        \
    } while (0)

// CUDA's answer turned into ours; cuda_error is a cudaError_t. expression says what was tried.
Status cuda_status(int cuda_error, const char *expression);

#define PYBLAS_CUDA_TRY(expression) PYBLAS_TRY(::pyblas::cuda_status((expression), #expression))

} // namespace pyblas
