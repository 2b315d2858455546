// The exact test of overlapping C matrices against sets of addresses, for every small layout.
#include <cstdio>
#include <set>

#include "validate.hpp"

namespace {

bool brute_force(int64_t m, int64_t n, int64_t ld, int64_t stride, int64_t batch) {
    std::set<int64_t> seen;
    for (int64_t b = 0; b < batch; ++b)
        for (int64_t j = 0; j < n; ++j)
            for (int64_t i = 0; i < m; ++i)
                if (!seen.insert(b * stride + j * ld + i).second)
                    return false;
    return true;
}

} // namespace

int main() {
    long checked = 0, wrong = 0;
    for (int64_t m = 1; m <= 4; ++m)
        for (int64_t n = 1; n <= 5; ++n)
            for (int64_t ld = m; ld <= m + 9; ++ld)
                for (int64_t stride = -30; stride <= 45; ++stride)
                    for (int64_t batch = 1; batch <= 7; ++batch) {
                        ++checked;
                        if (pyblas::disjoint(m, n, ld, stride, batch) != brute_force(m, n, ld, stride, batch)) {
                            std::printf("m=%ld n=%ld ld=%ld stride=%ld batch=%ld\n", long(m), long(n), long(ld),
                                        long(stride), long(batch));
                            ++wrong;
                        }
                    }
    // The extremes of 64 bits neither overflow nor take long.
    const int64_t big = INT64_MAX;
    wrong += pyblas::disjoint(1, 2, big, big, 3);
    wrong += !pyblas::disjoint(1, 1, 1, -big, big);
    wrong += pyblas::disjoint(3, big / 1000003, 1000003, 5, big);
    wrong += !pyblas::disjoint(3, big / 1000003, 1000003, 3, 333334);
    std::printf("%ld layouts, %ld wrong\n", checked, wrong);
    return wrong != 0;
}
