// Constants of a search. Letters: d devices, c kinds of fused calls, h hidden units, f forms, r rows of the piece arrays.
//
// An *item* is a table or a colocated group. It lies in *pieces*, all of one of its forms, or in one of its spreads. A form cuts the item
// into units: columns or rows. A piece of w units is row `first[form] + w - 1` of the piece arrays. A spread is the item on several devices
// at once, in equal row blocks or as replicas. The *parts* of a row are the vectors that it adds to calls of
// its device: usually one; for a colocated group, one for each call that serves some of its tables.
#pragma once

#include <cmath>
#include <limits>
#include <stdexcept>
#include <string>

#include "basics.hpp"
#include "pricing.hpp"

namespace shardwright {

// Vectors that rows of pieces, or spreads, add to calls.
struct Parts {
    Ints begin;      // (rows + 1,) where the parts of each row begin
    Ints call;       // (parts,) the call that each part is in
    Floats vectors;  // (parts, h + 2)
};

// The plan to start from. Empty arrays stand for none.
struct Home {
    Ints form;          // (items,) form that an item had, or -1
    Ints first;         // (items + 1,) where the devices that held a part of it begin
    Ints device;        // those devices, ascending for each item
    Ints width, start;  // units that they held, and the first of these
    Floats unit_ms;     // (f,) ms that a unit costs a device that has to receive it
    Floats spread_ms;   // (spreads,) ms that taking each spread costs, over all its devices
    double least_ms = 0.0;  // least of every plan: some device has to receive the units that none holds
};

struct Problem {
    Ints first;          // (f + 1,) where the pieces of each form begin
    Ints item;           // (f,) the item that a form cuts
    Ints next_form;      // (f,) the item's next form, the first after the last; form i is one of item i
    Bools equal;         // (f,) whether a piece of w units is w blocks
    Parts parts;         // of pieces
    Ints bytes;          // (r,) memory of a piece
    Floats served;       // (r, 2) bytes of values and of ids that its holder serves
    Ints sets;           // (items,) sets of collectives that an item in pieces needs, a bit each
    Floats set_ms;       // ms of the latencies of each set
    Bools legal;         // (r,) whether a piece is allowed
    Floats price;        // (r,) rough ms that a piece adds to its device
    Ints most;           // (items,) most pieces
    Bools allowed;       // (items, d) whether a device may hold an item; empty if every device may hold all
    Bools rivals;        // (items, items) whether two items may not share a device; empty if all may
    Ints spread_first;   // (items + 1,) the spreads of each item
    Ints spread_range;   // (spreads, 2) where the devices of each spread begin and end
    Ints spread_device;  // devices of all spreads
    Parts spread_parts;  // vectors that a spread adds to each of its devices
    Ints spread_bytes;   // (spreads,)
    Floats spread_served;  // (spreads, 3) bytes of values to near and to far devices, and of ids
    Floats spread_apart;   // (spreads, 2) ms of each device's collectives besides all-to-alls, forward and backward
    Ints spread_sets;      // (spreads,) as `sets`
    Head head;
    Floats base;         // (h + 2,) the sums of a call with nothing in it
    Ms once;             // time of a device besides its calls
    Ints memory;         // (d,) bytes
    Links links;
    Home home;

    int items = 0, devices = 0, hosts = 0, calls = 1, room = 0;  // room: most pieces of all items
    std::size_t width = 2;                                       // h + 2

    int units(int form) const { return static_cast<int>(first[form + 1] - first[form]); }
    int row(int form, int width_) const { return static_cast<int>(first[form]) + width_ - 1; }
    int whole(int one) const { return static_cast<int>(first[one + 1]) - 1; }  // the row of an item's only piece
    int owner(int form) const { return static_cast<int>(item[form]); }
    const double* vector(const Parts& of, std::int64_t part) const { return of.vectors.data() + part * static_cast<std::int64_t>(width); }
    Bytes serves(int row_) const { return {served[2 * row_], served[2 * row_], served[2 * row_ + 1]}; }
    Bytes spread_serves(int spread) const { return {spread_served[3 * spread], spread_served[3 * spread + 1], spread_served[3 * spread + 2]}; }
    Ms apart(int spread) const { return {spread_apart[2 * spread], spread_apart[2 * spread + 1]}; }
    bool warm() const { return !home.first.empty(); }
    bool are_rivals(int one, int other) const { return rivals[static_cast<std::size_t>(one) * items + other]; }
    bool may_go(int one, int device) const { return allowed.empty() || allowed[static_cast<std::size_t>(one) * devices + device]; }

    std::span<const std::int64_t> devices_of(int spread) const {
        const auto begin = spread_range[2 * spread], end = spread_range[2 * spread + 1];
        return spread_device.subspan(begin, end - begin);
    }

    bool in_spread(int spread, int device) const {
        for (auto one : devices_of(spread))
            if (one == device) return true;
        return false;
    }

    // Ms that count for a device that receives `count` units of a form, beyond what it held in the plan to start from. A share of the
    // columns is that share of any rows, and vice versa.
    double ms_to_receive(int form, int count, int device) const {
        const int one = owner(form), before = static_cast<int>(home.form[one]);
        const double each = home.unit_ms[form];
        if (before >= 0 && each > 0)
            for (auto place = home.first[one]; place < home.first[one + 1]; ++place)
                if (home.device[place] == device) {
                    const auto held = home.width[place];
                    if (before == form) return each * static_cast<double>(std::max<std::int64_t>(0, count - held));
                    return each * count * (1.0 - static_cast<double>(held) / units(before));
                }
        return each * count;
    }

    // Derives the counts, and checks that no index leads outside of an array; shapes are checked by whoever fills the arrays.
    void settle();
};

namespace detail {

inline void require(bool holds, const std::string& rule) {
    if (!holds) throw std::invalid_argument(rule);
}

inline void require_within(Ints values, std::int64_t low, std::int64_t high, const char* name) {
    for (auto value : values)
        require(low <= value && value < high,
                std::string(name) + " has " + std::to_string(value) + ", must be at least " + std::to_string(low) + " and below " +
                    std::to_string(high));
}

inline void require_offsets(Ints offsets, std::int64_t end, const char* name, std::int64_t least = 0) {
    require(!offsets.empty() && offsets.front() == 0 && offsets.back() == end, std::string(name) + " must begin with 0 and end with " + std::to_string(end));
    for (std::size_t place = 1; place < offsets.size(); ++place)
        require(offsets[place] - offsets[place - 1] >= least, std::string(name) + " must ascend by at least " + std::to_string(least));
}

inline void require_finite(Floats values, const char* name) {
    for (double value : values) require(std::isfinite(value), std::string(name) + " has NaN or an infinity, must be finite");
}

inline void require_positive(auto values, const char* name) {
    for (auto value : values) require(value >= 0, std::string(name) + " has " + std::to_string(value) + ", must be at least 0");
}

inline void require_parts(const Parts& parts, const std::string& name) {
    require_offsets(parts.begin, static_cast<std::int64_t>(parts.call.size()), (name + "part").c_str(), 1);
    require_finite(parts.vectors, (name + "vectors").c_str());
}

}  // namespace detail

inline void Problem::settle() {
    using namespace detail;
    constexpr std::int64_t most_rows = std::numeric_limits<std::int32_t>::max() / 2;
    require(!memory.empty(), "memory is empty: there must be at least one device");
    require(!most.empty(), "most is empty: there must be at least one item");
    require(std::max({memory.size(), most.size(), bytes.size(), spread_bytes.size(), parts.call.size()}) < most_rows,
            "there are more pieces than " + std::to_string(most_rows) + "; restrict cuts (min_columns), or plan the tables in parts");
    items = static_cast<int>(most.size());
    devices = static_cast<int>(memory.size());
    width = base.size();
    const auto forms = static_cast<std::int64_t>(item.size()), rows = static_cast<std::int64_t>(bytes.size());
    require(forms >= items, "item must have a form for each item");
    require(width == head.hidden + 2, "base must have h + 2 numbers");
    require_offsets(first, rows, "first", 1);
    require_within(item, 0, items, "item");
    require_within(next_form, 0, forms, "next_form");
    for (std::int64_t form = 0; form < forms; ++form)
        require((form >= items || item[form] == form) && item[next_form[form]] == item[form], "next_form must lead round the forms of an item");
    require_parts(parts, "");
    require_parts(spread_parts, "spread_");
    for (Ints of_parts : {parts.call, spread_parts.call}) {
        require_within(of_parts, 0, 1 << 20, "call");
        for (auto call : of_parts) calls = std::max(calls, static_cast<int>(call) + 1);
    }
    require_positive(bytes, "bytes");
    require_positive(spread_bytes, "spread_bytes");
    require_positive(served, "served");
    require_positive(set_ms, "set_ms");
    require(set_ms.size() <= 62, "set_ms must have at most 62 sets");
    require_within(sets, 0, std::int64_t{1} << set_ms.size(), "sets");
    require_within(spread_sets, 0, std::int64_t{1} << set_ms.size(), "spread_sets");
    require_positive(memory, "memory");
    require_positive(most, "most");
    require_finite(price, "price");
    require_finite(served, "served");
    require_offsets(spread_first, static_cast<std::int64_t>(spread_bytes.size()), "spread_first");
    require_within(spread_device, 0, devices, "spread_device");
    require_within(spread_range, 0, static_cast<std::int64_t>(spread_device.size()) + 1, "spread_range");
    for (std::size_t spread = 0; spread < spread_bytes.size(); ++spread)
        require(spread_range[2 * spread] <= spread_range[2 * spread + 1], "spread_range must begin before it ends");
    require(links.per_host >= 1 && links.devices == devices, "links must name the devices, and at least one device a host");
    if (warm()) {
        require(home.form.size() == most.size() && home.unit_ms.size() == item.size() && home.spread_ms.size() == spread_bytes.size(),
                "home_form, home_unit_ms and home_spread_ms must have a number for each item, form and spread");
        require(home.device.size() == home.width.size() && home.device.size() == home.start.size(), "home arrays must be of one length");
        require_offsets(home.first, static_cast<std::int64_t>(home.device.size()), "home_first");
        require_within(home.form, NONE, forms, "home_form");
        require_within(home.device, 0, devices, "home_device");
    }
    hosts = (devices + static_cast<int>(links.per_host) - 1) / static_cast<int>(links.per_host);
    room = 4 * items + 8 * devices + 64;  // splits stop there
}

}  // namespace shardwright
