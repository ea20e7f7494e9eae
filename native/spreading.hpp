// Changes of an item on many devices at once: between single pieces and spreads, from host to host, and to wider blocks.
#pragma once

#include "placing.hpp"

namespace shardwright {

inline void price_all(Solution& s) {
    s.refresh();
    refresh_objective(s);
}

// The place of an item: a spread, or pieces on devices.
struct Lying {
    int spread = NONE;
    std::vector<Piece> pieces;
};

inline Lying lying(const Solution& s, int item) {
    Lying found{s.spread_of[item], {}};
    for (int piece = s.of_item[item]; piece >= 0; piece = s.pieces[piece].next_of_item) found.pieces.push_back(s.pieces[piece]);
    return found;
}

inline void put_back(Solution& s, int item, const Lying& was) {
    if (was.spread >= 0) s.take_spread(item, was.spread);
    for (const Piece& piece : was.pieces) s.place(s.add(piece.form, piece.width), piece.device);
    price_all(s);
}

// A way of an item: a spread, or a form and the widths of its pieces.
struct Way {
    int spread = NONE, form = NONE;
    std::vector<int> widths;
};

// At least `count` pieces of a form, as even as possible, more if so few are not allowed; none if there is no such number.
inline std::vector<int> even_widths(const Solution& s, int form, int count) {
    const Problem& p = *s.problem;
    const int units = p.units(form);
    const auto most = static_cast<int>(std::min<std::int64_t>({p.most[p.owner(form)], units, p.room - s.live()}));
    for (int pieces = std::max(std::min(count, most), 1); pieces <= most; ++pieces) {
        std::vector<int> widths;
        bool legal = true;
        for (std::int64_t piece = 0; piece < pieces && legal; ++piece) {
            widths.push_back(static_cast<int>((piece + 1) * units / pieces - piece * units / pieces));
            legal = p.legal[p.row(form, widths.back())];
        }
        if (legal) return widths;
    }
    return {};
}

// Add the spreads of an item; of spreads that differ only in their devices, the one with the least busy devices.
inline void add_spreads(const Solution& s, int item, std::vector<Way>& ways) {
    const Problem& p = *s.problem;
    double least = 0.0;
    int last = NONE;
    for (auto spread = static_cast<int>(p.spreads.first[item]); spread < p.spreads.first[item + 1]; ++spread) {
        if (!s.may_take(item, spread)) continue;
        double load = 0.0;
        for (auto device : p.devices_of(spread)) load += s.load(static_cast<int>(device));
        const bool alike = last >= 0 && p.spreads.bytes[spread] == p.spreads.bytes[last] && p.spreads.sets[spread] == p.spreads.sets[last] &&
                           p.devices_of(spread).size() == p.devices_of(last).size();
        if (alike && load >= least) continue;
        if (alike) ways.pop_back();
        ways.push_back({spread, NONE, {}});
        least = load;
        last = spread;
    }
}

inline constexpr double COSTLY = 0.02;   // of the step time: items that cost less alone are not worth another way
inline constexpr std::size_t REHOUSED = 48;  // items of a round
inline constexpr int DEVICES_PRICED = 8;     // a way is priced on all devices; so many cost as much as one change of a piece
inline constexpr double GAINING = 1e-4;  // of the step time: least gain without an item for another way to be tried

// The ways of an item to try: whole, every form in a few numbers of even pieces, every spread.
inline std::vector<Way> ways_to_try(const Solution& s, int item) {
    const Problem& p = *s.problem;
    const double most = std::max(2.0, 2.0 * p.price[p.whole(item)] / (COSTLY * s.step_ms()));
    const int near = static_cast<int>(p.links.per_host);
    std::vector<Way> found;
    if (p.legal[p.whole(item)]) found.push_back({NONE, item, {p.units(item)}});
    int form = item;
    do {
        for (int count = 2; count <= std::min<double>(p.units(form), most); count *= 2) {
            if (p.equal[form] && count < p.units(form)) continue;
            // Equal row blocks on all devices of a host, or on all, are spreads: collectives reduce them.
            if (form >= p.items && !p.equal[form] && (count == near || count == p.devices)) continue;
            if (auto widths = even_widths(s, form, count); widths.size() > 1) found.push_back({NONE, form, std::move(widths)});
        }
        form = static_cast<int>(p.next_form[form]);
    } while (form != item);
    add_spreads(s, item, found);
    return found;
}

// Place an unplaced item in this way, each piece where the objective rises least; false, and the item stays unplaced, if there is no room.
inline bool lie(Solution& s, int item, const Way& way) {
    if (way.spread >= 0) {
        if (!s.spread_fits(way.spread)) return false;
        s.take_spread(item, way.spread);
    }
    for (int width : way.widths) {
        const int piece = s.add(way.form, width), device = coolest_device(s, piece);
        if (device < 0) {
            s.clear(item);
            price_all(s);
            return false;
        }
        const int there = way.widths.size() > 1 ? s.piece_on(item, device) : NONE;
        s.place(piece, device);
        if (there >= 0) {  // one piece of both
            s.lift(there);
            s.lift(piece);
            s.pieces[piece].width += s.pieces[there].width;
            s.place(piece, device);
            s.drop(there);
        }
        s.refresh_calls(device);
        s.refresh_links(device);
        refresh_objective(s, device);
    }
    price_all(s);
    return true;
}

// Price of all that the devices of an item receive, in ms of the objective.
inline double received_by(const Solution& s, int item) {
    const Problem& p = *s.problem;
    if (!p.warm()) return 0.0;
    double ms = s.spread_of[item] >= 0 ? p.home.spread_ms[s.spread_of[item]] : 0.0;
    for (int piece = s.of_item[item]; piece >= 0; piece = s.pieces[piece].next_of_item)
        ms += p.ms_to_receive(s.pieces[piece].form, s.pieces[piece].width, s.pieces[piece].device);
    return ms;
}

inline constexpr double PIECE = 1e-4;  // of the step time: least gain for each piece of the item

// Sum of the smoothed step, the price of moves and that of the pieces.
inline double smoothed_value(const Solution& s, int item) {
    return smoothed_step(s) * (1 + PIECE * s.pieces_of[item]) + received_by(s, item);
}

// Place an item in the way that lowers the smoothed step most; returns whether any does.
inline bool rehouse(Solution& s, int item, const Stop& stop) {
    const Lying was = lying(s, item);
    double best = smoothed_value(s, item) * (1 - 1e-9);
    s.clear(item);
    price_all(s);
    const Way* chosen = nullptr;
    const std::vector<Way> ways = ways_to_try(s, item);
    for (const Way& way : ways) {
        stop.count(Change::way, false, 1 + s.problem->devices / DEVICES_PRICED);
        if (!lie(s, item, way)) continue;
        if (const double found = smoothed_value(s, item); found < best) {
            best = found;
            chosen = &way;
        }
        s.clear(item);
        price_all(s);
    }
    if (chosen && lie(s, item, *chosen)) return true;  // with other rounding, pieces may not find room again
    put_back(s, item, was);
    return false;
}

// Rehouse spread and costly items, those first without which the step gains most; returns the number of changed ones.
inline int respread(Solution& s, const Stop& stop) {
    const Problem& p = *s.problem;
    const double costly = COSTLY * s.step_ms(), now = smoothed_step(s);
    std::vector<std::pair<double, int>> gains;
    for (int item = 0; item < p.items && !stop.late(); ++item) {
        if (s.spread_of[item] < 0 && p.price[p.whole(item)] <= costly) continue;
        const Lying was = lying(s, item);
        s.clear(item);
        price_all(s);
        const double gain = now - smoothed_step(s);
        put_back(s, item, was);
        if (gain > GAINING * now) gains.emplace_back(-gain, item);
    }
    std::sort(gains.begin(), gains.end());
    int changed = 0;
    for (std::size_t place = 0; place < std::min(gains.size(), REHOUSED) && !stop.late(); ++place) {
        const bool taken = rehouse(s, gains[place].second, stop);
        stop.count(Change::way, taken, 0);  // the ways were counted one by one
        changed += taken;
    }
    return changed;
}

// The form with the widest blocks that all pieces of an item are made of, or NONE if they have it already.
inline int wider_form(const Solution& s, int item) {
    const Problem& p = *s.problem;
    const int head = s.of_item[item];
    if (head < 0 || !p.equal[s.pieces[head].form] || s.pieces_of[item] < 2) return NONE;
    const int old = s.pieces[head].form, units = p.units(old);
    int common = 0, best = NONE, fewest = units;
    for (int piece = head; piece >= 0; piece = s.pieces[piece].next_of_item) common = std::gcd(common, s.pieces[piece].width);
    for (auto form = p.next_form[old]; form != old; form = p.next_form[form]) {
        const int count = p.units(static_cast<int>(form));
        if (p.equal[form] && count < fewest && units % count == 0 && common % (units / count) == 0) {
            best = static_cast<int>(form);
            fewest = count;
        }
    }
    return best;
}

// Put the pieces of an item in another form, each on its device; its width must be a whole number of units there.
inline void recut(Solution& s, int item, int form) {
    const std::int64_t before = s.problem->units(s.pieces[s.of_item[item]].form), after = s.problem->units(form);
    for (int piece = s.of_item[item]; piece >= 0; piece = s.pieces[piece].next_of_item) {
        const int device = s.pieces[piece].device;
        s.lift(piece);
        s.pieces[piece].form = form;
        s.pieces[piece].width = static_cast<int>(s.pieces[piece].width * after / before);
        s.place(piece, device);
    }
    price_all(s);
}

// Join blocks of items that must have equal ones, two by two or more, if the numbers on their devices allow it and it helps.
inline void widen(Solution& s) {
    for (int item = 0; item < s.problem->items; ++item) {
        const int form = wider_form(s, item);
        if (form < 0) continue;
        const double before = total_objective(s);
        const int old = s.pieces[s.of_item[item]].form;
        recut(s, item, form);
        if (total_objective(s) > before) recut(s, item, old);
    }
}

}  // namespace shardwright
