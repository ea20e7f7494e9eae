// Constants of a search. Letters: d devices, c kinds of fused calls, h hidden units, f forms, r rows of the piece arrays.
//
// An *item* is a table or a colocated group. It lies in *pieces*, all of one of its forms, or in one of its spreads. A form cuts the item
// into units: columns or rows. A piece of w units is row `first[form] + w - 1` of the piece arrays. A spread is the item on several devices
// at once, in equal row blocks or as replicas. The *parts* of a row are the vectors that it adds to calls of
// its device: usually one; for a colocated group, one for each call that serves some of its tables.
#pragma once

#include <limits>
#include <numeric>

#include "pricing.hpp"

namespace shardwright {

// Vectors that rows of pieces, or spreads, add to calls; row i has the parts [part[i], part[i + 1]).
struct Added {
    From from;
    std::size_t rows, width;
    Ints part = from->ints("part", {rows + 1});
    Ints call = from->ints("call", {ANY});  // the call that each part is in
    Floats vectors = from->floats("vectors", {call.size(), width});

    const double* vector(std::int64_t place) const { return vectors.data() + place * static_cast<std::int64_t>(width); }
};

// Items on several devices at once.
struct SpreadArrays {
    From from;
    std::size_t items, width;
    Ints bytes = from->ints("bytes", {ANY});
    std::size_t size = bytes.size();
    Ints first = from->ints("first", {items + 1});  // the spreads of each item
    Ints range = from->ints("range", {size, 2});    // where the devices of each begin and end
    Ints device = from->ints("device", {ANY});      // devices of all spreads
    Added added{from->at("added"), size, width};    // vectors that a spread adds to each of its devices
    Floats served = from->floats("served", {size, 3});  // bytes of values to near and to far devices, and of ids
    Floats apart = from->floats("apart", {size, 2});    // ms of each device's collectives besides all-to-alls, forward and backward
    Ints sets = from->ints("sets", {size});             // as those of items
};

// The plan to start from. Empty arrays stand for none.
struct Home {
    From from;
    std::size_t items, forms, spreads;
    Ints form = from->ints("form", {items}, OR_NONE);        // form that an item had, or -1
    Ints first = from->ints("first", {items + 1}, OR_NONE);  // where the devices that held a part of it begin
    Ints device = from->ints("device", {ANY});               // those devices, ascending for each item
    Ints width = from->ints("width", {device.size()});       // units that they held
    Ints start = from->ints("start", {device.size()});       // the first of these
    Floats unit_ms = from->floats("unit_ms", {forms}, OR_NONE);        // ms that a unit costs a device that has to receive it
    Floats spread_ms = from->floats("spread_ms", {spreads}, OR_NONE);  // ms that taking each spread costs, over all its devices
    Floats least_ms = from->floats("least_ms", {items}, OR_NONE);      // least of every plan: some device has to receive what none holds
};

struct Problem {
    From from, of_home;
    Ints most = from->ints("most", {SOME});      // most pieces of an item
    Ints memory = from->ints("memory", {SOME});  // bytes of a device
    int items = static_cast<int>(most.size()), devices = static_cast<int>(memory.size());
    Ints item = from->ints("item", {ANY});  // the item that a form cuts
    std::size_t forms = item.size();
    Ints first = from->ints("first", {forms + 1});     // where the pieces of each form begin
    Ints next_form = from->ints("next_form", {forms});  // the item's next form, the first after the last; form i is one of item i
    Bools equal = from->bools("equal", {forms});        // whether a piece of w units is w blocks
    Ints bytes = from->ints("bytes", {ANY});  // memory of a piece
    std::size_t rows = bytes.size();
    Floats served = from->floats("served", {rows, 2});  // bytes of values and of ids that its holder serves
    Bools legal = from->bools("legal", {rows});         // whether a piece is allowed
    Floats price = from->floats("price", {rows});       // rough ms that a piece adds to its device
    Ints sets = from->ints("sets", {items});            // sets of collectives that an item in pieces needs, a bit each
    Floats set_ms = from->floats("set_ms", {ANY});      // ms of the latencies of each set
    Bools allowed = from->bools("allowed", {items, devices}, OR_NONE);  // whether a device may hold an item; empty if every device may hold all
    Bools rivals = from->bools("rivals", {items, items}, OR_NONE);      // whether two items may not share a device; empty if all may
    PricingHead head{from->at("head")};
    std::size_t width = head.width;
    Added added{from->at("added"), rows, width};  // of pieces
    SpreadArrays spreads{from->at("spreads"), most.size(), width};
    LinkFacts links{from->at("links")};
    Home home{of_home, most.size(), forms, spreads.size};
    double least_ms = std::accumulate(home.least_ms.begin(), home.least_ms.end(), 0.0);
    int hosts = 0, calls = 1, room = 0;  // room: most pieces of all items

    int units(int form) const { return static_cast<int>(first[form + 1] - first[form]); }
    int row(int form, int width_) const { return static_cast<int>(first[form]) + width_ - 1; }
    int whole(int one) const { return static_cast<int>(first[one + 1]) - 1; }  // the row of an item's only piece
    int owner(int form) const { return static_cast<int>(item[form]); }
    Bytes serves(int row_) const { return {served[2 * row_], served[2 * row_], served[2 * row_ + 1]}; }
    Bytes spread_serves(int spread) const { return {spreads.served[3 * spread], spreads.served[3 * spread + 1], spreads.served[3 * spread + 2]}; }
    Ms apart(int spread) const { return {spreads.apart[2 * spread], spreads.apart[2 * spread + 1]}; }
    bool warm() const { return !home.first.empty(); }
    bool are_rivals(int one, int other) const { return rivals[static_cast<std::size_t>(one) * items + other]; }
    bool may_go(int one, int device) const { return allowed.empty() || allowed[static_cast<std::size_t>(one) * devices + device]; }

    std::span<const std::int64_t> devices_of(int spread) const {
        const auto begin = spreads.range[2 * spread], end = spreads.range[2 * spread + 1];
        return spreads.device.subspan(begin, end - begin);
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

    // Checks that no index leads outside of an array, and derives the last counts.
    void settle();
};

namespace detail {

inline void require_within(Ints values, std::int64_t low, std::int64_t high, const char* name) {
    for (auto value : values)
        require(low <= value && value < high, [&] {
            return std::string(name) + " has " + std::to_string(value) + ", must be at least " + std::to_string(low) + " and below " +
                   std::to_string(high);
        });
}

inline void require_offsets(Ints offsets, std::int64_t end, const char* name, std::int64_t least = 0) {
    require(!offsets.empty() && offsets.front() == 0 && offsets.back() == end, std::string(name) + " must begin with 0 and end with " + std::to_string(end));
    for (std::size_t place = 1; place < offsets.size(); ++place)
        require(offsets[place] - offsets[place - 1] >= least, [&] { return std::string(name) + " must ascend by at least " + std::to_string(least); });
}

inline void require_finite(Floats values, const char* name) {
    for (double value : values) require(std::isfinite(value), [&] { return std::string(name) + " has NaN or an infinity, must be finite"; });
}

inline void require_positive(auto values, const char* name) {
    for (auto value : values) require(value >= 0, [&] { return std::string(name) + " has " + std::to_string(value) + ", must be at least 0"; });
}

inline void require_added(const Added& added, std::int64_t calls, const std::string& path) {
    require_offsets(added.part, static_cast<std::int64_t>(added.call.size()), (path + "part").c_str(), 1);
    require_within(added.call, 0, calls, (path + "call").c_str());
    require_finite(added.vectors, (path + "vectors").c_str());
}

inline void require_links(const LinkFacts& links, double devices) {
    for (double ms : {links.forward[0], links.forward[1], links.backward[0], links.backward[1], links.hidden[0], links.hidden[1], links.hidden[2],
                      links.mean[0], links.mean[1], links.mean[2], links.mean[3]})
        require(std::isfinite(ms) && ms >= 0.0, "links must be finite and at least 0");
    require(links.per_host >= 1.0 && links.devices == devices, "links must name the devices, and at least one device a host");
}

}  // namespace detail

inline void Problem::settle() {
    using namespace detail;
    constexpr std::int64_t most_rows = std::numeric_limits<std::int32_t>::max() / 2, most_calls = 1 << 20;
    require(std::max({memory.size(), most.size(), rows, spreads.size, added.call.size()}) < most_rows,
            "there are more pieces than " + std::to_string(most_rows) + "; restrict cuts (min_columns), or plan the tables in parts");
    const auto forms = static_cast<std::int64_t>(item.size());
    require(forms >= items, "item must have a form for each item");
    require_offsets(first, static_cast<std::int64_t>(rows), "first", 1);
    require_within(item, 0, items, "item");
    require_within(next_form, 0, forms, "next_form");
    for (std::int64_t form = 0; form < forms; ++form)
        require((form >= items || item[form] == form) && item[next_form[form]] == item[form], "next_form must lead round the forms of an item");
    require_added(added, most_calls, "added.");
    require_added(spreads.added, most_calls, "spreads.added.");
    for (Ints of_parts : {added.call, spreads.added.call})
        for (auto call : of_parts) calls = std::max(calls, static_cast<int>(call) + 1);
    require_positive(bytes, "bytes");
    require_positive(spreads.bytes, "spreads.bytes");
    require_positive(served, "served");
    require_positive(set_ms, "set_ms");
    require(set_ms.size() <= 62, "set_ms must have at most 62 sets");
    require_within(sets, 0, std::int64_t{1} << set_ms.size(), "sets");
    require_within(spreads.sets, 0, std::int64_t{1} << set_ms.size(), "spreads.sets");
    require_positive(memory, "memory");
    require_positive(most, "most");
    require_finite(price, "price");
    require_finite(served, "served");
    require_offsets(spreads.first, static_cast<std::int64_t>(spreads.size), "spreads.first");
    require_within(spreads.device, 0, devices, "spreads.device");
    require_within(spreads.range, 0, static_cast<std::int64_t>(spreads.device.size()) + 1, "spreads.range");
    for (std::size_t spread = 0; spread < spreads.size; ++spread)
        require(spreads.range[2 * spread] <= spreads.range[2 * spread + 1], "spreads.range must begin before it ends");
    require_links(links, devices);
    if (warm()) {
        require(home.form.size() == most.size() && home.unit_ms.size() == item.size() && home.spread_ms.size() == spreads.size,
                "form, unit_ms and spread_ms of home must have a number for each item, form and spread");
        require_offsets(home.first, static_cast<std::int64_t>(home.device.size()), "home.first");
        require_within(home.form, NONE, forms, "home.form");
        require_within(home.device, 0, devices, "home.device");
    }
    hosts = (devices + static_cast<int>(links.per_host) - 1) / static_cast<int>(links.per_host);
    room = 4 * items + 8 * devices + 64;  // splits stop there
}

}  // namespace shardwright
