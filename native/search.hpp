// One search: improving full solutions, kicking them, and putting cut items whole again.
#pragma once

#include <optional>

#include "descent.hpp"
#include "moving.hpp"
#include "spreading.hpp"
#include "starts.hpp"

namespace shardwright {

inline constexpr int SQUARINGS[] = {3, 5, 7};  // of the objective's power, one descent each
inline constexpr int SQUARINGS_KICKED = 6;
inline constexpr int WIDEST = 256;             // slowest devices that a descent looks at before it ends
inline constexpr int WIDEST_KICKED = 3;        // the same after a kick, which changes few devices
inline constexpr std::int64_t RESPREAD = 400'000;  // items times devices up to which every spread is tried
inline constexpr int RESPREAD_KICKED = 16;     // items up to which it is tried after each kick that cuts some anew
inline constexpr int RESPREADS = 8;            // most rounds of it
inline constexpr int DEVICES_KICKED = 6;
inline constexpr double CLOSING = 0.3;         // of the kicks that close gates, if there are gates
inline constexpr int DEVICES_CLOSED = 4;
inline constexpr int ITEMS_CUT = 3;
inline constexpr double WORSE = 0.01;          // of the step time: largest loss after which a kick is kept as the start of the next

// Value of a full solution: its step time, and the price of the bytes that it ships beyond those that every plan ships.
inline double value(Solution& s) {
    s.refresh();
    return s.step_ms() + (s.problem->warm() ? received_ms(s) - s.problem->least_ms : 0.0);
}

inline void descend_and_widen(Solution& s, int squarings, int widest, const Stop& stop) {
    if (stop.late()) return;
    descend(s, squarings, widest, stop);
    widen(s);
}

// Try other ways of spread and costly items. With many items, that is too slow to follow every kick; with few, ways decide more than places.
inline void respread_and_descend(Solution& s, int squarings, int widest, const Stop& stop) {
    if (static_cast<std::int64_t>(s.problem->items) * s.problem->devices > RESPREAD) return;
    for (int round = 0; round < RESPREADS && !stop.late(); ++round) {
        set_objective(s, squarings);
        if (!respread(s, stop)) return;
        descend_and_widen(s, squarings, widest, stop);
    }
}

inline void improve(Solution& s, const Stop& stop) {
    for (int squarings : SQUARINGS) {
        descend_and_widen(s, squarings, WIDEST, stop);
        respread_and_descend(s, squarings, WIDEST, stop);
    }
}

// Put an item whole, as an unplaced piece.
inline void make_whole(Solution& s, int item) {
    s.clear(item);
    s.add(item, s.problem->units(item));
}

// The solution without its replicas, improved; none if nothing can be dropped. All replicas together pay for a call on every device,
// and none does alone, so no single change leads from one kind of solution to the other.
inline std::optional<Solution> without_copies(const Solution& s, Bools replicated, const Stop& stop) {
    std::vector<int> items;
    for (int item = 0; item < s.problem->items; ++item)
        if (s.spread_of[item] >= 0 && replicated[s.spread_of[item]] && s.problem->legal[s.problem->whole(item)]) items.push_back(item);
    if (items.empty() || stop.late()) return std::nullopt;
    Solution other = s;
    for (int item : items) make_whole(other, item);
    if (place_greedily(other, 0.0, &stop, false) >= 0) return std::nullopt;
    descend_and_widen(other, SQUARINGS[2], WIDEST, stop);
    return other;
}

// Make cut and spread items whole, cheap ones first, if the cost model does not tell which is better: with fewer blocks and calls, it has
// fewer prices to get wrong. `worse`: part of the step time that all these items together may add. `cut_error`: part of an item's time by
// which its cuts may be mispriced; the item may add that part, divided by the number of devices.
inline void simplify(Solution& s, double worse, double cut_error, const Stop& stop) {
    const Problem& p = *s.problem;
    double best = value(s);
    const double most = best * (1 + worse);
    std::vector<std::pair<double, int>> parted;
    for (int item = 0; item < p.items; ++item)
        if ((s.spread_of[item] >= 0 || s.pieces_of[item] > 1) && p.legal[p.whole(item)]) parted.emplace_back(p.price[p.whole(item)], item);
    std::sort(parted.begin(), parted.end());
    Solution tried = s;
    for (auto [price, item] : parted) {
        if (stop.late()) break;
        tried = s;
        make_whole(tried, item);
        if (place_greedily(tried, 0.0, &stop, false) >= 0) continue;
        const double found = value(tried);
        if (found <= std::max(most, best + cut_error * price / p.devices)) {
            std::swap(s, tried);
            best = found;
        }
    }
}

// Take up to three items apart, costly ones rather than cheap ones, and give each another random way; its pieces are left unplaced. Single
// moves cannot do that, because half the change would make a plan worse.
inline void cut_anew(Solution& s, Random& random) {
    const Problem& p = *s.problem;
    std::vector<double> chance(p.items);
    double total = 0.0;
    for (int item = 0; item < p.items; ++item) total += chance[item] = std::max(p.price[p.whole(item)], 1e-12);
    for (double& one : chance) one = 0.5 * one / total + 0.5 / p.items;
    for (int left = std::min(p.items, 1 + random.below(ITEMS_CUT)); left > 0; --left) {
        const int item = random.weighted(chance), count = 1 + random.below(std::max(4, 2 * s.pieces_of[item]));
        chance[item] = 0.0;
        std::vector<Way> ways;
        int form = item;
        do {
            if (auto widths = even_widths(s, form, count); !widths.empty()) ways.push_back({NONE, form, std::move(widths)});
            form = static_cast<int>(p.next_form[form]);
        } while (form != item);
        for (auto spread = static_cast<int>(p.spreads.first[item]); spread < p.spreads.first[item + 1]; ++spread)
            if (spread != s.spread_of[item] && s.may_take(item, spread)) ways.push_back({spread, NONE, {}});
        if (ways.empty()) continue;
        const Way& way = ways[random.below(static_cast<int>(ways.size()))];
        s.clear(item);
        if (way.spread >= 0) s.take_spread(item, way.spread);
        for (int width : way.widths) s.add(way.form, width);
    }
}

// Take the widest pieces off a device, so that gates close, unless a spread holds them open. False if its pieces open equally many gates.
inline bool close_gates(Solution& s, int device, Random& random) {
    const Problem& p = *s.problem;
    int most = 0, fewest = static_cast<int>(p.head.gates);
    for (int piece = s.on_device[device]; piece >= 0; piece = s.pieces[piece].next_on_device) {
        most = std::max(most, gates_of(p, s.row_of(piece)));
        fewest = std::min(fewest, gates_of(p, s.row_of(piece)));
    }
    if (fewest >= most) return false;
    const int open = fewest + random.below(most - fewest);
    for (int piece = s.on_device[device], next; piece >= 0; piece = next) {
        next = s.pieces[piece].next_on_device;
        if (gates_of(p, s.row_of(piece)) > open) s.lift(piece);
    }
    return true;
}

// Take some pieces off a few devices, preferably slow ones; cut some items anew, place and improve. False: a piece found no place.
inline bool kick(Solution& s, Random& random, const Stop& stop) {
    const Problem& p = *s.problem;
    std::vector<double> chance(p.devices);
    double highest = 1e-300;
    for (int device = 0; device < p.devices; ++device) highest = std::max(highest, chance[device] = s.load(device));
    for (double& one : chance) one = raised(one / highest, 3) + 1e-6;
    const bool closing = p.head.gates > 0 && random.uniform() < CLOSING;
    bool closed = false;
    for (int left = std::min(p.devices, closing ? 1 + random.below(DEVICES_CLOSED) : DEVICES_KICKED); left > 0; --left) {
        const int device = random.weighted(chance);
        chance[device] = 0.0;
        if (closing && close_gates(s, device, random)) {
            closed = true;
            continue;
        }
        const double part = random.uniform(0.05, 0.4);
        for (int piece = s.on_device[device], next; piece >= 0; piece = next) {
            next = s.pieces[piece].next_on_device;
            if (random.uniform() < part) s.lift(piece);
        }
    }
    const bool cutting = random.uniform() < 0.5;
    if (cutting) cut_anew(s, random);
    if (place_greedily(s, 0.0, &stop, closed) >= 0) return false;
    join(s);
    descend_and_widen(s, SQUARINGS_KICKED, WIDEST_KICKED, stop);
    if (cutting && p.items <= RESPREAD_KICKED) respread_and_descend(s, SQUARINGS_KICKED, WIDEST_KICKED, stop);
    return true;
}

// Kicks in a row. Each starts from the result of the one before if that is better or, with `bold`, a little worse.
// Returns the best solution if it is better than the first; `s`, with its value `ms`, becomes the start of later kicks.
inline std::optional<Solution> kicks(Solution& s, double& ms, int count, bool bold, Random random, const Stop& stop) {
    std::optional<Solution> best;
    double lowest = ms;
    Solution kicked = s;
    for (int time = 0; time < count && !stop.late(); ++time) {
        kicked = s;
        if (!kick(kicked, random, stop)) {
            stop.count(Change::kick, false);
            continue;
        }
        const double found = value(kicked);
        const bool taken = found < ms * (1 + (bold ? WORSE * random.uniform() : 0.0));
        stop.count(Change::kick, taken);
        if (!taken) continue;
        std::swap(s, kicked);
        ms = found;
        if (ms < lowest) {
            lowest = ms;
            best = s;
        }
    }
    if (best) {
        respread_and_descend(*best, SQUARINGS_KICKED, WIDEST_KICKED, stop);
        if (ms == lowest) {  // the last solution is the best
            s = *best;
            ms = value(s);
        }
    }
    return best;
}

}  // namespace shardwright
