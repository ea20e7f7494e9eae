// Local search: change the pieces of the slowest devices until no change helps.
#pragma once

#include "moves.hpp"
#include "stop.hpp"

namespace shardwright {

inline constexpr int TARGETS = 16;      // least loaded devices that a change considers
inline constexpr int CUT_TARGETS = 4;   // of these, the least loaded, that cutting a piece considers
inline constexpr double WORTH = 1e-6;   // of the step time: gains below are not worth a change
inline constexpr int MOST_CHANGES = 200'000;  // of one descent: a stop for degenerate cost models

// The places of `values` in ascending order; equal ones keep theirs.
inline std::vector<int> ascending(const std::vector<double>& values) {
    std::vector<int> order(values.size());
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(), [&](int one, int other) { return values[one] < values[other]; });
    return order;
}

// The best move of a piece to a target, or swap of pieces with it.
inline bool move_or_swap(Solution& s, int one, int target, double least, const Stop& stop) {
    const Transfer transfer = best_transfer(s, one, target, least, false);
    const Swap swap = best_swap(s, one, target, transfer.gain);
    stop.count(Change::move, transfer.piece >= 0 && swap.mine < 0);
    stop.count(Change::swap, swap.mine >= 0);
    if (swap.mine >= 0) {
        make(s, swap);
        return true;
    }
    if (transfer.piece >= 0) make(s, transfer, target);
    return transfer.piece >= 0;
}

// The best cut of a piece of which a target takes a part.
inline bool cut(Solution& s, int one, int target, double least, const Stop& stop) {
    if (s.live() >= s.problem->room) return false;
    const Transfer transfer = best_transfer(s, one, target, least, true);
    stop.count(Change::cut, transfer.piece >= 0);
    if (transfer.piece >= 0) make(s, transfer, target);
    return transfer.piece >= 0;
}

// A way to relieve a device with the help of a target, and how many of the least loaded targets it considers.
struct Operator {
    bool (*apply)(Solution&, int, int, double, const Stop&);
    std::size_t targets;
};

inline constexpr Operator OPERATORS[] = {{move_or_swap, TARGETS}, {cut, CUT_TARGETS}};

// Relieve a device by the first operator that gains more than `least` with a target, the least loaded target first.
inline bool relieve(Solution& s, int one, const std::vector<int>& targets, double least, const Stop& stop) {
    for (const Operator& change : OPERATORS)
        for (std::size_t place = 0; place < std::min(targets.size(), change.targets); ++place)
            if (targets[place] != one && change.apply(s, one, targets[place], least, stop)) return true;
    return false;
}

// Improve a full solution until no change helps; returns the number of changes. `widest`: slowest devices to try before a solution counts as
// a local optimum.
inline int descend(Solution& s, int squarings, int widest, const Stop& stop) {
    const int devices = s.problem->devices, few = std::max(1, devices / 16), rest = std::max(2, devices / 8);
    std::vector<int> tried(devices, NONE);  // number of changes when a device last had no improving change
    int made = 0, looked_at = few;
    while (made < MOST_CHANGES) {
        set_objective(s, squarings);
        const double least = WORTH * s.step_ms();
        std::vector<double> quickness(devices), load(devices);
        for (int device = 0; device < devices; ++device) {
            quickness[device] = -s.objective[device];
            load[device] = s.load(device);
        }
        const std::vector<int> slowest = ascending(quickness);
        std::vector<int> targets = ascending(load);
        targets.resize(std::min<std::size_t>(targets.size(), TARGETS));
        const int before = made;
        bool small = false;
        for (int place = 0; place < std::min(looked_at, devices); ++place) {
            const int one = slowest[place];
            small = s.objective[one] < least;
            if (small) break;
            if (stop.late()) return made;
            if (looked_at == few && tried[one] >= 0 && made - tried[one] < rest) continue;
            if (tried[one] == made) continue;
            if (!relieve(s, one, targets, least, stop)) {
                tried[one] = made;
            } else {
                ++made;
                if (few == 1) break;
            }
        }
        if (made > before)
            looked_at = few;
        else if (small || looked_at >= std::min(devices, widest))
            break;
        else
            looked_at = std::min({4 * looked_at, devices, widest});
    }
    return made;
}

}  // namespace shardwright
