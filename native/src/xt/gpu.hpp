// The executor on a CUDA device.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "dispatch.hpp"
#include "xt/executor.hpp"
#include "xt/plan.hpp"

struct CUstream_st;
struct CUevent_st;

namespace pyblas::xt {

// Streams, staging memory, which is slow to get, and device memory, if it is little, are kept from one product to the
// next.
class Gpu : public Executor {
public:
    explicit Gpu(const Device &device) : device_(device) {}
    ~Gpu() override; // frees nothing: see free()

    // How products are computed from here on: the row that is forced, and the most workspace one may have.
    void set(const Kernel *forced, size_t workspace_limit) {
        forced_ = forced;
        workspace_limit_ = workspace_limit;
    }
    // Nothing begins before the event, of any device, has come.
    Status follow(CUevent_st *event);

    // Gives back all that is kept.
    Status free();

    const Device &device() const { return device_; }
    Plans &plans() { return plans_; }
    // Predicted seconds of a product with device memory.
    Status predict(const Problem &product, double *seconds);

    Status enter() override;
    Status allocate(size_t bytes, char **memory) override;
    void release(char *memory) override;
    Status allocate_staging(size_t bytes, char **memory) override;
    void release_staging(char *memory) override;
    Status create_events(int count) override;
    Status workspace_bytes(const Problem &product, size_t *bytes) override;
    Status give_workspace(char *memory, size_t bytes) override;
    size_t fixed_workspace() const override { return kZeros * sizeof(uint32_t); }
    Status copy(Queue queue, const Copy &copy) override;
    Status multiply(const Problem &product) override;
    Status record(Queue queue, int event) override;
    Status wait(Queue queue, int event) override;
    Status wait_on_host(int event) override;
    Status finish() override;

private:
    struct Staging {
        char *memory;
        size_t bytes;
        bool used;
    };

    Status ensure_streams();
    Status free_kept();
    CUstream_st *stream(Queue queue) const { return streams_[static_cast<int>(queue)]; }

    Device device_;
    Choices choices_;
    Plans plans_;
    const Kernel *forced_ = nullptr;
    size_t workspace_limit_ = 0;
    CUstream_st *streams_[kQueues] = {};
    std::vector<CUevent_st *> events_;
    char *workspace_ = nullptr;
    size_t workspace_bytes_ = 0;
    char *kept_ = nullptr;                     // of an earlier product
    size_t kept_bytes_ = 0, memory_bytes_ = 0; // the latter of what is lent
    std::mutex staging_mutex_;
    std::vector<Staging> staging_;
};

// Bytes of device memory that are free.
Status free_memory(size_t *bytes);

// Where memory lies, for the GPU that is current.
enum class Home : uint8_t { pageable, pinned, device };
Status home_of(const void *address, Home *home, int *device);

} // namespace pyblas::xt
