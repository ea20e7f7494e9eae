// Changing the way of an item on many devices at once: between single pieces and spreads, and to wider blocks.
#pragma once

#include "placing.hpp"

namespace shardwright {

inline void price_all(Solution& s) {
    s.refresh();
    refresh_objective(s);
}

inline bool is_lower(const Solution& s, double before) { return total_objective(s) < before * (1 - 1e-9); }

// Spread an item, and undo that if it does not help.
inline bool try_spread(Solution& s, int item, int spread) {
    const Problem& p = *s.problem;
    double before = total_objective(s);
    if (p.warm()) before -= p.home.spread_ms[spread];  // the price of what moves counts like ms of the objective
    std::vector<std::pair<int, int>> lifted;
    for (int piece = s.of_item[item]; piece >= 0; piece = s.pieces[piece].next_of_item) {
        const Piece& one = s.pieces[piece];
        if (p.warm()) before += p.ms_to_receive(one.form, one.width, one.device);
        lifted.emplace_back(piece, one.device);
        s.lift(piece);
    }
    if (s.spread_fits(spread)) {
        s.take_spread(item, spread);
        price_all(s);
        if (is_lower(s, before)) {
            while (s.of_item[item] >= 0) s.drop(s.of_item[item]);
            return true;
        }
        s.leave_spread(item);
    }
    for (auto [piece, device] : lifted) s.place(piece, device);
    price_all(s);
    return false;
}

// Put a spread item whole on a device if that helps.
inline bool gather(Solution& s, int item) {
    const Problem& p = *s.problem;
    if (!p.legal[p.whole(item)]) return false;
    const int spread = s.spread_of[item];
    double before = total_objective(s);
    s.leave_spread(item);
    price_all(s);
    const int piece = s.add(item, p.units(item)), device = coolest_device(s, piece);
    if (device >= 0) {
        s.place(piece, device);
        price_all(s);
        if (p.warm()) before += p.home.spread_ms[spread] - p.ms_to_receive(item, p.units(item), device);
        if (is_lower(s, before)) return true;
        s.lift(piece);
    }
    s.drop(piece);
    s.take_spread(item, spread);
    price_all(s);
    return false;
}

// Spread every costly item, and gather every spread one, for which that lowers the objective; returns how many changed.
inline int respread(Solution& s, const Stop& stop) {
    const Problem& p = *s.problem;
    const double costly = 0.02 * s.step_ms();  // items that cost less alone are not worth spreading
    int changed = 0;
    for (int item = 0; item < p.items && !stop.late(); ++item) {
        if (s.spread_of[item] >= 0) {
            changed += gather(s, item);
        } else if (p.rivals.empty() && p.price[p.whole(item)] > costly) {
            for (auto spread = p.spread_first[item]; spread < p.spread_first[item + 1]; ++spread)
                if (try_spread(s, item, static_cast<int>(spread))) {
                    ++changed;
                    break;
                }
        }
    }
    return changed;
}

// The form with the widest blocks that all pieces of an item are made of, or NONE where it is the one that they have.
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

// Join the blocks of items that must have equal ones, two by two or more, where their devices have such numbers of them and that helps.
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
