// Bindings and argument checks of shardwright._engine; the headers trust each other.
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include "arrays.hpp"
#include "beam.hpp"
#include "policy.hpp"
#include "routing.hpp"
#include "search.hpp"

using namespace nanobind::literals;
using namespace shardwright;

namespace {

using Numbers = std::vector<std::int64_t>;
using NoGil = nb::call_guard<nb::gil_scoped_release>;

void require_below(int value, int end, const char* name) {
    if (value < 0 || value >= end)
        throw nb::index_error((std::string(name) + " is " + std::to_string(value) + ", must be at least 0 and below " + std::to_string(end)).c_str());
}

std::shared_ptr<Problem> make_problem(nb::handle arrays, nb::handle home) {
    std::shared_ptr<Problem> problem(new Problem{fields_of(arrays), fields_of(home)});
    problem->settle();
    return problem;
}

std::shared_ptr<Pieces> make_pieces(nb::handle pieces) {
    std::shared_ptr<Pieces> made(new Pieces{fields_of(pieces)});
    made->check();
    return made;
}

void require_full(const Solution& s) {
    for (const Piece& piece : s.pieces) require(piece.device >= 0, "a piece lies nowhere: place every piece first");
    for (int item = 0; item < s.problem->items; ++item)
        require(s.pieces_of[item] > 0 || s.spread_of[item] >= 0,
                [&] { return "item " + std::to_string(item) + " has neither pieces nor a spread: give it some first"; });
}

template <class Get>
nb::object per_piece(const Solution& s, Get get) {
    Numbers found;
    for (const Piece& piece : s.pieces) found.push_back(get(piece));
    return to_numpy(std::move(found));
}

nb::object to_ints(const std::vector<int>& values) { return to_numpy(Numbers(values.begin(), values.end())); }

void bind_solution(nb::module_& m) {
    const auto of_piece = [](const Solution& s, int piece, bool placed) {
        require_below(piece, s.live(), "piece");
        require((s.pieces[piece].device >= 0) == placed, placed ? "the piece lies nowhere" : "the piece lies on a device already");
    };
    const auto of_item = [](const Solution& s, int item) { require_below(item, s.problem->items, "item"); };
    const auto of_device = [](const Solution& s, int device) { require_below(device, s.problem->devices, "device"); };
    const auto of_spread = [](const Solution& s, int spread) { require_below(spread, static_cast<int>(s.problem->spreads.size), "spread"); };
    nb::class_<Solution>(m, "Solution")
        .def(nb::init<std::shared_ptr<Problem>>(), "problem"_a)
        .def("copy", [](const Solution& s) { return s; })
        .def_prop_ro("live", &Solution::live)
        .def_prop_ro("form", [](const Solution& s) { return per_piece(s, [](const Piece& p) { return p.form; }); })
        .def_prop_ro("width", [](const Solution& s) { return per_piece(s, [](const Piece& p) { return p.width; }); })
        .def_prop_ro("device", [](const Solution& s) { return per_piece(s, [](const Piece& p) { return p.device; }); })
        .def_prop_ro("pieces_of", [](const Solution& s) { return to_ints(s.pieces_of); })
        .def_prop_ro("spread_of", [](const Solution& s) { return to_ints(s.spread_of); })
        .def_prop_ro("used", [](const Solution& s) { return to_numpy(s.used); })
        .def_prop_ro("objective", [](const Solution& s) { return to_numpy(s.objective); })
        .def_prop_ro("times", [](const Solution& s) {
            std::vector<double> flat;
            for (const auto& of : s.times) flat.insert(flat.end(), of.begin(), of.end());
            return to_numpy(std::move(flat), {s.times.size(), std::size_t{PHASES}});
        })
        .def_prop_ro("room", [](const Solution& s) { return s.problem->room - s.live(); })
        .def("add", [](Solution& s, int form, int width) {
            require_below(form, static_cast<int>(s.problem->item.size()), "form");
            require_below(width - 1, s.problem->units(form), "width - 1");
            return s.add(form, width);
        }, "form"_a, "width"_a)
        .def("drop", [=](Solution& s, int piece) { of_piece(s, piece, false); s.drop(piece); }, "piece"_a)
        .def("place", [=](Solution& s, int piece, int device) { of_piece(s, piece, false); of_device(s, device); s.place(piece, device); },
             "piece"_a, "device"_a)
        .def("lift", [=](Solution& s, int piece) { of_piece(s, piece, true); s.lift(piece); }, "piece"_a)
        .def("take_spread", [=](Solution& s, int item, int spread) {
            of_item(s, item);
            require(s.problem->spreads.first[item] <= spread && spread < s.problem->spreads.first[item + 1], "the spread is none of this item's");
            require(s.spread_of[item] < 0 && s.pieces_of[item] == 0, "the item has a way already: clear it first");
            s.take_spread(item, spread);
        }, "item"_a, "spread"_a)
        .def("clear", [=](Solution& s, int item) { of_item(s, item); s.clear(item); }, "item"_a)
        .def("width_on", [=](const Solution& s, int item, int device) { of_item(s, item); return s.width_on(item, device); }, "item"_a, "device"_a)
        .def("piece_on", [=](const Solution& s, int item, int device) { of_item(s, item); return s.piece_on(item, device); }, "item"_a, "device"_a)
        .def("may_lie", [=](const Solution& s, int item, int device) { of_item(s, item); of_device(s, device); return s.may_lie(item, device); },
             "item"_a, "device"_a)
        .def("spread_fits", [=](const Solution& s, int spread) { of_spread(s, spread); return s.spread_fits(spread); }, "spread"_a)
        .def("refresh", &Solution::refresh)
        .def("step_ms", &Solution::step_ms)
        .def("value", [](Solution& s) { require_full(s); return value(s); })
        .def("received_ms", [](const Solution& s) { require_full(s); return s.problem->warm() ? received_ms(s) : 0.0; })
        .def("set_objective", [](Solution& s, int squarings) { require_below(squarings, 10, "squarings"); set_objective(s, squarings); }, "squarings"_a)
        .def("choose", [](Solution& s, In<double> rank, In<std::int64_t> uses, In<double> spread_rank) {
            require(s.live() == 0, "the solution is not empty");
            require(rank.size() == s.problem->item.size() && uses.size() == s.problem->bytes.size() &&
                        spread_rank.size() == s.problem->spreads.size, "rank, uses, spread_rank must have the lengths of forms, rows, spreads");
            return choose(s, span_of(rank), span_of(uses), span_of(spread_rank));
        }, "rank"_a, "uses"_a, "spread_rank"_a)
        .def("place_greedily", [](Solution& s, double memory_weight, bool together) {
            return place_greedily(s, memory_weight, nullptr, together);
        }, "memory_weight"_a = 0.0, "together"_a = false, NoGil())
        .def("join", [](Solution& s) { join(s); })
        .def("best_transfer", [=](const Solution& s, int one, int target, double least, bool may_cut) {
            of_device(s, one);
            of_device(s, target);
            const Transfer found = best_transfer(s, one, target, least, may_cut);
            return std::tuple(found.gain, found.piece, found.form, found.units);
        }, "one"_a, "target"_a, "least"_a, "may_cut"_a)
        .def("best_swap", [=](const Solution& s, int one, int target, double least) {
            of_device(s, one);
            of_device(s, target);
            const Swap found = best_swap(s, one, target, least);
            return std::tuple(found.gain, found.mine, found.other);
        }, "one"_a, "target"_a, "least"_a)
        .def("transfer", [=](Solution& s, int piece, int form, int units, int target) {
            of_piece(s, piece, true);
            of_device(s, target);
            require_below(form, static_cast<int>(s.problem->item.size()), "form");
            require(s.problem->item[form] == s.item_of(piece) && units >= 1 && units <= s.problem->units(form), "the form has no such units of the item");
            require(s.pieces[piece].device != target, "the piece lies there already");
            make(s, Transfer{0.0, piece, form, units}, target);
        }, "piece"_a, "form"_a, "units"_a, "target"_a)
        .def("swap", [=](Solution& s, int mine, int other) {
            of_piece(s, mine, true);
            of_piece(s, other, true);
            require(s.pieces[mine].device != s.pieces[other].device, "both pieces lie on one device");
            make(s, Swap{0.0, mine, other});
        }, "mine"_a, "other"_a)
        .def("descend", [](Solution& s, int squarings, int widest, const Stop& stop) {
            require_full(s);
            require_below(squarings, 10, "squarings");
            return descend(s, squarings, widest, stop);
        }, "squarings"_a, "widest"_a, "stop"_a, NoGil())
        .def("respread", [](Solution& s, const Stop& stop) { require_full(s); return respread(s, stop); }, "stop"_a, NoGil())
        .def("widen", [](Solution& s) { require_full(s); widen(s); }, NoGil())
        .def("improve", [](Solution& s, const Stop& stop) { require_full(s); improve(s, stop); }, "stop"_a, NoGil())
        .def("without_copies", [](const Solution& s, In<bool> replicated, const Stop& stop) {
            require(replicated.size() == s.problem->spreads.size, "replicated must have the length of spreads");
            require_full(s);
            const Bools flags = span_of(replicated);
            nb::gil_scoped_release release;
            return without_copies(s, flags, stop);
        }, "replicated"_a, "stop"_a)
        .def("simplify", [](Solution& s, double worse, double cut_error, const Stop& stop) { require_full(s); simplify(s, worse, cut_error, stop); },
             "worse"_a, "cut_error"_a, "stop"_a, NoGil())
        .def("kicks", [](Solution& s, double ms, int count, bool bold, const std::vector<std::uint64_t>& seed, const Stop& stop) {
            require_full(s);
            auto best = kicks(s, ms, count, bold, Random(seed), stop);
            return std::pair(std::move(best), ms);
        }, "ms"_a, "count"_a, "bold"_a, "seed"_a, "stop"_a, NoGil());
}

void bind_beam(nb::module_& m) {
    const auto checked = [](const Pieces& p, const In<std::int64_t>& state) {
        detail::require_within(span_of(state), 0, static_cast<std::int64_t>(p.bytes.size()), "state");
        return span_of(state);
    };
    nb::class_<Pieces>(m, "Pieces").def(nb::new_(&make_pieces), "pieces"_a);
    m.def("greedy", [=](const Pieces& p, In<std::int64_t> state, std::int64_t limit) {
        const Ints rows = checked(p, state);
        Numbers device(rows.size(), NONE);
        const auto [placed, most] = greedy(p, rows, limit, device);
        return nb::make_tuple(placed, most, to_numpy(std::move(device)));
    }, "pieces"_a, "state"_a, "limit"_a);
    m.def("grid_placements", [=](const Pieces& p, In<std::int64_t> state, In<std::int64_t> limits) {
        const Ints rows = checked(p, state), of_grid = span_of(limits);
        std::vector<Numbers> found;
        {
            nb::gil_scoped_release release;
            found = grid_placements(p, rows, of_grid);
        }
        Numbers flat;
        for (const Numbers& one : found) flat.insert(flat.end(), one.begin(), one.end());
        return to_numpy(std::move(flat), {found.size(), rows.size()});
    }, "pieces"_a, "state"_a, "limits"_a);
    m.def("placement_times", [=](const Pieces& p, In<std::int64_t> state, In<std::int64_t> placements) {
        const Ints rows = checked(p, state), all = span_of(placements);
        detail::require_within(all, 0, p.devices, "placements");
        const std::size_t count = rows.empty() ? 0 : all.size() / rows.size(), devices = p.memory.size();
        require(rows.size() * count == all.size(), "placements must have a device for each piece");
        std::vector<double> times;
        Numbers columns, dims;
        for (std::size_t index = 0; index < count; ++index) {
            for (const Ms& ms : device_times(p, rows, all.subspan(index * rows.size(), rows.size()), dims)) {
                times.push_back(ms.forward);
                times.push_back(ms.backward);
            }
            columns.insert(columns.end(), dims.begin(), dims.end());
        }
        return nb::make_tuple(to_numpy(std::move(times), {count, devices, 2}), to_numpy(std::move(columns), {count, devices}));
    }, "pieces"_a, "state"_a, "placements"_a);
    m.def("link_ticks", [=](const Pieces& p, In<std::int64_t> state, In<std::int64_t> device, bool embedding) {
        const Ints rows = checked(p, state), ranks = span_of(device);
        detail::require_within(ranks, 0, p.devices, "device");
        require(ranks.size() == rows.size(), "device must name a device for each piece");
        return link_ticks(p, rows, ranks, embedding);
    }, "pieces"_a, "state"_a, "device"_a, "embedding"_a);
    m.def("best_by_links", [=](const Pieces& p, In<std::int64_t> state, In<std::int64_t> limits, bool embedding) {
        const Ints rows = checked(p, state), of_grid = span_of(limits);
        std::pair<double, Numbers> best;
        {
            nb::gil_scoped_release release;
            best = best_by_links(p, rows, of_grid, embedding);
        }
        return nb::make_tuple(best.first, to_numpy(std::move(best.second)));
    }, "pieces"_a, "state"_a, "limits"_a, "embedding"_a);
    m.attr("TICKS") = TICKS;
}

void bind_functions(nb::module_& m) {
    m.def("cheapest_widths", [](In<std::int64_t> first, In<double> price, std::optional<In<std::int64_t>> fewest) {
        detail::require_offsets(span_of(first), static_cast<std::int64_t>(price.size()), "first");
        require(!fewest || fewest->size() + 1 == first.size(), "fewest must name a number of blocks for each form");
        std::vector<double> sums(first.size() - 1);
        Numbers uses(price.size(), 0);
        cheapest_widths(span_of(first), span_of(price), fewest ? span_of(*fewest) : Ints{}, sums, uses);
        return nb::make_tuple(to_numpy(std::move(sums)), to_numpy(std::move(uses)));
    }, "first"_a, "price"_a, "fewest"_a = nb::none());
    m.def("least_bottlenecks", [](In<std::int64_t> first, In<double> value) {
        detail::require_offsets(span_of(first), static_cast<std::int64_t>(value.size()), "first");
        std::vector<double> largest(first.size() - 1);
        least_bottlenecks(span_of(first), span_of(value), largest);
        return to_numpy(std::move(largest));
    }, "first"_a, "value"_a);
    m.def("best_order", [](const Numbers& widths, const Numbers& starts, const Numbers& stops) {
        require(widths.size() == starts.size() && widths.size() == stops.size(), "widths, starts and stops must be of one length");
        std::vector<Held> pieces;
        for (std::size_t piece = 0; piece < widths.size(); ++piece) pieces.push_back({widths[piece], starts[piece], stops[piece]});
        return to_ints(best_order(pieces));
    }, "widths"_a, "starts"_a, "stops"_a);
    m.def("find_codes", [](In<std::int64_t> ids, In<std::int64_t> ends, In<std::int64_t> base, In<std::int64_t> bits, In<std::int64_t> before,
                           In<std::int64_t> ranked, In<std::int64_t> stops, In<std::int64_t> firsts, In<std::int64_t> starts,
                           In<std::int64_t> parts, In<std::int64_t> ranges, In<std::int64_t> first_codes, Out<std::int64_t> codes) {
        require(codes.size() == ids.size(), "codes must be as long as ids");
        detail::require_offsets(span_of(ends), static_cast<std::int64_t>(ids.size()), "ends");
        require(base.size() == ends.size() && firsts.size() == ends.size() && stops.size() + 1 == ends.size(), "ends, base, firsts, stops are of other tables");
        const Routes routes{span_of(base), span_of(bits), span_of(before), span_of(ranked), span_of(stops),
                            span_of(firsts), span_of(starts), span_of(parts), span_of(ranges), span_of(first_codes)};
        return find_codes(routes, span_of(ids), span_of(ends), span_of(codes));
    });
    m.def("sort_by_place", [](In<std::int64_t> codes, int bits, Out<std::int64_t> counts, Out<std::int64_t> order, Out<std::int64_t> inverse,
                              Out<std::int64_t> questions) {
        require(bits >= 0 && bits < 63, "bits must be at least 0 and below 63");
        require(order.size() == codes.size() && inverse.size() == codes.size() && questions.size() == codes.size(), "outputs must be as long as codes");
        for (auto code : span_of(codes))
            require(code >= 0 && static_cast<std::size_t>(code >> bits) < counts.size(), "a code is of a place that counts does not have");
        sort_by_place(span_of(codes), bits, span_of(counts), span_of(order), span_of(inverse), span_of(questions));
    });
    m.def("runs_by_place", [](In<std::int64_t> codes, In<std::int64_t> bags, In<std::int64_t> first_bags, int bits, Out<std::int64_t> counts,
                              Out<std::int64_t> answers, Out<std::int64_t> questions, Out<std::int64_t> heads, Out<std::int64_t> order) {
        require(bits >= 0 && bits < 62, "bits must be at least 0 and below 62");
        require(bags.size() == codes.size() && questions.size() == codes.size() && heads.size() == codes.size(), "bags and outputs must be as long as codes");
        require(order.size() == codes.size() || order.size() == 0, "order must be as long as codes, or empty");
        require(answers.size() == counts.size() && first_bags.size() == counts.size(), "counts, answers and first_bags must have the same places");
        for (auto code : span_of(codes))
            require(code >= 0 && static_cast<std::size_t>(code >> bits) < counts.size(), "a code is of a place that counts does not have");
        runs_by_place(span_of(codes), span_of(bags), span_of(first_bags), bits, span_of(counts), span_of(answers), span_of(questions), span_of(heads),
                      span_of(order));
    });
}

nb::object place_by_policy(nb::handle policy, nb::handle task, nb::handle before, In<std::int64_t> given_order, In<double> given_noise,
                           std::size_t copies, bool recorded) {
    const Units units{fields_of(task), fields_of(before)};
    const Layers layers{fields_of(policy)};
    const std::size_t n = units.size, d = units.devices;
    require(n == 0 || units.known * layers.hidden == layers.facts.size(), "facts of the policy must have a column for each fact");
    const Ints order = span_of(given_order);
    const Floats noise = span_of(given_noise);
    require(order.size() == n, "order must name every unit");
    detail::require_within(order, 0, static_cast<std::int64_t>(n), "order");
    require(copies >= 1, "there must be a copy");
    const bool fits = given_noise.ndim() == 3 && given_noise.shape(0) == n && given_noise.shape(1) <= copies && given_noise.shape(2) == d;
    require(fits, "noise must be for the last copies, or for all, by unit and device");
    Record record;
    Numbers devices;
    std::vector<double> times;
    {
        nb::gil_scoped_release release;
        for (const Floor& floor : place_units(units, layers, order, noise, copies, recorded ? &record : nullptr)) {
            devices.insert(devices.end(), floor.device_of.begin(), floor.device_of.end());
            for (const Phased& of : floor.times()) times.insert(times.end(), of.begin(), of.end());
        }
    }
    const auto k = static_cast<std::size_t>(copies);
    const std::size_t p = DEVICE_PHASES, steps = recorded ? n : 0;
    return nb::make_tuple(to_numpy(std::move(devices), {k, n}), to_numpy(std::move(times), {k, d, p}),
                          to_numpy(std::move(record.seen), {steps, k, d, SEEN}), to_numpy(std::move(record.facts), {steps, k, units.known}),
                          to_numpy(std::move(record.logits), {steps, k, d}), to_numpy(std::move(record.slowest), {recorded ? n + 1 : 0, k, p}));
}

}  // namespace

NB_MODULE(_engine, m) {
    nb::class_<Stop>(m, "Stop")
        .def("__init__", [](Stop* self, std::optional<double> seconds) { new (self) Stop(seconds.value_or(1e18)); }, "seconds"_a.none() = nb::none())
        .def("set", &Stop::set)
        .def_prop_ro("changes", [](const Stop& stop) {
            nb::dict changes;
            for (std::size_t change = 0; change < CHANGE_NAMES.size(); ++change) {
                const auto [tried, taken] = stop.counted(static_cast<Change>(change));
                changes[CHANGE_NAMES[change]] = nb::make_tuple(tried, taken);
            }
            return changes;
        })
        .def_prop_ro("late", &Stop::late);
    nb::class_<Problem>(m, "Problem").def(nb::new_(&make_problem), "arrays"_a, "home"_a);
    bind_solution(m);
    bind_beam(m);
    bind_functions(m);
    m.def("place_by_policy", &place_by_policy, "policy"_a, "task"_a, "before"_a, "order"_a, "noise"_a, "copies"_a, "record"_a);
}
