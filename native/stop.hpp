// State that the threads of a search share: a flag and a deadline that end it, and counts of its changes.
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <limits>

namespace shardwright {

// Changes of a solution that a search tries, and takes if they gain.
enum class Change : std::size_t { move, swap, cut, way, kick };
inline constexpr std::array CHANGE_NAMES{"moves", "swaps", "cuts", "ways", "kicks"};

// A flag that any thread may set, and a deadline. Loops look at it before every step that takes more than some microseconds.
class Stop {
  public:
    using Clock = std::chrono::steady_clock;

    // Seconds from now; infinity for no deadline.
    explicit Stop(double seconds) {
        if (seconds < 1e9) deadline_ = Clock::now() + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds));
    }

    void set() { set_.store(true, std::memory_order_relaxed); }

    // `times`: how many changes it counts as, by the time that it takes.
    void count(Change change, bool taken, int times = 1) const {
        tried_[index(change)].fetch_add(times, std::memory_order_relaxed);
        if (taken) taken_[index(change)].fetch_add(1, std::memory_order_relaxed);
    }

    // How often a change was tried, and taken.
    std::array<std::int64_t, 2> counted(Change change) const { return {tried_[index(change)].load(), taken_[index(change)].load()}; }

    bool late() const {
        return set_.load(std::memory_order_relaxed) || (deadline_ != Clock::time_point::max() && Clock::now() >= deadline_);
    }

  private:
    static std::size_t index(Change change) { return static_cast<std::size_t>(change); }

    std::atomic<bool> set_ = false;
    Clock::time_point deadline_ = Clock::time_point::max();
    mutable std::array<std::atomic<std::int64_t>, CHANGE_NAMES.size()> tried_{}, taken_{};
};

}  // namespace shardwright
