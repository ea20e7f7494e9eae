// The end of a search: a flag and a deadline.
#pragma once

#include <atomic>
#include <chrono>
#include <limits>

namespace shardwright {

// A flag that any thread may set, and a deadline. Loops look at it before every step that takes more than some microseconds.
class Stop {
  public:
    using Clock = std::chrono::steady_clock;

    // Seconds from now; infinity for no deadline.
    explicit Stop(double seconds) {
        if (seconds < 1e9) deadline_ = Clock::now() + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds));
    }

    void set() { set_.store(true, std::memory_order_relaxed); }

    bool late() const {
        return set_.load(std::memory_order_relaxed) || (deadline_ != Clock::time_point::max() && Clock::now() >= deadline_);
    }

  private:
    std::atomic<bool> set_ = false;
    Clock::time_point deadline_ = Clock::time_point::max();
};

}  // namespace shardwright
