// Placement of pieces one after another: the costliest first, each on the device with the smallest rise of the objective.
#pragma once

#include <tuple>

#include "objective.hpp"
#include "stop.hpp"

namespace shardwright {

// Set the objective for placing: every phase aims at the mean device's time after all waiting pieces are placed.
inline void aim_at_balance(Solution& s) {
    constexpr int squarings = 3;
    const Problem& p = *s.problem;
    const double share = 1.0 / p.devices;
    std::vector<double> mean(p.calls * p.width, 0.0);
    std::vector<int> present(p.calls, 0);
    Ms apart;
    Bytes served = s.served_by_all * share;
    for (int device = 0; device < p.devices; ++device) {
        for (int call = 0; call < p.calls; ++call) {
            const double* sums = s.call_sums(device, call);
            for (std::size_t column = 0; column < p.width; ++column) mean[call * p.width + column] += sums[column] * share;
            present[call] += s.counts[static_cast<std::size_t>(device) * p.calls + call];
        }
        apart += s.apart[device] * share;
    }
    for (int piece = 0; piece < s.live(); ++piece) {
        if (s.pieces[piece].device >= 0) continue;
        const int row = s.row_of(piece);
        for (auto part = p.added.part[row]; part < p.added.part[row + 1]; ++part) {
            const auto call = p.added.call[part];
            const double* vector = p.added.vector(part);
            for (std::size_t column = 0; column < p.width; ++column) mean[call * p.width + column] += vector[column] * share;
            ++present[call];
        }
        served += p.serves(row) * share;
    }
    Ms calls = p.head.once;
    for (int call = 0; call < p.calls; ++call)
        if (present[call]) {
            const Ms ms = call_ms(p.head, mean.data() + call * p.width);
            calls.forward += ms.forward;
            calls.backward += ms.backward;
        }
    const Ms links = link_ms(p.links, served, served * p.links.per_host, served * p.links.devices, apart);
    std::array<double, PHASES> goals{};
    goals[FORWARD] = calls.forward;
    goals[BACKWARD] = calls.backward;
    goals[FORWARD_LINKS] = links.forward;
    goals[BACKWARD_LINKS] = links.backward;
    const double all = std::accumulate(goals.begin(), goals.end(), 0.0);
    for (int phase = 0; phase < PHASES; ++phase) {
        s.weight[phase] = std::max({goals[phase], 1e-6 * all, 1e-12});
        s.scale[phase] = 1.0 / s.weight[phase];
    }
    s.squarings = squarings;
    s.refresh();
    refresh_objective(s);
}

// The device whose part of the objective rises least with the piece on it, or NONE if no device may hold it.
inline int coolest_device(const Solution& s, int piece) {
    const Problem& p = *s.problem;
    const int form = s.pieces[piece].form, width = s.pieces[piece].width, item = p.owner(form), row = p.row(form, width);
    const Bytes more = p.serves(row);
    const bool parted = s.pieces_of[item] > 1;
    int best = NONE;
    double lowest = std::numeric_limits<double>::infinity();
    for (int device = 0; device < p.devices; ++device) {
        if (p.bytes[row] > s.room_on(device)) continue;
        double rise = objective_after(s, device, NONE, row, more, more, more) - s.objective[device];
        if (rise >= lowest) continue;
        const int there = parted ? s.width_on(item, device) : 0;
        if (there && !p.legal[row + there]) continue;  // its pieces there are to become one
        if (p.warm()) {
            rise += p.ms_to_receive(form, there + width, device) - p.ms_to_receive(form, there, device);
            if (rise >= lowest) continue;
        }
        if (s.may_lie(item, device)) {
            best = device;
            lowest = rise;
        }
    }
    return best;
}

// Number of gates that a row of pieces opens: wide blocks open more of them.
inline int gates_of(const Problem& p, int row) {
    constexpr double open = 0.5;  // counts of shards
    int count = 0;
    for (auto part = p.added.part[row]; part < p.added.part[row + 1]; ++part)
        for (std::size_t gate = p.head.hidden - 3 * p.head.gates; gate < p.head.hidden; gate += 3) count += p.added.vector(part)[gate] > open;
    return count;
}

// Of the devices that stay near balance with the piece, the one whose kernels slow down least, usually one whose gates are open already. NONE
// if there is none. While devices are nearly empty, the objective does not see what an open gate will cost.
inline int least_opened_device(const Solution& s, int piece) {
    const Problem& p = *s.problem;
    const int form = s.pieces[piece].form, width = s.pieces[piece].width, item = p.owner(form), row = p.row(form, width);
    const Bytes more = p.serves(row);
    const double balanced = std::accumulate(s.weight.begin(), s.weight.end(), 0.0);
    int best = NONE;
    double lowest = std::numeric_limits<double>::infinity();
    for (int device = 0; device < p.devices; ++device) {
        if (p.bytes[row] > s.room_on(device) || s.piece_on(item, device) >= 0) continue;
        const Ms calls = calls_after(s, device, NONE, row);
        double rise = calls.forward + calls.backward - s.times[device][FORWARD] - s.times[device][BACKWARD];
        if (p.warm()) rise += p.ms_to_receive(form, width, device);
        if (rise < lowest && objective_after(s, device, NONE, row, more, more, more) <= balanced && s.may_lie(item, device)) {
            best = device;
            lowest = rise;
        }
    }
    return best;
}

// Place every unplaced piece; returns NONE, or the first piece without a device, for lack of room or of time.
// `memory_weight`: ms that a byte counts for in the order of the pieces; large if memory is tight. `together`: pieces that open gates go before
// all others, to devices whose gates are open, as far as these stay near balance.
inline int place_greedily(Solution& s, double memory_weight, const Stop* stop, bool together) {
    const Problem& p = *s.problem;
    std::vector<std::tuple<int, double, int>> waiting;
    for (int piece = 0; piece < s.live(); ++piece)
        if (s.pieces[piece].device < 0) {
            const int row = s.row_of(piece);
            waiting.emplace_back(together ? -gates_of(p, row) : 0, -(p.price[row] + memory_weight * static_cast<double>(p.bytes[row])), piece);
        }
    std::sort(waiting.begin(), waiting.end());
    aim_at_balance(s);
    for (auto [gates, cost, piece] : waiting) {
        if (stop && stop->late()) return piece;
        int device = gates < 0 ? least_opened_device(s, piece) : NONE;
        if (device < 0) device = coolest_device(s, piece);
        if (device < 0) return piece;
        s.place(piece, device);
        s.refresh_calls(device);
        s.refresh_links(device);
        refresh_objective(s, device);
    }
    return NONE;
}

// Make one piece of those of an item that lie on one device.
inline void join(Solution& s) {
    for (int piece = 0; piece < s.live();) {
        const int device = s.pieces[piece].device, other = device >= 0 ? s.piece_on(s.item_of(piece), device) : NONE;
        if (other < 0 || other == piece) {
            ++piece;
            continue;
        }
        s.lift(other);
        s.lift(piece);
        s.pieces[other].width += s.pieces[piece].width;
        s.place(other, device);
        s.drop(piece);
        s.refresh_calls(device);
    }
}

}  // namespace shardwright
