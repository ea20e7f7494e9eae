// Changing the way of an item on many devices at once: between single pieces and spreads, from host to host, and to wider blocks.
#pragma once

#include "placing.hpp"

namespace shardwright {

inline void price_all(Solution& s) {
    s.refresh();
    refresh_objective(s);
}

// A way of an item: a spread, or a form and the widths of its pieces.
struct Way {
    int spread = NONE, form = NONE;
    std::vector<int> widths;
};

// At least `count` pieces of a form, as even as possible, more where so few are not allowed; none where that is not possible.
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

// The ways of an item that are worth a try: whole, every form in a few numbers of even pieces, every spread.
inline std::vector<Way> ways_to_try(const Solution& s, int item) {
    const Problem& p = *s.problem;
    const int near = static_cast<int>(p.links.per_host);
    std::vector<Way> found;
    if (p.legal[p.whole(item)]) found.push_back({NONE, item, {p.units(item)}});
    int form = item;
    do {
        for (int count = 2; count <= p.units(form); count *= 2) {
            if (p.equal[form] && count < p.units(form)) continue;
            // Equal row blocks on all devices of a host, or on all, are spreads: collectives reduce them.
            if (form >= p.items && !p.equal[form] && (count == near || count == p.devices)) continue;
            if (auto widths = even_widths(s, form, count); widths.size() > 1) found.push_back({NONE, form, std::move(widths)});
        }
        form = static_cast<int>(p.next_form[form]);
    } while (form != item);
    if (p.rivals.empty())
        for (auto spread = static_cast<int>(p.spread_first[item]); spread < p.spread_first[item + 1]; ++spread) found.push_back({spread});
    return found;
}

// Let an item that lies nowhere lie in this way, each piece where the objective rises least; false, and it lies nowhere, where there is no room.
inline bool lie(Solution& s, int item, const Way& way) {
    if (way.spread >= 0) {
        if (!s.spread_fits(way.spread)) return false;
        s.take_spread(item, way.spread);
    }
    for (int width : way.widths) {
        const int piece = s.add(way.form, width), device = coolest_device(s, piece);
        if (device < 0) {
            s.clear(item);
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

// Ms that the devices of an item receive, which count like ms of the objective.
inline double received_by(const Solution& s, int item) {
    const Problem& p = *s.problem;
    if (!p.warm()) return 0.0;
    double ms = s.spread_of[item] >= 0 ? p.home.spread_ms[s.spread_of[item]] : 0.0;
    for (int piece = s.of_item[item]; piece >= 0; piece = s.pieces[piece].next_of_item)
        ms += p.ms_to_receive(s.pieces[piece].form, s.pieces[piece].width, s.pieces[piece].device);
    return ms;
}

// Let an item lie in the way that lowers the step, smoothed, most; returns whether any does.
inline bool rehouse(Solution& s, int item) {
    const auto value = [&] { return smoothed_step(s) + received_by(s, item); };
    const double before = value();
    const int spread = s.spread_of[item];
    std::vector<Piece> pieces;
    for (int piece = s.of_item[item]; piece >= 0; piece = s.pieces[piece].next_of_item) pieces.push_back(s.pieces[piece]);
    s.clear(item);
    price_all(s);
    double best = before * (1 - 1e-9);
    const Way* chosen = nullptr;
    const std::vector<Way> ways = ways_to_try(s, item);
    for (const Way& way : ways) {
        if (!lie(s, item, way)) continue;
        if (const double found = value(); found < best) {
            best = found;
            chosen = &way;
        }
        s.clear(item);
        price_all(s);
    }
    if (chosen) return lie(s, item, *chosen);
    if (spread >= 0) s.take_spread(item, spread);
    for (const Piece& piece : pieces) s.place(s.add(piece.form, piece.width), piece.device);
    price_all(s);
    return false;
}

// Rehouse every item that is spread or costly; returns how many changed.
inline int respread(Solution& s, const Stop& stop) {
    const Problem& p = *s.problem;
    const double costly = 0.02 * s.step_ms();  // items that cost less alone are not worth another way
    int changed = 0;
    for (int item = 0; item < p.items && !stop.late(); ++item)
        if (s.spread_of[item] >= 0 || p.price[p.whole(item)] > costly) changed += rehouse(s, item);
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
