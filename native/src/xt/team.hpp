// The threads of products of host memory. One that has no more to do waits for the next product: to start one takes
// longer than to call it, by far on virtual machines, and a small product needs a dozen of them.
#pragma once

#include <functional>
#include <memory>

namespace pyblas::xt {

class Team {
public:
    Team();
    ~Team(); // join()
    Team(const Team &) = delete;
    Team &operator=(const Team &) = delete;

    // On a thread of its own, at once; std::system_error if there is none to be had. work throws nothing.
    void start(std::function<void()> work);
    // Until all that was started is over.
    void join();

    struct Running;

private:
    std::shared_ptr<Running> running_;
};

} // namespace pyblas::xt
