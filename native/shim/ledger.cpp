#include "ledger.hpp"

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cmath>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fcntl.h>
#include <map>
#include <memory>
#include <mutex>
#include <new>
#include <pthread.h>
#include <random>
#include <string>
#include <tuple>
#include <unistd.h>
#include <vector>

namespace pyblas::shim {

struct Row {
    int64_t count = 0;
    double host_seconds = 0;
    int64_t timed = 0; // calls in device_seconds
    double device_seconds = 0;
    int64_t checked = 0, skipped = 0;
    double worst_error = 0; // |C - float64| over |alpha| |A| |B| + |beta| |C|
    double worst_ratio = 0; // |C - float64| over the bound of docs/numerics.md
};

namespace {

struct Key {
    Shape shape;
    const char *declined; // "" if the call was taken

    bool operator<(const Key &other) const {
        const Shape &a = shape, &b = other.shape;
        const auto numbers = [](const Key &key) {
            const Shape &s = key.shape;
            return std::make_tuple(s.m, s.n, s.k, s.batch, s.transa, s.transb, s.type, s.c_type);
        };
        const auto mine = numbers(*this), its = numbers(other);
        if (mine != its)
            return mine < its;
        if (const int order = std::strcmp(a.entry, b.entry))
            return order < 0;
        if (const int order = std::strcmp(a.compute, b.compute))
            return order < 0;
        return std::strcmp(declined, other.declined) < 0;
    }
};

// Never destroyed: calls come as long as the process lives.
struct Ledger {
    std::mutex mutex;
    std::map<Key, Row> rows;
    int64_t taken = 0; // calls that sample() was asked about
    Row lost;          // stands in for a row that there was no memory for
    bool registered = false;
};

Ledger &ledger() {
    static Ledger *const only = new Ledger;
    return *only;
}

const char *type_name(Type type) {
    switch (type) {
    case Type::f32:
        return "float32";
    case Type::f16:
        return "float16";
    case Type::bf16:
        return "bfloat16";
    case Type::other:
        break;
    }
    return "other";
}

void append(std::string *text, const char *format, ...) __attribute__((format(printf, 2, 3)));
void append(std::string *text, const char *format, ...) {
    char line[512];
    va_list arguments;
    va_start(arguments, format);
    const int length = std::vsnprintf(line, sizeof line, format, arguments);
    va_end(arguments);
    text->append(line, std::min(static_cast<size_t>(std::max(length, 0)), sizeof line - 1));
}

// Characters that would end a JSON string do not occur in our literals, but may in a program's name.
std::string plain(const char *name) {
    std::string text;
    for (; *name; ++name)
        text += *name == '"' || *name == '\\' || static_cast<unsigned char>(*name) < ' ' ? '?' : *name;
    return text;
}

// 1e999 is how JSON writes what is larger than any number.
std::string number(double value) {
    char text[32];
    std::snprintf(text, sizeof text, "%.6g", value);
    return std::isfinite(value) ? text : "1e999";
}

std::string lines(const std::map<Key, Row> &rows) {
    std::string text;
    const std::string program = plain(program_invocation_short_name);
    for (const auto &[key, row] : rows) {
        if (!row.count)
            continue;
        const Shape &s = key.shape;
        append(&text, "{\"pid\": %ld, \"program\": \"%.100s\", \"entry\": \"%s\", \"taken\": %s, \"reason\": \"%s\", ",
               static_cast<long>(getpid()), program.c_str(), s.entry, *key.declined ? "false" : "true", key.declined);
        append(&text, "\"type\": \"%s\", \"c_type\": \"%s\", \"compute\": \"%s\", ", type_name(s.type),
               type_name(s.c_type), s.compute);
        append(&text,
               "\"transa\": \"%c\", \"transb\": \"%c\", \"m\": %lld, \"n\": %lld, \"k\": %lld, \"batch\": %lld, ",
               s.transa, s.transb, (long long)s.m, (long long)s.n, (long long)s.k, (long long)s.batch);
        append(&text, "\"count\": %lld, \"host_seconds\": %.9f, \"timed\": %lld, \"device_seconds\": %.9f, ",
               (long long)row.count, row.host_seconds, (long long)row.timed, row.device_seconds);
        append(&text, "\"checked\": %lld, \"skipped\": %lld, \"worst_error\": %s, \"worst_ratio\": %s}\n",
               (long long)row.checked, (long long)row.skipped, number(row.worst_error).c_str(),
               number(row.worst_ratio).c_str());
    }
    return text;
}

// One write, so that processes that share the file do not mix their lines.
void write_report() {
    Ledger &self = ledger();
    std::string text;
    {
        const std::lock_guard<std::mutex> lock(self.mutex);
        text = lines(self.rows);
    }
    if (text.empty())
        return;
    const int file = open(settings().report, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0644);
    if (file < 0)
        return;
    const char *rest = text.data();
    size_t length = text.size();
    while (length) {
        const ssize_t written = write(file, rest, length);
        if (written < 0 && errno == EINTR)
            continue;
        if (written <= 0)
            break;
        rest += written;
        length -= static_cast<size_t>(written);
    }
    (void)close(file);
}

// The parent reports what it did before a fork; the child begins anew. Rows stay where they are.
void begin_anew() {
    for (auto &[key, row] : ledger().rows)
        row = Row();
    ledger().mutex.unlock();
}

Settings read_settings() {
    const auto text = [](const char *name) -> const char * {
        const char *value = std::getenv(name);
        return value && *value ? value : nullptr;
    };
    Settings read = {nullptr, 0, 0};
    // A copy, because the program may change its environment.
    if (const char *path = text("PYBLAS_SGEMM_REPORT"))
        read.report = strdup(path);
    if (const char *every = text("PYBLAS_SGEMM_VERIFY"))
        read.verify = std::max(0LL, std::atoll(every));
    if (const char *flops = text("PYBLAS_SGEMM_MIN_FLOPS"))
        read.min_flops = std::atof(flops);
    return read;
}

} // namespace

const Settings &settings() noexcept {
    static const Settings read = read_settings();
    return read;
}

double now() noexcept {
    return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

Row *record(const Shape &shape, const char *declined, double host_seconds) noexcept {
    Ledger &self = ledger();
    const std::lock_guard<std::mutex> lock(self.mutex);
    if (!self.registered) {
        // Not before the first call: what is registered later runs earlier, while CUDA is still there.
        self.registered = true;
        (void)std::atexit(write_report);
        (void)pthread_atfork([] { ledger().mutex.lock(); }, [] { ledger().mutex.unlock(); }, begin_anew);
    }
    Row *row = &self.lost;
    try {
        row = &self.rows[{shape, declined ? declined : ""}];
    } catch (const std::bad_alloc &) {
    }
    ++row->count;
    row->host_seconds += host_seconds;
    return row;
}

void add_device_time(Row *row, double seconds) noexcept {
    const std::lock_guard<std::mutex> lock(ledger().mutex);
    ++row->timed;
    row->device_seconds += seconds;
}

bool sample() noexcept {
    if (!recording() || settings().verify <= 0)
        return false;
    const std::lock_guard<std::mutex> lock(ledger().mutex);
    return ledger().taken++ % settings().verify == 0;
}

void skip_check(Row *row) noexcept {
    const std::lock_guard<std::mutex> lock(ledger().mutex);
    ++row->skipped;
}

bool fetch_from_host(void *, void *to, const void *from, size_t pitch, size_t bytes, size_t count) noexcept {
    for (size_t i = 0; i < count; ++i)
        std::memcpy(static_cast<char *>(to) + i * bytes, static_cast<const char *>(from) + i * pitch, bytes);
    return true;
}

// ---- checking ----------------------------------------------------------------------------------------------------

namespace {

constexpr int64_t kTile = 16;      // rows and columns of C in a tile
constexpr int64_t kMostTiles = 32; // of one product

size_t size_of(Type type) {
    return type == Type::f32 ? 4 : 2;
}

double widen(const void *data, size_t index, Type type) {
    if (type == Type::f32) {
        float value;
        std::memcpy(&value, static_cast<const char *>(data) + 4 * index, 4);
        return value;
    }
    uint16_t bits;
    std::memcpy(&bits, static_cast<const char *>(data) + 2 * index, 2);
    if (type == Type::bf16) {
        const uint32_t wide = uint32_t{bits} << 16;
        float value;
        std::memcpy(&value, &wide, 4);
        return value;
    }
    const int exponent = bits >> 10 & 31, fraction = bits & 1023;
    double value;
    if (exponent == 31)
        value = fraction ? NAN : INFINITY;
    else
        value = exponent ? std::ldexp(1024 + fraction, exponent - 25) : std::ldexp(fraction, -24);
    return bits & 0x8000 ? -value : value;
}

struct Tile {
    int64_t row, column, rows, columns;
};

// Part of an operand in float64, as vectors along k: vector i is row i of op(A), or column i of op(B).
struct Vectors {
    std::vector<char> raw;
    bool along_k; // whether the elements of a vector lie side by side
    int64_t count;
    Type type;

    double at(int64_t vector, int64_t position, int64_t k) const {
        const int64_t index = along_k ? vector * k + position : position * count + vector;
        return widen(raw.data(), static_cast<size_t>(index), type);
    }
};

} // namespace

struct Check::Tiles {
    Product product;
    Fetch fetch;
    void *context;
    std::vector<Tile> tiles;
    std::vector<std::vector<char>> before; // C as it was; empty where beta is 0

    bool get(std::vector<char> *to, const void *base, int64_t offset, int64_t ld, int64_t side, int64_t count,
             Type type) const {
        const size_t size = size_of(type);
        to->resize(static_cast<size_t>(side * count) * size);
        const char *from = static_cast<const char *>(base) + offset * static_cast<int64_t>(size);
        return to->empty() || fetch(context, to->data(), from, static_cast<size_t>(ld) * size,
                                    static_cast<size_t>(side) * size, static_cast<size_t>(count));
    }
    bool get_c(std::vector<char> *to, const Tile &tile, const void *c, int64_t ldc) const {
        return get(to, c, tile.row + tile.column * ldc, ldc, tile.rows, tile.columns, product.shape.c_type);
    }
    // Vectors first to first + count of an operand whose vectors are its columns, or its rows.
    bool get_vectors(Vectors *to, const void *base, int64_t ld, bool columns, int64_t first, int64_t count) const {
        to->along_k = columns;
        to->count = count;
        to->type = product.shape.type;
        const int64_t k = product.shape.k;
        return columns ? get(&to->raw, base, first * ld, ld, k, count, to->type)
                       : get(&to->raw, base, first, ld, count, k, to->type);
    }

    void choose() {
        const Shape &s = product.shape;
        const int64_t down = (s.m + kTile - 1) / kTile, across = (s.n + kTile - 1) / kTile;
        const auto add = [&](int64_t i, int64_t j) {
            tiles.push_back({i * kTile, j * kTile, std::min(kTile, s.m - i * kTile), std::min(kTile, s.n - j * kTile)});
        };
        if (down * across <= kMostTiles) {
            for (int64_t index = 0; index < down * across; ++index)
                add(index % down, index / down);
            return;
        }
        static thread_local std::mt19937_64 random(std::random_device{}());
        add(down - 1, across - 1);
        while (static_cast<int64_t>(tiles.size()) < kMostTiles)
            add(static_cast<int64_t>(random() % static_cast<uint64_t>(down)),
                static_cast<int64_t>(random() % static_cast<uint64_t>(across)));
    }

    // Relative rounding error of one store to C, and of everything before it.
    double store_error() const {
        return product.shape.c_type == Type::f16 ? 0x1p-11 : product.shape.c_type == Type::bf16 ? 0x1p-8 : 0;
    }
    double sum_error() const {
        const double inputs = std::strcmp(product.shape.compute, "tf32") == 0 ? 0x1p-10 + 0x1p-22 : 0;
        return inputs + (double(product.shape.k) + 2) * 0x1p-24;
    }

    bool compare_tile(size_t index, double *worst_error, double *worst_ratio) const {
        const Tile &tile = tiles[index];
        const Shape &s = product.shape;
        const bool multiplies = product.alpha != 0 && s.k > 0;
        Vectors a, b;
        std::vector<char> after;
        if (!get_c(&after, tile, product.c, product.ldc))
            return false;
        if (multiplies && !(get_vectors(&a, product.a, product.lda, s.transa != 'N', tile.row, tile.rows) &&
                            get_vectors(&b, product.b, product.ldb, s.transb == 'N', tile.column, tile.columns)))
            return false;
        for (int64_t j = 0; j < tile.columns; ++j)
            for (int64_t i = 0; i < tile.rows; ++i) {
                double sum = 0, size = 0;
                for (int64_t l = 0; multiplies && l < s.k; ++l) {
                    const double term = a.at(i, l, s.k) * b.at(j, l, s.k);
                    sum += term;
                    size += std::fabs(term);
                }
                const auto place = static_cast<size_t>(i + j * tile.rows);
                const double old = product.beta != 0 ? product.beta * widen(before[index].data(), place, s.c_type) : 0;
                const double want = (multiplies ? product.alpha * sum : 0) + old;
                const double scale = (multiplies ? std::fabs(product.alpha) * size : 0) + std::fabs(old);
                const double got = widen(after.data(), place, s.c_type);
                // Beyond these a sum may overflow in any order, or be NaN as it should be.
                const double largest = s.c_type == Type::f16 ? 65504 : 0x1p127;
                if (!(scale < largest)) {
                    const bool same = std::isnan(want) ? std::isnan(got) : !std::isfinite(got) || std::isfinite(scale);
                    if (!same)
                        *worst_error = *worst_ratio = INFINITY;
                    continue;
                }
                const double error = std::isfinite(got) ? std::fabs(got - want) : INFINITY;
                const double before_store =
                    sum_error() * scale + (double(s.k) * std::fabs(product.alpha) + 2) * 0x1p-149;
                const double least = s.c_type == Type::f16 ? 0x1p-25 : s.c_type == Type::bf16 ? 0x1p-134 : 0;
                const double bound = before_store + store_error() * (std::fabs(want) + before_store) + least;
                *worst_error = std::max(*worst_error, scale > 0 ? error / scale : error > 0 ? INFINITY : 0);
                *worst_ratio = std::max(*worst_ratio, error / bound);
            }
        return true;
    }
};

Check::Check(const Product &product, Fetch fetch, void *context) noexcept : tiles_(nullptr) {
    try {
        auto tiles = std::make_unique<Tiles>();
        tiles->product = product;
        tiles->fetch = fetch;
        tiles->context = context;
        tiles->choose();
        const void *addend = product.addend ? product.addend : product.c;
        const int64_t ld = product.addend ? product.ld_addend : product.ldc;
        if (product.beta != 0)
            for (const Tile &tile : tiles->tiles)
                if (!tiles->get_c(&tiles->before.emplace_back(), tile, addend, ld))
                    return;
        tiles_ = tiles.release();
    } catch (const std::bad_alloc &) {
    }
}

Check::~Check() {
    delete tiles_;
}

void Check::compare(Row *row) noexcept {
    double error = 0, ratio = 0;
    bool done = tiles_ != nullptr;
    try {
        for (size_t i = 0; done && i < tiles_->tiles.size(); ++i)
            done = tiles_->compare_tile(i, &error, &ratio);
    } catch (const std::bad_alloc &) {
        done = false;
    }
    const std::lock_guard<std::mutex> lock(ledger().mutex);
    if (!done) {
        ++row->skipped;
        return;
    }
    ++row->checked;
    row->worst_error = std::max(row->worst_error, error);
    row->worst_ratio = std::max(row->worst_ratio, ratio);
}

} // namespace pyblas::shim
