// NeuroShard's inner search: a greedy for every bound on the devices' columns, and the costs of its placements.
//
// Letters: n pieces, d devices, g bounds, k placements. A *state* is the sorted rows (n,) of the pieces, see search/neuroshard.py.
#pragma once

#include "problem.hpp"

namespace shardwright {

struct Pieces {
    From from;
    PricingHead head{from->at("head")};
    Ints bytes = from->ints("bytes", {ANY});  // memory of a piece
    std::size_t rows = bytes.size();
    Added added{from->at("added"), rows, head.width};   // of pieces
    Ints dims = from->ints("dims", {rows});             // columns
    Floats served = from->floats("served", {rows, 2});  // bytes of values and of ids
    Ints unit = from->ints("unit", {rows});             // whose piece it is
    Ints memory = from->ints("memory", {SOME});         // bytes of a device
    int devices = static_cast<int>(memory.size());
    Bools forbidden = from->bools("forbidden", {ANY, devices});  // whether a device is barred to the pieces of a unit
    std::size_t units = forbidden.size() / memory.size();
    Bools rivals = from->bools("rivals", {units, units}, OR_NONE);  // whether two units may not share a device; empty if all may
    LinkFacts links{from->at("links")};
    Floats apart = from->floats("apart", {devices, 2});  // ms of fixed shards' collectives besides all-to-alls, forward and backward
    double waits = from->number("waits");                // ms of the latencies of all sets of collectives
    Ints counts = from->ints("counts", {devices, ANY});  // fixed shards in each call, as are the next five
    std::size_t calls = counts.size() / memory.size();
    Floats sums = from->floats("sums", {devices, calls, head.width});  // with biases
    Floats fixed_served = from->floats("fixed_served", {devices, 3});
    Ints fixed_dims = from->ints("fixed_dims", {devices}), used = from->ints("used", {devices});
    Bools occupied = from->bools("occupied", {devices});  // whether a device holds any

    // Checks that no index leads outside of an array.
    void check() const {
        detail::require_added(added, static_cast<std::int64_t>(calls), "added.");
        detail::require_within(unit, 0, static_cast<std::int64_t>(units), "unit");
        detail::require_links(links, devices);
    }
};

inline constexpr double TICKS = 1e6;  // in a ms: times are compared in whole ns, so that rounding does not decide

// Devices as they fill up.
class Loads {
  public:
    explicit Loads(const Pieces& of)
        : pieces_(of), calls_(of.calls), width_(of.head.width), sums_(of.sums.begin(), of.sums.end()),
          counts_(of.counts.begin(), of.counts.end()), ms_(of.counts.size()), dims(of.fixed_dims.begin(), of.fixed_dims.end()) {
        for (std::size_t place = 0; place < counts_.size(); ++place)
            if (counts_[place]) ms_[place] = call_ms(of.head, sums_.data() + place * width_);
    }

    void add(int device, std::int64_t row) {
        const Added& added = pieces_.added;
        for (auto part = added.part[row]; part < added.part[row + 1]; ++part) {
            const std::size_t place = device * calls_ + added.call[part];
            const double* vector = added.vector(part);
            double* sums = sums_.data() + place * width_;
            for (std::size_t column = 0; column < width_; ++column) sums[column] += vector[column];
            ++counts_[place];
            ms_[place] = Ms{-1.0, 0.0};  // priced on demand
        }
        dims[device] += pieces_.dims[row];
    }

    Ms times(int device) {
        Ms total = pieces_.head.once;
        for (std::size_t place = device * calls_; place < (device + 1) * calls_; ++place) {
            if (ms_[place].forward < 0.0) ms_[place] = call_ms(pieces_.head, sums_.data() + place * width_);
            total.forward += ms_[place].forward;
            total.backward += ms_[place].backward;
        }
        return total;
    }

    double ticks(int device) {
        const Ms ms = times(device);
        return std::rint((ms.forward + ms.backward) * TICKS);
    }

  private:
    const Pieces& pieces_;
    std::size_t calls_, width_;
    std::vector<double> sums_;
    std::vector<std::int64_t> counts_;
    std::vector<Ms> ms_;

  public:
    std::vector<std::int64_t> dims;  // columns of each device
};

// Place the pieces in order, each on the device with room that then has the lowest fused time; `limit`: most columns on a device.
// Fills `device` (n,); returns the number of placed pieces and the most columns on a device after them.
inline std::pair<std::size_t, std::int64_t> greedy(const Pieces& p, Ints state, std::int64_t limit, std::span<std::int64_t> device) {
    const int devices = p.devices;
    Loads loads(p);
    std::vector<std::int64_t> used(p.used.begin(), p.used.end());
    std::vector<double> ticks(devices, 0.0);  // an empty device runs nothing
    std::vector<char> blocked(p.forbidden.begin(), p.forbidden.end());
    for (int rank = 0; rank < devices; ++rank)
        if (p.occupied[rank]) ticks[rank] = loads.ticks(rank);
    std::size_t placed = 0;
    for (; placed < state.size(); ++placed) {
        const auto row = state[placed];
        const auto unit = static_cast<std::size_t>(p.unit[row]);
        int best = NONE;
        for (int rank = 0; rank < devices; ++rank)
            if ((best < 0 || ticks[rank] < ticks[best]) && p.dims[row] <= limit - loads.dims[rank] && used[rank] + p.bytes[row] <= p.memory[rank] &&
                !blocked[unit * devices + rank])
                best = rank;
        if (best < 0) break;
        device[placed] = best;
        loads.add(best, row);
        used[best] += p.bytes[row];
        ticks[best] = loads.ticks(best);
        if (!p.rivals.empty())
            for (std::size_t other = 0; other < p.units; ++other) blocked[other * devices + best] |= p.rivals[unit * p.units + other];
    }
    return {placed, *std::max_element(loads.dims.begin(), loads.dims.end())};
}

// The different placements that the greedy finds for `limits` (g,), ascending; highest limit first. If the devices of a run never exceed a
// lower limit, the run under that limit is the same, so it is skipped. If no limit lets every piece find a device, one more run has no limit.
// None if even that fails.
inline std::vector<std::vector<std::int64_t>> grid_placements(const Pieces& p, Ints state, Ints limits) {
    constexpr auto no_limit = std::numeric_limits<std::int64_t>::max();
    std::vector<std::vector<std::int64_t>> found;
    std::vector<std::int64_t> device(state.size());
    const auto run = [&](std::int64_t limit) {
        const auto [placed, reached] = greedy(p, state, limit, device);
        if (placed == state.size()) found.push_back(device);
        return reached;
    };
    std::int64_t reached = no_limit;
    for (auto limit = limits.rbegin(); limit != limits.rend(); ++limit)
        if (*limit < reached) reached = run(*limit);
    if (found.empty()) run(no_limit);
    return found;
}

// Forward and backward kernel ms of each device of a placement, 0 on empty ones; with the columns of each in `dims`.
inline std::vector<Ms> device_times(const Pieces& p, Ints state, Ints device, std::vector<std::int64_t>& dims) {
    Loads loads(p);
    std::vector<char> occupied(p.occupied.begin(), p.occupied.end());
    for (std::size_t piece = 0; piece < state.size(); ++piece) {
        loads.add(static_cast<int>(device[piece]), state[piece]);
        occupied[device[piece]] = true;
    }
    std::vector<Ms> times(p.devices);
    for (int rank = 0; rank < p.devices; ++rank)
        if (occupied[rank]) times[rank] = loads.times(rank);
    dims = loads.dims;
    return times;
}

// Cost of a placement by the link model: the sum over the four phases of the maximum over devices; or the embedding cost, the maximum over
// devices of the sum of their phases.
inline double link_ticks(const Pieces& p, Ints state, Ints device, bool embedding) {
    std::vector<Bytes> served(p.devices), by_host(p.devices / static_cast<int>(p.links.per_host) + 1);
    for (int rank = 0; rank < p.devices; ++rank) served[rank] = {p.fixed_served[3 * rank], p.fixed_served[3 * rank + 1], p.fixed_served[3 * rank + 2]};
    for (std::size_t piece = 0; piece < state.size(); ++piece)
        served[device[piece]] += {p.served[2 * state[piece]], p.served[2 * state[piece]], p.served[2 * state[piece] + 1]};
    Bytes all;
    for (int rank = 0; rank < p.devices; ++rank) {
        by_host[p.links.host_of(rank)] += served[rank];
        all += served[rank];
    }
    std::vector<std::int64_t> dims;
    const std::vector<Ms> calls = device_times(p, state, device, dims);
    Ms most_calls, most_links;
    double busiest = 0.0;
    for (int rank = 0; rank < p.devices; ++rank) {
        const Ms call = calls[rank];
        const Ms link = link_ms(p.links, served[rank], by_host[p.links.host_of(rank)], all, {p.apart[2 * rank], p.apart[2 * rank + 1]});
        most_calls = {std::max(most_calls.forward, call.forward), std::max(most_calls.backward, call.backward)};
        most_links = {std::max(most_links.forward, link.forward), std::max(most_links.backward, link.backward)};
        busiest = std::max(busiest, call.forward + link.forward + link.backward + call.backward);
    }
    const double step = most_calls.forward + most_links.forward + most_links.backward + most_calls.backward;
    return std::rint(((embedding ? busiest : step) + p.waits) * TICKS);
}

// The placement of the grid with the lowest `link_ticks`, the lowest limit among equals; infinite if there is none.
inline std::pair<double, std::vector<std::int64_t>> best_by_links(const Pieces& p, Ints state, Ints limits, bool embedding) {
    std::pair<double, std::vector<std::int64_t>> best{std::numeric_limits<double>::infinity(), {}};
    for (auto& device : grid_placements(p, state, limits))
        if (const double ticks = link_ticks(p, state, device, embedding); ticks <= best.first) best = {ticks, std::move(device)};
    return best;
}

}  // namespace shardwright
