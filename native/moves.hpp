// Moves of a piece or a part of it to another device, and trades of two pieces: their gain, the best one, and its execution.
#pragma once

#include "objective.hpp"

namespace shardwright {

struct Transfer {
    double gain = 0.0;
    int piece = NONE, form = 0, units = 0;  // no piece: nothing gains enough
};

struct Swap {
    double gain = 0.0;
    int mine = NONE, other = NONE;
};

// Change of both objectives if the row `before` on `one` becomes `left`, and `held` on `target` becomes `joined`; NONE for no piece.
// A gain of at most `least` may be returned as minus infinity, before all of it is priced.
inline double pair_gain(const Solution& s, int one, int before, int left, int target, int held, int joined, double least) {
    const Problem& p = *s.problem;
    const auto serves = [&](int row) { return row >= 0 ? p.serves(row) : Bytes{}; };
    const Bytes out = serves(before) - serves(left), in = serves(joined) - serves(held), all = in - out, less = Bytes{} - out;
    const bool together = p.links.host_of(one) == p.links.host_of(target);
    const double objective = s.objective[one] + s.objective[target];
    const double target_objective = objective_after(s, target, held, joined, in, together ? all : in, all);
    if (objective - target_objective <= least) return -std::numeric_limits<double>::infinity();  // an objective is never negative
    return objective - target_objective - objective_after(s, one, before, left, less, together ? all : less, all);
}

// Parts of a piece to try: all of it, then parts that would make two devices about level, and half of that; 0 for none.
inline int units_to_try(int width, double price, double apart, int attempt) {
    if (attempt == 0) return width;
    if (width < 2 || price <= 0 || apart <= 0) return 0;
    const int level = static_cast<int>(width * std::min(1.0, 0.5 * apart / price));
    if (attempt == 1) return std::min(std::max(level, 1), width - 1);
    if (attempt == 2) return 1 <= level && level < width - 1 ? level + 1 : 0;
    if (attempt == 3) return level >= 4 ? level / 2 : 0;
    return 2 <= level && level < width ? level - 1 : 0;
}

// Gain of a transfer of `units` of a piece of `width` units of a form; at most `least` if it is forbidden or not worthwhile.
inline double transfer_gain(const Solution& s, int one, int target, int form, int width, int units, int there, double least) {
    const Problem& p = *s.problem;
    const int before = p.row(form, width), left = units < width ? before - units : NONE;
    const int held = there ? p.row(form, there) : NONE, joined = p.row(form, there + units);
    const double never = -std::numeric_limits<double>::infinity();
    if (!p.legal[joined] || (left >= 0 && !p.legal[left])) return never;
    if (p.bytes[joined] - (there ? p.bytes[held] : 0) > s.room_on(target)) return never;
    double gain = pair_gain(s, one, before, left, target, held, joined, least);
    const auto serves = [&](int row) { return row >= 0 ? p.serves(row) : Bytes{}; };
    if (gain > least) gain -= others_objective(s, one, target, serves(before) - serves(left), serves(joined) - serves(held));
    if (p.warm() && gain > least)
        gain -= p.ms_to_receive(form, there + units, target) - p.ms_to_receive(form, there, target) +
                p.ms_to_receive(form, width - units, one) - p.ms_to_receive(form, width, one);
    return gain;
}

// The best transfer from one device to another that gains more than `least`. If pieces may be cut, a whole item is tried in its other forms,
// too; else pieces are moved, or units are shifted to a device that holds a piece of the same item.
inline Transfer best_transfer(const Solution& s, int one, int target, double least, bool may_cut) {
    const Problem& p = *s.problem;
    Transfer best{least};
    const double apart = s.load(one) - s.load(target);
    for (int piece = s.on_device[one]; piece >= 0; piece = s.pieces[piece].next_on_device) {
        int form = s.pieces[piece].form, width = s.pieces[piece].width;
        const int item = p.owner(form), there = s.pieces_of[item] > 1 ? s.width_on(item, target) : 0;
        do {
            for (int attempt = may_cut ? 1 : 0; attempt < (may_cut || there ? 5 : 1); ++attempt) {
                const int units = units_to_try(width, p.price[p.row(form, width)], apart, attempt);
                if (units < 1 || (units < width && !there && s.pieces_of[item] >= p.most[item])) continue;
                const double gain = transfer_gain(s, one, target, form, width, units, there, best.gain);
                if (gain > best.gain && s.may_lie(item, target)) best = {gain, piece, form, units};
            }
            form = static_cast<int>(p.next_form[form]);
            width = p.units(form);
        } while (may_cut && form != s.pieces[piece].form && s.pieces_of[item] == 1);
    }
    return best;
}

// Whether two pieces may trade places: neither device may hold a piece of the other's item or a rival, not even one that leaves.
inline bool may_swap(const Solution& s, int mine, int other) {
    const int item = s.item_of(mine), other_item = s.item_of(other), one = s.pieces[mine].device, target = s.pieces[other].device;
    if (item == other_item || s.piece_on(item, target) >= 0 || s.piece_on(other_item, one) >= 0) return false;
    return s.may_lie(item, target) && s.may_lie(other_item, one);
}

// The best pair of pieces to trade between two devices that gains more than `least`.
inline Swap best_swap(const Solution& s, int one, int target, double least) {
    const Problem& p = *s.problem;
    Swap best{least};
    const double apart = s.load(one) - s.load(target);
    const auto room = s.room_on(target), room_here = s.room_on(one);
    if (apart <= 0) return best;
    for (int mine = s.on_device[one]; mine >= 0; mine = s.pieces[mine].next_on_device) {
        const int row = s.row_of(mine);
        for (int other = s.on_device[target]; other >= 0; other = s.pieces[other].next_on_device) {
            const int in = s.row_of(other);
            const double moved = p.price[row] - p.price[in];
            const auto grown = p.bytes[row] - p.bytes[in];
            if (moved <= 0 || moved >= apart || grown > room || -grown > room_here) continue;
            double gain = pair_gain(s, one, row, in, target, in, row, best.gain);
            if (gain > best.gain) {
                const Bytes less = p.serves(row) - p.serves(in);
                gain -= others_objective(s, one, target, less, less);
            }
            if (p.warm() && gain > best.gain) {
                const Piece &a = s.pieces[mine], &b = s.pieces[other];
                gain -= p.ms_to_receive(a.form, a.width, target) - p.ms_to_receive(a.form, a.width, one) +
                        p.ms_to_receive(b.form, b.width, one) - p.ms_to_receive(b.form, b.width, target);
            }
            if (gain > best.gain && may_swap(s, mine, other)) best = {gain, mine, other};
        }
    }
    return best;
}

// Price two devices with changed sums anew, and the affected links: those of their hosts, and those of all others only if the total of
// served bytes changed.
inline void refresh_two(Solution& s, int one, int other, Bytes all_before) {
    s.refresh_calls(one);
    s.refresh_calls(other);
    const LinkFacts& links = s.problem->links;
    const Bytes more = s.served_by_all - all_before;
    const bool same_total = more.nothing();
    for (int device = 0; device < s.problem->devices; ++device) {
        const int host = links.host_of(device);
        if (same_total && host != links.host_of(one) && host != links.host_of(other)) continue;
        s.refresh_links(device);
        refresh_objective(s, device);
    }
}

inline void make(Solution& s, const Transfer& transfer, int target) {
    const int one = s.pieces[transfer.piece].device, item = s.problem->owner(transfer.form);
    const Bytes all_before = s.served_by_all;
    s.lift(transfer.piece);
    if (transfer.form != s.pieces[transfer.piece].form) {
        s.pieces[transfer.piece].form = transfer.form;
        s.pieces[transfer.piece].width = s.problem->units(transfer.form);
    }
    const int there = s.piece_on(item, target);
    if (transfer.units < s.pieces[transfer.piece].width) {
        s.pieces[transfer.piece].width -= transfer.units;
        s.place(transfer.piece, one);
        if (there < 0) s.place(s.add(transfer.form, transfer.units), target);
    } else if (there < 0) {
        s.place(transfer.piece, target);
    }
    if (there >= 0) {
        s.lift(there);
        s.pieces[there].width += transfer.units;
        s.place(there, target);
        if (s.pieces[transfer.piece].device < 0) s.drop(transfer.piece);
    }
    refresh_two(s, one, target, all_before);
}

inline void make(Solution& s, const Swap& swap) {
    const int one = s.pieces[swap.mine].device, target = s.pieces[swap.other].device;
    const Bytes all_before = s.served_by_all;
    s.lift(swap.mine);
    s.lift(swap.other);
    s.place(swap.mine, target);
    s.place(swap.other, one);
    refresh_two(s, one, target, all_before);
}

}  // namespace shardwright
