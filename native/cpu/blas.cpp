#include "blas.hpp"

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <initializer_list>

#include <dlfcn.h>
#include <pthread.h>
#include <sched.h>

namespace pyblas::cpu {
namespace {

constexpr int kColumnMajor = 102, kPlain = 111, kTransposed = 112;
// OpenBLAS has a fixed table of work areas and ends the process when it is full, so the number of threads inside is
// limited; its smallest builds have room for more than this.
constexpr int kMostCallers = 32;

using SgemmFunction = void (*)(int, int, int, int, int, int, float, const float *, int, const float *, int, float,
                               float *, int);

std::atomic<BlasState> state{BlasState::untried};
SgemmFunction sgemm = nullptr;
char config[192], path[1024], named[1024];

// One lock for loading and for the count of callers. A fork takes it and waits until nobody is inside, so that the
// child inherits neither a half-loaded library nor locks of the library held by threads it does not have. The end of
// the process waits too and closes the door: OpenBLAS frees its work areas then, and a daemon thread may still compute.
pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
int inside = 0;
bool forking = false, closed = false;

// A BLAS may call its own functions by their public names, and where those are preloaded they lead back to us.
thread_local bool in_this_thread = false;

void close_at_exit() {
    pthread_mutex_lock(&lock);
    closed = true;
    while (inside > 0)
        pthread_cond_wait(&changed, &lock);
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&lock);
}

void before_fork() {
    pthread_mutex_lock(&lock);
    forking = true;
    while (inside > 0)
        pthread_cond_wait(&changed, &lock);
}

void after_fork_in_parent() {
    forking = false;
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&lock);
}

void after_fork_in_child() {
    forking = false;
    pthread_mutex_init(&lock, nullptr);
    pthread_cond_init(&changed, nullptr);
}

void *symbol(void *library, const char *name) {
    char prefixed[96];
    std::snprintf(prefixed, sizeof prefixed, "scipy_%s", name);
    void *found = dlsym(library, prefixed);
    return found ? found : dlsym(library, name);
}

// On one processor OpenBLAS starts no threads of its own while it is loaded; they would only spin.
void *open_on_one_processor(const char *file, int flags) {
    cpu_set_t old, one;
    const int here = sched_getcpu();
    const bool pinned = here >= 0 && here < CPU_SETSIZE && sched_getaffinity(0, sizeof old, &old) == 0;
    if (pinned) {
        CPU_ZERO(&one);
        CPU_SET(here, &one);
        sched_setaffinity(0, sizeof one, &one);
    }
    void *library = dlopen(file, flags);
    if (pinned)
        sched_setaffinity(0, sizeof old, &old);
    return library;
}

void say(const char *text) {
    std::snprintf(path, sizeof path, "%s", text);
}

// Takes the library, or says why not.
const char *use(void *library) {
    const auto function = reinterpret_cast<SgemmFunction>(symbol(library, "cblas_sgemm"));
    if (!function)
        return "it has no cblas_sgemm";
    const auto describe = reinterpret_cast<char *(*)()>(symbol(library, "openblas_get_config"));
    const char *text = describe ? describe() : nullptr;
    if (text && std::strstr(text, "USE64BITINT"))
        return "its integers have 64 bits";
    for (const char *setter : {"openblas_set_num_threads", "bli_thread_set_num_threads", "MKL_Set_Num_Threads"})
        if (void *found = symbol(library, setter)) {
            if (setter[0] == 'b')
                reinterpret_cast<void (*)(long)>(found)(1);
            else
                reinterpret_cast<void (*)(int)>(found)(1);
            break;
        }
    Dl_info file;
    const bool known = dladdr(reinterpret_cast<void *>(function), &file) && file.dli_fname;
    // The same name however it was found: through the loader's path, our own folder or the caller's.
    char *real = known ? realpath(file.dli_fname, nullptr) : nullptr;
    say(real ? real : known ? file.dli_fname : "");
    std::free(real);
    const char *slash = std::strrchr(path, '/');
    std::snprintf(config, sizeof config, "%.191s", text ? text : (slash ? slash + 1 : path));
    sgemm = function;
    return nullptr;
}

bool open_file(const char *file, int flags = RTLD_NOW | RTLD_LOCAL) {
    void *library = open_on_one_processor(file, flags);
    if (!library) {
        const char *why = dlerror();
        say(why ? why : file);
        return false;
    }
    const char *unfit = use(library);
    if (!unfit)
        return true;
    std::snprintf(path, sizeof path, "%.900s: %s", file, unfit);
    dlclose(library);
    return false;
}

bool find() {
    const char *asked = std::getenv("PYBLAS_SGEMM_BLAS_LIB");
    if (asked && *asked) {
        if (std::strcmp(asked, "none") == 0)
            return false;
        return open_file(asked); // nothing else instead: the user would not notice
    }
    if (*named)
        return open_file(named);
    if (open_file("libscipy_openblas.so", RTLD_NOW | RTLD_LOCAL | RTLD_NOLOAD))
        return true;
    Dl_info self;
    if (dladdr(reinterpret_cast<void *>(&find), &self) && self.dli_fname) {
        const char *slash = std::strrchr(self.dli_fname, '/');
        char beside[1200];
        std::snprintf(beside, sizeof beside, "%.*s/../../scipy_openblas32/lib/libscipy_openblas.so",
                      slash ? int(slash - self.dli_fname) : 1, slash ? self.dli_fname : ".");
        if (open_file(beside))
            return true;
    }
    for (const char *file : {"libopenblas.so.0", "libblis.so.4", "libmkl_rt.so.3", "libmkl_rt.so.2"})
        if (open_file(file))
            return true;
    say(""); // nobody asked for one by name
    return false;
}

} // namespace

BlasState blas_state() {
    return state.load(std::memory_order_acquire);
}

bool load_blas() {
    if (blas_state() == BlasState::untried) {
        pthread_mutex_lock(&lock);
        if (blas_state() == BlasState::untried) {
            static bool registered = false;
            if (!registered)
                registered = pthread_atfork(before_fork, after_fork_in_parent, after_fork_in_child) == 0;
            const bool found = find();
            // After the library's own constructors, so before whatever they have registered for the end.
            static bool closes = false;
            if (found && !closes)
                closes = std::atexit(close_at_exit) == 0;
            state.store(found ? BlasState::loaded : BlasState::absent, std::memory_order_release);
        }
        pthread_mutex_unlock(&lock);
    }
    return blas_state() == BlasState::loaded;
}

const char *blas_config() {
    return load_blas() ? config : "";
}

const char *blas_path() {
    load_blas();
    return path;
}

Status name_blas(const char *file) {
    pthread_mutex_lock(&lock);
    Status status = kSuccess;
    if (file && std::strlen(file) >= sizeof named)
        status =
            fail(PYBLAS_STATUS_INVALID_VALUE, "set_blas_library: the path has more than %zu bytes", sizeof named - 1);
    else if (blas_state() == BlasState::loaded && std::strcmp(named, file ? file : "") != 0)
        status = fail(PYBLAS_STATUS_NOT_SUPPORTED, "set_blas_library: %s is in use already", path);
    else if (blas_state() != BlasState::loaded) {
        std::snprintf(named, sizeof named, "%s", file ? file : "");
        state.store(BlasState::untried, std::memory_order_release);
    }
    pthread_mutex_unlock(&lock);
    return status;
}

bool blas_gemm(const Product &p) {
    if (in_this_thread)
        return false;
    pthread_mutex_lock(&lock);
    while (!closed && (inside >= kMostCallers || forking))
        pthread_cond_wait(&changed, &lock);
    const bool open = !closed;
    inside += open;
    pthread_mutex_unlock(&lock);
    if (!open)
        return false;
    const bool a_plain = p.a_row == 1, b_plain = p.b_row == 1;
    // A single column or row may carry any stride; the BLAS wants to see a legal one.
    const int lda = int(a_plain ? std::max(p.a_col, p.m) : std::max(p.a_row, p.k));
    const int ldb = int(b_plain ? std::max(p.b_col, p.k) : std::max(p.b_row, p.n));
    in_this_thread = true;
    sgemm(kColumnMajor, a_plain ? kPlain : kTransposed, b_plain ? kPlain : kTransposed, int(p.m), int(p.n), int(p.k),
          p.alpha, p.a, lda, p.b, ldb, p.beta, p.c, int(p.c_col));
    in_this_thread = false;
    pthread_mutex_lock(&lock);
    --inside;
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&lock);
    return true;
}

} // namespace pyblas::cpu
