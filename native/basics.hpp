// Types that all headers share, and the random numbers of a search.
#pragma once

#include <array>
#include <bit>
#include <cmath>
#include <cstdint>
#include <span>
#include <vector>

namespace shardwright {

using Ints = std::span<const std::int64_t>;
using Floats = std::span<const double>;
using Singles = std::span<const float>;
using Bools = std::span<const bool>;

inline constexpr int NONE = -1;  // no piece, no device, no spread

// Bytes that a device serves by all-to-alls: values to devices of its host, values to those of other hosts, and ids.
struct Bytes {
    double near = 0.0, far = 0.0, ids = 0.0;

    Bytes operator+(Bytes other) const { return {near + other.near, far + other.far, ids + other.ids}; }
    Bytes operator-(Bytes other) const { return {near - other.near, far - other.far, ids - other.ids}; }
    Bytes operator*(double factor) const { return {near * factor, far * factor, ids * factor}; }
    Bytes& operator+=(Bytes other) { return *this = *this + other; }
    bool nothing() const { return std::abs(near) + std::abs(far) + std::abs(ids) < 1.0; }  // byte
};

// Forward and backward time.
struct Ms {
    double forward = 0.0, backward = 0.0;

    Ms operator+(Ms other) const { return {forward + other.forward, backward + other.backward}; }
    Ms operator*(double factor) const { return {forward * factor, backward * factor}; }
    Ms& operator+=(Ms other) { return *this = *this + other; }
};

// xoshiro256++ of Blackman and Vigna, seeded by splitmix64: the same numbers on every machine.
class Random {
  public:
    explicit Random(std::span<const std::uint64_t> seeds) {
        std::uint64_t mixed = 0x5348415244ULL;
        for (std::uint64_t seed : seeds) mixed = split(mixed) ^ seed;
        for (auto& word : state_) word = split(mixed);
    }

    // At least 0 and below 1.
    double uniform() { return static_cast<double>(next() >> 11) * 0x1.0p-53; }
    double uniform(double low, double high) { return low + (high - low) * uniform(); }
    // A whole number of at least 0 and below `count`, which must be positive.
    int below(int count) { return static_cast<int>(uniform() * count); }

    // A random place in `weights`, in proportion to its weight; weights are non-negative, at least one of them positive.
    int weighted(Floats weights) {
        double total = 0.0;
        for (double weight : weights) total += weight;
        double left = uniform() * total;
        int last = 0;
        for (int place = 0; place < static_cast<int>(weights.size()); ++place) {
            if (weights[place] <= 0.0) continue;
            last = place;
            if ((left -= weights[place]) < 0.0) break;
        }
        return last;
    }

  private:
    static std::uint64_t split(std::uint64_t& mixed) {
        std::uint64_t word = (mixed += 0x9E3779B97F4A7C15ULL);
        word = (word ^ (word >> 30)) * 0xBF58476D1CE4E5B9ULL;
        word = (word ^ (word >> 27)) * 0x94D049BB133111EBULL;
        return word ^ (word >> 31);
    }

    std::uint64_t next() {
        const std::uint64_t result = std::rotl(state_[0] + state_[3], 23) + state_[0];
        const std::uint64_t shifted = state_[1] << 17;
        state_[2] ^= state_[0];
        state_[3] ^= state_[1];
        state_[1] ^= state_[2];
        state_[0] ^= state_[3];
        state_[2] ^= shifted;
        state_[3] = std::rotl(state_[3], 45);
        return result;
    }

    std::array<std::uint64_t, 4> state_{};
};

}  // namespace shardwright
