// The record of calls that the shims keep: what was taken, what was left to the real library and why, how long it took,
// and how far sampled results are from float64. It is written at exit, as docs/drop-in.md tells. While no record is
// asked for, a call costs one branch.
#pragma once

#include <cstddef>
#include <cstdint>

namespace pyblas::shim {

// What the environment asks of a shim. Read once.
struct Settings {
    const char *report; // PYBLAS_SGEMM_REPORT: the file that the record is appended to at exit; nullptr: none is kept
    int64_t verify;     // PYBLAS_SGEMM_VERIFY: one taken call in so many is checked; 0: none
    double min_flops;   // PYBLAS_SGEMM_MIN_FLOPS: calls of less work than this are declined
};
const Settings &settings() noexcept;
inline bool recording() noexcept {
    return settings().report != nullptr;
}

enum class Type : int { f32 = 0, f16 = 2, bf16 = 14, other = -1 }; // the numbers are cudaDataType's

// What calls have in common that share a row of the record. Column-major. Strings are literals.
struct Shape {
    const char *entry;   // the function that the program called
    Type type, c_type;   // of A and B, of C
    const char *compute; // fp32, fp32_pedantic or tf32; "" where the real library decides
    char transa, transb;
    int64_t m, n, k, batch;

    double flops() const { return 2.0 * double(m) * double(n) * double(k) * double(batch); }
};

struct Row; // stays where it is until the process ends

// Seconds of a clock that only goes forward.
double now() noexcept;

// Counts a call; a declined one with its reason, a literal. Only while recording(). Never nullptr.
Row *record(const Shape &shape, const char *declined, double host_seconds) noexcept;

// What a queued call took on its device, when that is known.
void add_device_time(Row *row, double seconds) noexcept;

// Whether the taken call about to be made is to be checked.
bool sample() noexcept;

// Counts a sampled call that could not be checked.
void skip_check(Row *row) noexcept;

// One product as it lies in memory.
struct Product {
    Shape shape; // batch is not looked at
    float alpha, beta;
    const void *a, *b, *c;
    int64_t lda, ldb, ldc;
    const void *addend = nullptr; // what beta multiplies, where that is not C's old content; its leading dimension,
    int64_t ld_addend = 0;        // 0 for one column that stands for all
};

// Copies `count` pieces of `bytes` bytes, which begin `pitch` bytes apart, to `to`, where they lie without gaps. False:
// it cannot.
using Fetch = bool (*)(void *context, void *to, const void *from, size_t pitch, size_t bytes, size_t count);
bool fetch_from_host(void *, void *to, const void *from, size_t pitch, size_t bytes, size_t count) noexcept;

// Checks parts of one product: all of a small one, else tiles in places that differ from call to call, the last corner
// among them. Made before the call, because it keeps the part of C that is read.
class Check {
public:
    Check(const Product &product, Fetch fetch, void *context) noexcept;
    ~Check();
    Check(const Check &) = delete;
    Check &operator=(const Check &) = delete;

    // After the product is done. Counts the call as checked, or as skipped if something could not be fetched.
    void compare(Row *row) noexcept;

private:
    struct Tiles;
    Tiles *tiles_; // nullptr: it failed
};

} // namespace pyblas::shim
