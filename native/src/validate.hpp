// Judges the arguments of a product, in the order of the contract. The caller's names, numbers and order of operands
// are known only here; what comes out is a column-major Problem.
#pragma once

#include "problem.hpp"
#include "status.hpp"

namespace pyblas {

// The argument list a caller wrote: plain, with strides, or with arrays of pointers. The last two only ask about a
// product; all of theirs is operations and sizes.
enum class Form : uint8_t { sgemm, strided_batched, batched, ex, strided_batched_ex, selected_kernel, xt_predict };

// A matrix, or those of a batch, as the caller gave it; for Form::batched the address is that of the array.
struct Given {
    const void *address;
    int64_t ld, stride = 0;
    int type = PYBLAS_R_32F;
};

// One call as it was written.
struct Call {
    Form form;
    bool row_major;
    int transa, transb;
    int64_t m, n, k;
    const float *alpha;
    Given a, b;
    const float *beta;
    Given c; // written
    int64_t batch = 1;
    int compute = PYBLAS_COMPUTE_32F; // of ex
};

// As messages name it.
const char *function_name(Form form);

inline bool has_types(Form form) {
    return form == Form::ex || form == Form::strided_batched_ex;
}

inline bool only_asks(Form form) {
    return form == Form::selected_kernel || form == Form::xt_predict;
}

struct Verdict {
    Status status;
    bool nothing_to_do; // success, and C is not to be touched
};

// Fills problem if there is something to do. scalars_on_host: alpha and beta may be read. arrays_on_host: so may the
// arrays of pointers.
Verdict validate(const Call &call, bool scalars_on_host, bool arrays_on_host, Problem *problem);

// True if batch matrices of m x n with leading dimension ld, stride apart, have no element in common.
bool disjoint(int64_t m, int64_t n, int64_t ld, int64_t stride, int64_t batch);

} // namespace pyblas
