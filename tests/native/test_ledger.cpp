// The shims' record of calls: what its lines say, what a check finds, and that a fork divides it.
#include "ledger.hpp"

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <sstream>
#include <string>
#include <sys/wait.h>
#include <unistd.h>
#include <vector>

using namespace pyblas::shim;

namespace {

int failures = 0;

void expect(bool holds, const std::string &what) {
    if (holds)
        return;
    ++failures;
    std::fprintf(stderr, "not so: %s\n", what.c_str());
}

// The column-major product of random matrices with a change to one element; returns the row.
Row *product(int m, int n, int k, char transa, char transb, float beta, float change) {
    const Shape shape = {"sgemm_", Type::f32, Type::f32, "fp32", transa, transb, m, n, k, 1};
    std::vector<float> a(size_t(m) * k), b(size_t(k) * n), c(size_t(m) * n);
    for (auto *matrix : {&a, &b, &c})
        for (float &x : *matrix)
            x = float(std::rand()) / float(RAND_MAX) - 0.5f;
    const int lda = transa == 'N' ? m : k, ldb = transb == 'N' ? k : n;
    Check check({shape, 1.5f, beta, a.data(), b.data(), c.data(), lda, ldb, m}, fetch_from_host, nullptr);
    for (int j = 0; j < n; ++j)
        for (int i = 0; i < m; ++i) {
            double sum = 0;
            for (int l = 0; l < k; ++l)
                sum += double(transa == 'N' ? a[i + size_t(l) * m] : a[l + size_t(i) * k]) *
                       double(transb == 'N' ? b[l + size_t(j) * k] : b[j + size_t(l) * n]);
            float &out = c[i + size_t(j) * m];
            out = float(1.5 * sum + (beta != 0 ? beta * out : 0));
        }
    c[size_t(m) * n - 1] += change;
    Row *row = record(shape, nullptr, 0.25);
    check.compare(row);
    return row;
}

std::vector<std::string> lines(const std::string &path) {
    std::ifstream file(path);
    std::vector<std::string> found;
    for (std::string line; std::getline(file, line);)
        found.push_back(line);
    return found;
}

bool has(const std::string &line, const std::string &part) {
    return line.find(part) != std::string::npos;
}

// Runs the body in a process that ends by exit().
template <class Body>
void in_process(Body body) {
    const pid_t child = fork();
    if (child == 0) {
        body();
        std::exit(failures);
    }
    int status = 0;
    expect(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0,
           "the process ends well");
}

} // namespace

int main() {
    char path[] = "/tmp/ledger-XXXXXX";
    (void)close(mkstemp(path));
    setenv("PYBLAS_SGEMM_REPORT", path, 1);
    setenv("PYBLAS_SGEMM_VERIFY", "3", 1);
    setenv("PYBLAS_SGEMM_MIN_FLOPS", "1e6", 1);
    in_process([] {
        expect(recording() && settings().verify == 3 && settings().min_flops == 1e6, "the settings are read");
        int sampled = 0;
        for (int i = 0; i < 9; ++i)
            sampled += sample();
        expect(sampled == 3, "one call in three is sampled");
        for (const char trans : {'N', 'T'})
            product(40, 33, 50, trans, trans, 0, 0);
        product(40, 33, 50, 'N', 'T', 0.5f, 0);
        product(300, 400, 20, 'T', 'N', -2, 0);    // more tiles than are looked at
        product(300, 400, 21, 'N', 'N', 1, 1e-3f); // wrong in the last element
        const Shape refused = {"sgemm_", Type::f32, Type::f32, "", 'N', 'N', 8, 8, 8, 1};
        skip_check(record(refused, "a reason", 0));
        add_device_time(record(refused, "a reason", 0), 1e-3);
        in_process([&] { record(refused, "in the child", 0); });
    });
    const std::vector<std::string> report = lines(path);
    expect(report.size() == 7, "seven lines, not " + std::to_string(report.size()));
    for (const std::string &line : report) {
        if (has(line, "in the child"))
            expect(has(line, "\"count\": 1,"), line);
        else if (has(line, "a reason"))
            expect(has(line, "\"taken\": false") && has(line, "\"count\": 2,") && has(line, "\"timed\": 1,") &&
                       has(line, "\"skipped\": 1"),
                   line);
        else
            expect(has(line, "\"taken\": true") && has(line, "\"checked\": 1, \"skipped\": 0"), line);
        if (has(line, "\"taken\": true")) {
            const double ratio = std::atof(line.c_str() + line.find("worst_ratio") + 14);
            expect(has(line, "\"k\": 21") ? ratio > 1 : ratio > 0 && ratio < 1, line);
        }
    }
    (void)unlink(path);
    return failures != 0;
}
