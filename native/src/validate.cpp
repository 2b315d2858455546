#include "validate.hpp"

#include <algorithm>
#include <cinttypes>
#include <utility>

namespace pyblas {

namespace {

using Wide = __int128; // products of three 64-bit extents

enum Argument {
    kTransa,
    kTransb,
    kM,
    kN,
    kK,
    kAlpha,
    kA,
    kLda,
    kStrideA,
    kB,
    kLdb,
    kStrideB,
    kBeta,
    kC,
    kLdc,
    kStrideC,
    kBatchCount,
    kAtype,
    kBtype,
    kCtype,
    kComputeType,
    kArguments
};

struct Signature {
    const char *name;
    int8_t number[kArguments]; // counted from 1, without the handle; 0: not in this form
};

constexpr Signature kSignatures[] = {
    {"sgemm", {1, 2, 3, 4, 5, 6, 7, 8, 0, 9, 10, 0, 11, 12, 13, 0, 0}},
    {"gemm_strided_batched", {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17}},
    {"gemm_batched", {1, 2, 3, 4, 5, 6, 7, 8, 0, 9, 10, 0, 11, 12, 13, 0, 14}},
    {"gemm_ex", {1, 2, 3, 4, 5, 6, 7, 9, 0, 10, 12, 0, 13, 14, 16, 0, 0, 8, 11, 15, 17}},
    {"gemm_strided_batched_ex", {1, 2, 3, 4, 5, 6, 7, 9, 10, 11, 13, 14, 15, 16, 18, 19, 20, 8, 12, 17, 21}},
    {"selected_kernel", {1, 2, 3, 4, 5, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 6}},
    {"xt_predict", {1, 2, 3, 4, 5, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 6}},
};

const char *argument_name(Form form, Argument argument) {
    constexpr const char *names[kArguments] = {
        "transa",  "transb", "m", "n",   "k",       "alpha",      "A",     "lda",   "strideA", "B",          "ldb",
        "strideB", "beta",   "C", "ldc", "strideC", "batchCount", "Atype", "Btype", "Ctype",   "computeType"};
    if (form == Form::batched) {
        switch (argument) {
        case kA:
            return "Aarray";
        case kB:
            return "Barray";
        case kC:
            return "Carray";
        default:
            break;
        }
    }
    return names[argument];
}

// "sgemm: argument 8 (lda) is ", then what the caller gives.
#define PYBLAS_INVALID(call, argument, format, ...)                                                                    \
    PYBLAS_REFUSE(PYBLAS_STATUS_INVALID_VALUE, call, argument, format, __VA_ARGS__)
#define PYBLAS_REFUSE(status, call, argument, format, ...)                                                             \
    fail(status, "%s: argument %d (%s) is " format, kSignatures[static_cast<int>((call).form)].name,                   \
         kSignatures[static_cast<int>((call).form)].number[argument], argument_name((call).form, argument),            \
         __VA_ARGS__)

Status check_operation(const Call &call, Argument argument, int value) {
    if (value == PYBLAS_OP_N || value == PYBLAS_OP_T || value == PYBLAS_OP_C)
        return kSuccess;
    return PYBLAS_INVALID(call, argument, "%d, must be 0 (N), 1 (T) or 2 (C)", value);
}

bool is_type(int value) {
    return value == PYBLAS_R_32F || value == PYBLAS_R_16F || value == PYBLAS_R_16BF;
}
const char *type_name(int value) {
    return value == PYBLAS_R_32F ? "float32" : value == PYBLAS_R_16F ? "float16" : "bfloat16";
}
Dtype dtype_of(int value) {
    return value == PYBLAS_R_32F ? Dtype::f32 : value == PYBLAS_R_16F ? Dtype::f16 : Dtype::bf16;
}

// A and B of one type; beside float32, C is float32.
Status check_types(const Call &call) {
    for (const auto &[argument, type] :
         {std::pair{kAtype, call.a.type}, std::pair{kBtype, call.b.type}, std::pair{kCtype, call.c.type}})
        if (!is_type(type))
            return PYBLAS_REFUSE(PYBLAS_STATUS_NOT_SUPPORTED, call, argument,
                                 "%d, must be 0 (float32), 2 (float16) or 14 (bfloat16)", type);
    if (call.b.type != call.a.type)
        return PYBLAS_REFUSE(PYBLAS_STATUS_NOT_SUPPORTED, call, kBtype, "%d (%s), must be Atype = %d (%s)", call.b.type,
                             type_name(call.b.type), call.a.type, type_name(call.a.type));
    if (call.a.type == PYBLAS_R_32F && call.c.type != PYBLAS_R_32F)
        return PYBLAS_REFUSE(PYBLAS_STATUS_NOT_SUPPORTED, call, kCtype, "%d (%s), must be 0 (float32) as Atype is",
                             call.c.type, type_name(call.c.type));
    if (call.compute != PYBLAS_COMPUTE_32F && call.compute != PYBLAS_COMPUTE_32F_PEDANTIC &&
        call.compute != PYBLAS_COMPUTE_32F_FAST_TF32)
        return PYBLAS_REFUSE(PYBLAS_STATUS_NOT_SUPPORTED, call, kComputeType,
                             "%d, must be 68 (32F), 69 (32F_PEDANTIC) or 77 (32F_FAST_TF32)", call.compute);
    return kSuccess;
}

Status check_extent(const Call &call, Argument argument, int64_t value) {
    if (value >= 0)
        return kSuccess;
    return PYBLAS_INVALID(call, argument, "%" PRId64 ", must be at least 0", value);
}

// A leading dimension spans the operand's columns in column-major order and its rows in row-major order.
Status check_leading_dimension(const Call &call, Argument argument, int64_t ld, Argument extent_argument,
                               int64_t extent, Argument op_argument, int op) {
    const int64_t least = std::max<int64_t>(1, extent);
    if (ld >= least)
        return kSuccess;
    const char *extent_name = argument_name(call.form, extent_argument);
    const char *order = call.row_major ? " in row-major order" : "";
    if (op_argument == kArguments)
        return PYBLAS_INVALID(call, argument, "%" PRId64 ", must be at least max(1, %s) = %" PRId64 "%s", ld,
                              extent_name, least, order);
    constexpr char letters[] = {'N', 'T', 'C'};
    return PYBLAS_INVALID(call, argument, "%" PRId64 ", must be at least max(1, %s) = %" PRId64 " for %s='%c'%s", ld,
                          extent_name, least, argument_name(call.form, op_argument), letters[op], order);
}

// One operand's addresses must be expressible: rows x columns column-major with ld, batch of them stride apart.
Status check_range(const Call &call, Argument argument, int64_t rows, int64_t columns, int64_t ld, Argument stride_at,
                   int64_t stride, int64_t batch) {
    if (rows <= 0 || columns <= 0)
        return kSuccess;
    const Wide limit = INT64_MAX / 4;
    const Wide one = Wide(columns - 1) * ld + rows;
    const Wide all = one > limit ? one : one + Wide(batch - 1) * (stride < 0 ? -Wide(stride) : Wide(stride));
    if (all > limit && only_asks(call.form))
        return fail(PYBLAS_STATUS_INVALID_VALUE, "%s: matrices of these sizes span more than 2^63 bytes",
                    function_name(call.form));
    if (one > limit)
        return PYBLAS_INVALID(call, argument, "%" PRId64 ", and the matrix spans more than 2^63 bytes", ld);
    if (all > limit)
        return PYBLAS_INVALID(call, stride_at, "%" PRId64 ", and %" PRId64 " matrices span more than 2^63 bytes",
                              stride, batch);
    return kSuccess;
}

// Least x >= 0 with low <= (a * x) mod modulus <= high, or -1; 0 <= a < modulus, 0 <= low <= high < modulus.
// Euclid's descent: an interval without a multiple of a needs a wrap, and the wraps repeat the question modulo a.
Wide first_in_range(Wide a, Wide modulus, Wide low, Wide high) {
    if (low == 0)
        return 0;
    if (a == 0)
        return -1;
    const Wide x = (low + a - 1) / a;
    if (x * a <= high)
        return x;
    const Wide wraps = first_in_range(modulus % a, a, (a - high % a) % a, (a - low % a) % a);
    if (wraps < 0)
        return -1;
    return (low + wraps * modulus + a - 1) / a;
}

// Least d >= 1 with low <= (a * d) mod modulus <= high, or -1.
Wide first_positive_in_range(Wide a, Wide modulus, Wide low, Wide high) {
    if (low <= a && a <= high)
        return 1;
    // With d = x + 1 the interval moves down by a; it holds 0 only if d = 1 solves, so here it does not wrap.
    const Wide x = first_in_range(a, modulus, (low - a + modulus) % modulus, (high - a + modulus) % modulus);
    return x < 0 ? -1 : x + 1;
}

} // namespace

const char *function_name(Form form) {
    return kSignatures[static_cast<int>(form)].name;
}

bool disjoint(int64_t m, int64_t n, int64_t ld, int64_t stride, int64_t batch) {
    if (batch <= 1)
        return true;
    const Wide step = stride < 0 ? -Wide(stride) : Wide(stride);
    const Wide span = Wide(n - 1) * ld + m;
    if (step >= span || (m <= step && Wide(batch - 1) * step + m <= ld))
        return true;
    // Matrices 0 and d meet if |d * step - t * ld| < m for some column distance |t| < n. t grows with d, so of the
    // distances that come near a column, from above (remainder < m) or from below, only the first can settle it.
    const Wide a = step % ld;
    const Wide above = first_positive_in_range(a, ld, 0, m - 1);
    if (above >= 0 && above < batch && above * step / ld < n)
        return false;
    if (m > 1) {
        const Wide below = first_positive_in_range(a, ld, Wide(ld) - (m - 1), Wide(ld) - 1);
        if (below >= 0 && below < batch && below * step / ld + 1 < n)
            return false;
    }
    return true;
}

Verdict validate(const Call &call, bool scalars_on_host, bool arrays_on_host, Problem *problem) {
#define PYBLAS_CHECK(expression)                                                                                       \
    if (const Status status = (expression); status != kSuccess)                                                        \
    return {status, false}

    PYBLAS_CHECK(check_operation(call, kTransa, call.transa));
    PYBLAS_CHECK(check_operation(call, kTransb, call.transb));
    if (has_types(call.form))
        PYBLAS_CHECK(check_types(call));
    PYBLAS_CHECK(check_extent(call, kM, call.m));
    PYBLAS_CHECK(check_extent(call, kN, call.n));
    PYBLAS_CHECK(check_extent(call, kK, call.k));
    PYBLAS_CHECK(check_extent(call, kBatchCount, call.batch));

    // The stored A is m x k or its transpose; a leading dimension counts its rows, or in row-major order its columns.
    const bool a_by_k = (call.transa != PYBLAS_OP_N) != call.row_major;
    const bool b_by_n = (call.transb != PYBLAS_OP_N) != call.row_major;
    PYBLAS_CHECK(check_leading_dimension(call, kLda, call.a.ld, a_by_k ? kK : kM, a_by_k ? call.k : call.m, kTransa,
                                         call.transa));
    PYBLAS_CHECK(check_leading_dimension(call, kLdb, call.b.ld, b_by_n ? kN : kK, b_by_n ? call.n : call.k, kTransb,
                                         call.transb));
    PYBLAS_CHECK(check_leading_dimension(call, kLdc, call.c.ld, call.row_major ? kN : kM,
                                         call.row_major ? call.n : call.m, kArguments, 0));

    if (call.m == 0 || call.n == 0 || call.batch == 0)
        return {kSuccess, true};

    // From here on the stored extents: contiguous (rows) and strided (columns) of each operand.
    const int64_t a_rows = a_by_k ? call.k : call.m, a_columns = a_by_k ? call.m : call.k;
    const int64_t b_rows = b_by_n ? call.n : call.k, b_columns = b_by_n ? call.k : call.n;
    const int64_t c_rows = call.row_major ? call.n : call.m, c_columns = call.row_major ? call.m : call.n;
    const bool strided =
        call.form == Form::strided_batched || call.form == Form::strided_batched_ex || only_asks(call.form);
    const int64_t steps = strided ? call.batch : 1;
    PYBLAS_CHECK(check_range(call, kLdc, c_rows, c_columns, call.c.ld, kStrideC, call.c.stride, steps));
    if (!disjoint(c_rows, c_columns, call.c.ld, call.c.stride, steps))
        return {PYBLAS_INVALID(call, kStrideC,
                               "%" PRId64 ", but %" PRId64 " matrices C of %" PRId64 " x %" PRId64
                               " with ldc = %" PRId64 " must not share elements",
                               call.c.stride, call.batch, call.m, call.n, call.c.ld),
                false};

    const char *home = scalars_on_host ? "host" : "device";
    if (!call.alpha)
        return {PYBLAS_INVALID(call, kAlpha, "NULL, must point to a number in %s memory", home), false};
    if (!call.beta)
        return {PYBLAS_INVALID(call, kBeta, "NULL, must point to a number in %s memory", home), false};

    const bool no_product = call.k == 0 || (scalars_on_host && *call.alpha == 0.0f);
    if (scalars_on_host && no_product && *call.beta == 1.0f)
        return {kSuccess, true};

    if (!call.c.address)
        return {PYBLAS_INVALID(call, kC, "%s", "NULL, must be the output"), false};
    for (const auto &[argument, pointer] : {std::pair{kA, call.a.address}, std::pair{kB, call.b.address}})
        if (!no_product && !pointer)
            return {PYBLAS_INVALID(call, argument, "%s", "NULL, may be so only for k = 0 or alpha = 0"), false};
    if (!no_product) {
        PYBLAS_CHECK(check_range(call, kLda, a_rows, a_columns, call.a.ld, kStrideA, call.a.stride, steps));
        PYBLAS_CHECK(check_range(call, kLdb, b_rows, b_columns, call.b.ld, kStrideB, call.b.stride, steps));
    }

    if (call.form == Form::batched && arrays_on_host) {
        const std::pair<Argument, const void *> arrays[] = {
            {kC, call.c.address}, {kA, call.a.address}, {kB, call.b.address}};
        for (const auto &[argument, array] : arrays)
            for (int64_t i = 0; (argument == kC || !no_product) && i < call.batch; ++i)
                if (!static_cast<const void *const *>(array)[i])
                    return {PYBLAS_INVALID(call, argument, "an array with NULL at position %" PRId64, i), false};
    }
#undef PYBLAS_CHECK

    const auto operand = [&](const Given &matrix) {
        Operand operand;
        operand.dtype = dtype_of(matrix.type);
        if (call.form == Form::batched)
            operand.array = static_cast<void *const *>(matrix.address);
        else
            operand.data = const_cast<void *>(matrix.address);
        operand.ld = matrix.ld;
        operand.stride = matrix.stride;
        return operand;
    };
    const auto scalar = [&](const float *pointer) {
        return scalars_on_host ? Scalar{*pointer, nullptr} : Scalar{0.0f, pointer};
    };
    problem->transa = call.transa == PYBLAS_OP_N ? Op::N : Op::T;
    problem->transb = call.transb == PYBLAS_OP_N ? Op::N : Op::T;
    problem->m = call.m;
    problem->n = call.n;
    problem->k = call.k;
    problem->batch = call.batch;
    problem->a = operand(call.a);
    problem->b = operand(call.b);
    problem->c = operand(call.c);
    problem->alpha = scalar(call.alpha);
    problem->beta = scalar(call.beta);
    if (call.row_major) { // C' = op(B)' op(A)': the stored matrices are the transposes already
        std::swap(problem->transa, problem->transb);
        std::swap(problem->m, problem->n);
        std::swap(problem->a, problem->b);
    }
    return {kSuccess, false};
}

} // namespace pyblas
