// First solutions: the cheapest cut of every form, and a way for every item.
#pragma once

#include "placing.hpp"

namespace shardwright {

// Cut each form into blocks so that the sum of their prices is smallest: a shortest path over widths and numbers of blocks.
// `first` (f + 1,): rows of `price` by form, blocks of 1, 2, ... units; `price` has any sign, and is infinite if a block is not allowed.
// `fewest` (f,): least number of blocks of each form; empty for 1.
// Fills `sums` (f,), infinite if no way is allowed, and `uses` (rows,), how often each block is used, zeros before.
inline void cheapest_widths(Ints first, Floats price, Ints fewest, std::span<double> sums, std::span<std::int64_t> uses) {
    constexpr double infinite = std::numeric_limits<double>::infinity();
    std::vector<double> best;  // by number of blocks, `most` standing for that many or more, and by width
    struct Step {
        std::int64_t part = 0, blocks = 0;  // the last block, and the number before it
    };
    std::vector<Step> step;
    for (std::size_t form = 0; form + 1 < first.size(); ++form) {
        const auto begin = first[form], units = first[form + 1] - begin, wide = units + 1;
        const auto most = fewest.empty() ? 1 : std::clamp<std::int64_t>(fewest[form], 1, wide);
        best.assign((most + 1) * wide, infinite);
        step.assign((most + 1) * wide, {});
        best[0] = 0.0;
        for (std::int64_t width = 1; width <= units; ++width)
            for (std::int64_t blocks = 1; blocks <= most; ++blocks)
                for (auto before = blocks - 1; before <= (blocks == most ? most : blocks - 1); ++before)
                    for (std::int64_t part = 1; part <= width; ++part) {
                        const double cost = best[before * wide + width - part] + price[begin + part - 1];
                        if (cost < best[blocks * wide + width]) {
                            best[blocks * wide + width] = cost;
                            step[blocks * wide + width] = {part, before};
                        }
                    }
        auto left = units, blocks = most;
        sums[form] = best[blocks * wide + left];
        while (left > 0 && sums[form] < infinite) {
            const Step& last = step[blocks * wide + left];
            ++uses[begin + last.part - 1];
            left -= last.part;
            blocks = last.blocks;
        }
    }
}

// The same with the least maximum over the blocks' values; fills `largest` (f,).
inline void least_bottlenecks(Ints first, Floats value, std::span<double> largest) {
    constexpr double infinite = std::numeric_limits<double>::infinity();
    std::vector<double> best;
    for (std::size_t form = 0; form + 1 < first.size(); ++form) {
        const auto begin = first[form], units = first[form + 1] - begin;
        best.assign(units + 1, infinite);
        best[0] = -infinite;
        for (std::int64_t width = 1; width <= units; ++width)
            for (std::int64_t part = 1; part <= width; ++part)
                best[width] = std::min(best[width], std::max(best[width - part], value[begin + part - 1]));
        largest[form] = best[units];
    }
}

// The cheapest spread of an item that fits beside those that are booked, or NONE; an item with rivals is spread only if it must be.
inline int cheapest_spread(const Solution& s, int item, Floats price, bool must) {
    const Problem& p = *s.problem;
    if (!p.rivals.empty() && !must)
        for (int other = 0; other < p.items; ++other)
            if (p.are_rivals(item, other)) return NONE;
    int best = NONE;
    for (auto spread = p.spreads.first[item]; spread < p.spreads.first[item + 1]; ++spread) {
        if (best >= 0 && price[spread] >= price[best]) continue;
        if (s.may_take(item, static_cast<int>(spread))) best = static_cast<int>(spread);
    }
    return best;
}

// Add the chosen pieces of a form; if they exceed the allowed number or the room, as many even ones as fit. False if none does.
inline bool cut(Solution& s, int form, Ints uses, int waiting) {
    const Problem& p = *s.problem;
    const auto begin = p.first[form];
    const int units = p.units(form), room = p.room - s.live() - 2 * waiting;  // an item that may not stay whole has two pieces
    const auto most = std::min<std::int64_t>(p.most[p.owner(form)], room);
    std::int64_t wanted = 0;
    for (int width = 1; width <= units; ++width) wanted += uses[begin + width - 1];
    if (wanted <= most) {
        for (int width = 1; width <= units; ++width)
            for (std::int64_t time = 0; time < uses[begin + width - 1]; ++time) s.add(form, width);
        return true;
    }
    for (auto count = std::min<std::int64_t>(most, units); count > 0; --count) {
        const auto narrow = units / count;
        if (!p.legal[begin + narrow - 1] || (units % count != 0 && !p.legal[begin + narrow])) continue;
        for (std::int64_t piece = 0; piece < count; ++piece)
            s.add(form, static_cast<int>(units * (piece + 1) / count - units * piece / count));
        return true;
    }
    return false;
}

// Give every item of an empty solution its best way, as unplaced pieces or a spread; returns an item without any, or NONE.
// `rank` (f,) and `spread_rank` (spreads,): ranks by which ways compete, infinite for missing ways. `uses` (r,): how often each form has each
// block.
inline int choose(Solution& s, Floats rank, Ints uses, Floats spread_rank) {
    const Problem& p = *s.problem;
    for (int item = 0; item < p.items; ++item) {
        int form = item;
        for (auto other = p.next_form[item]; other != item; other = p.next_form[other])
            if (rank[other] < rank[form]) form = static_cast<int>(other);
        const bool must_spread = std::isinf(rank[form]);
        const int spread = cheapest_spread(s, item, spread_rank, must_spread);
        if (must_spread && spread < 0) return item;
        if (spread >= 0 && (must_spread || spread_rank[spread] < rank[form]))
            s.take_spread(item, spread);
        else if (!cut(s, form, uses, p.items - item - 1))
            return item;
    }
    return NONE;
}

}  // namespace shardwright
