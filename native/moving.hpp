// Bytes that a solution ships, compared with the plan to start from: devices keep the units they held, as far as possible.
#pragma once

#include "solution.hpp"

namespace shardwright {

// A piece of some units, and the units [start, stop) of the same form that its device held; an empty range for none.
struct Held {
    std::int64_t width = 0, start = 0, stop = 0;

    // Units that stay if the piece takes those from `at` on.
    std::int64_t stays(std::int64_t at) const { return std::max<std::int64_t>(0, std::min(at + width, stop) - std::max(at, start)); }
};

// Units that stay where they are if pieces take theirs in some order.
inline std::int64_t kept_units(const std::vector<Held>& pieces, const std::vector<int>& order) {
    std::int64_t at = 0, total = 0;
    for (int piece : order) {
        total += pieces[piece].stays(at);
        at += pieces[piece].width;
    }
    return total;
}

namespace detail {

// The best order, built from the best orders of all smaller sets of pieces.
inline std::vector<int> best_of_all(const std::vector<Held>& pieces) {
    const int count = static_cast<int>(pieces.size());
    std::vector<std::int64_t> kept(1 << count, -1);
    std::vector<int> last(1 << count, 0), order(count);
    kept[0] = 0;
    for (int chosen = 0; chosen < 1 << count; ++chosen) {
        std::int64_t at = 0;
        for (int piece = 0; piece < count; ++piece)
            if (chosen >> piece & 1) at += pieces[piece].width;
        for (int piece = 0; piece < count; ++piece) {
            const int more = chosen | 1 << piece;
            if (more == chosen || kept[chosen] + pieces[piece].stays(at) <= kept[more]) continue;
            kept[more] = kept[chosen] + pieces[piece].stays(at);
            last[more] = piece;
        }
    }
    for (int place = count - 1, chosen = (1 << count) - 1; place >= 0; --place) {
        order[place] = last[chosen];
        chosen &= ~(1 << last[chosen]);
    }
    return order;
}

}  // namespace detail

// The order of an item's pieces in which most units stay; for more than eight pieces, a good order.
inline std::vector<int> best_order(const std::vector<Held>& pieces) {
    constexpr std::size_t exact = 8;
    std::vector<int> held;
    std::int64_t possible = 0;
    for (int piece = 0; piece < static_cast<int>(pieces.size()); ++piece) {
        if (pieces[piece].stop > pieces[piece].start) held.push_back(piece);
        possible += std::min(pieces[piece].width, pieces[piece].stop - pieces[piece].start);
    }
    std::stable_sort(held.begin(), held.end(), [&](int one, int other) { return pieces[one].start < pieces[other].start; });
    std::vector<int> order = held, others;
    for (int piece = 0; piece < static_cast<int>(pieces.size()); ++piece)
        if (pieces[piece].stop <= pieces[piece].start) others.push_back(piece);
    order.insert(order.end(), others.begin(), others.end());
    if (kept_units(pieces, order) == possible) return order;
    if (pieces.size() <= exact) return detail::best_of_all(pieces);
    order = held;
    for (int piece : others) {
        std::vector<int> best;
        std::int64_t most = -1;
        for (std::size_t place = 0; place <= order.size(); ++place) {
            std::vector<int> tried = order;
            tried.insert(tried.begin() + static_cast<std::ptrdiff_t>(place), piece);
            if (const auto kept = kept_units(pieces, tried); kept > most) {
                most = kept;
                best = std::move(tried);
            }
        }
        order = std::move(best);
    }
    return order;
}

// Units of an item that the devices of its pieces held.
inline std::vector<Held> held_before(const Home& home, int item, const std::vector<std::pair<int, int>>& device_and_width) {
    std::vector<Held> found;
    for (auto [device, width] : device_and_width) {
        Held held{width};
        for (auto place = home.first[item]; place < home.first[item + 1]; ++place)
            if (home.device[place] == device) {
                held.start = home.start[place];
                held.stop = home.start[place] + home.width[place];
            }
        found.push_back(held);
    }
    return found;
}

// Price of all that devices receive in a full solution, with the units of each item arranged so that as many as possible stay.
inline double received_ms(const Solution& s) {
    const Problem& p = *s.problem;
    const Home& home = p.home;
    double total = 0.0;
    for (int item = 0; item < p.items; ++item) {
        if (s.spread_of[item] >= 0) {
            total += home.spread_ms[s.spread_of[item]];
        } else if (home.unit_ms[item] > 0) {
            std::vector<std::pair<int, int>> pieces;
            for (int piece = s.of_item[item]; piece >= 0; piece = s.pieces[piece].next_of_item)
                pieces.emplace_back(s.pieces[piece].device, s.pieces[piece].width);
            const int form = s.pieces[s.of_item[item]].form, before = static_cast<int>(home.form[item]);
            const std::vector<Held> held = held_before(home, item, pieces);
            double stays = 0.0, width = 0.0;
            for (const Held& one : held) {
                width += static_cast<double>(one.width);
                if (before >= 0 && before != form) stays += static_cast<double>(one.width * (one.stop - one.start)) / p.units(before);
            }
            if (before == form) stays = static_cast<double>(kept_units(held, best_order(held)));
            total += home.unit_ms[form] * (width - stays);
        }
    }
    return total;
}

}  // namespace shardwright
