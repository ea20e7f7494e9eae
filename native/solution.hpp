// The devices of all pieces, and the time of every device.
#pragma once

#include <memory>
#include <numeric>

#include "problem.hpp"

namespace shardwright {

inline constexpr int PHASES = 4;
enum Phase { FORWARD, FORWARD_LINKS, BACKWARD_LINKS, BACKWARD };

// A node of two linked lists: the pieces of its device, and those of its item.
struct Piece {
    int form = 0, width = 0, device = NONE;
    int next_on_device = NONE, previous_on_device = NONE;
    int next_of_item = NONE, previous_of_item = NONE;
};

// A value: copies are independent. Times are brought up to date by `refresh`, the objective by functions of objective.hpp.
class Solution {
  public:
    explicit Solution(std::shared_ptr<const Problem> of)
        : problem(std::move(of)),
          on_device(problem->devices, NONE),
          of_item(problem->items, NONE),
          pieces_of(problem->items, 0),
          spread_of(problem->items, NONE),
          counts(static_cast<std::size_t>(problem->devices) * problem->calls, 0),
          call_times(counts.size()),
          served(problem->devices),
          served_by_host(problem->hosts),
          apart(problem->devices),
          uses(problem->set_ms.size(), 0),
          used(problem->devices, 0),
          times(problem->devices),
          objective(problem->devices, 0.0) {
        pieces.reserve(problem->room);
        sums.reserve(counts.size() * problem->width);
        for (std::size_t call = 0; call < counts.size(); ++call) sums.insert(sums.end(), problem->head.base.begin(), problem->head.base.end());
    }

    std::shared_ptr<const Problem> problem;
    std::vector<Piece> pieces;                   // those in use, placed or not
    std::vector<int> on_device, of_item;         // first piece of each device, and of each item
    std::vector<int> pieces_of;                  // how many pieces an item has
    std::vector<int> spread_of;                  // the spread that an item lies in, or NONE
    std::vector<double> sums;                    // (d, c, h + 2) by call
    std::vector<int> counts;                     // (d, c) pieces and spreads in each call
    std::vector<Ms> call_times;                  // (d, c) of each call; STALE where its sums have changed since
    std::vector<Bytes> served, served_by_host;   // (d,), (hosts,)
    Bytes served_by_all;
    std::vector<Ms> apart;                       // (d,) ms of collectives besides all-to-alls
    std::vector<int> uses;                       // pieces and spreads that need each set of collectives
    std::vector<std::int64_t> used;              // (d,) bytes of memory
    std::vector<std::array<double, PHASES>> times;  // (d,) ms by phase
    std::vector<double> objective;               // (d,) each device's part of the objective
    std::array<double, PHASES> weight{}, scale{};  // of the phases in it: see objective.hpp
    int squarings = 0;

    static constexpr double STALE = -1.0;

    const double* call_sums(int device, int call) const { return sums.data() + (static_cast<std::size_t>(device) * problem->calls + call) * problem->width; }
    int item_of(int piece) const { return problem->owner(pieces[piece].form); }
    int row_of(int piece) const { return problem->row(pieces[piece].form, pieces[piece].width); }
    std::int64_t room_on(int device) const { return problem->memory[device] - used[device]; }
    int live() const { return static_cast<int>(pieces.size()); }

    // A new piece, not yet placed.
    int add(int form, int width) {
        const int piece = live(), item = problem->owner(form);
        pieces.push_back({form, width});
        ++pieces_of[item];
        link<&Piece::next_of_item, &Piece::previous_of_item>(of_item[item], piece);
        return piece;
    }

    // Forget a piece that is not placed; the last one takes its number.
    void drop(int piece) {
        const int item = item_of(piece), last = live() - 1;
        --pieces_of[item];
        unlink<&Piece::next_of_item, &Piece::previous_of_item>(of_item[item], piece);
        if (last != piece) {
            pieces[piece] = pieces[last];
            rename<&Piece::next_of_item, &Piece::previous_of_item>(of_item[item_of(last)], piece);
            if (pieces[piece].device >= 0)
                rename<&Piece::next_on_device, &Piece::previous_on_device>(on_device[pieces[piece].device], piece);
        }
        pieces.pop_back();
    }

    // Put a piece on a device; times are left as they are.
    void place(int piece, int device) {
        pieces[piece].device = device;
        link<&Piece::next_on_device, &Piece::previous_on_device>(on_device[device], piece);
        book(piece, device, 1);
    }

    // Take a piece off its device; times are left as they are.
    void lift(int piece) {
        const int device = pieces[piece].device;
        unlink<&Piece::next_on_device, &Piece::previous_on_device>(on_device[device], piece);
        pieces[piece].device = NONE;
        book(piece, device, -1);
    }

    // Let an item lie in a spread; none of its pieces may be placed.
    void take_spread(int item, int spread) {
        spread_of[item] = spread;
        book_spread(spread, 1);
    }

    void leave_spread(int item) {
        book_spread(spread_of[item], -1);
        spread_of[item] = NONE;
    }

    // Remove all pieces of an item, and its spread.
    void clear(int item) {
        if (spread_of[item] >= 0) leave_spread(item);
        while (of_item[item] >= 0) {
            if (pieces[of_item[item]].device >= 0) lift(of_item[item]);
            drop(of_item[item]);
        }
    }

    // Units of an item that lie on a device in single pieces.
    int width_on(int item, int device) const {
        int width = 0;
        for (int piece = of_item[item]; piece >= 0; piece = pieces[piece].next_of_item)
            if (pieces[piece].device == device) width += pieces[piece].width;
        return width;
    }

    // A piece of an item on a device, or NONE.
    int piece_on(int item, int device) const {
        int piece = of_item[item];
        while (piece >= 0 && pieces[piece].device != device) piece = pieces[piece].next_of_item;
        return piece;
    }

    // Whether pinning and rivals allow the item on this device.
    bool may_lie(int item, int device) const {
        if (!problem->may_go(item, device)) return false;
        if (problem->rivals.empty()) return true;
        for (int piece = on_device[device]; piece >= 0; piece = pieces[piece].next_on_device)
            if (problem->are_rivals(item, item_of(piece))) return false;
        for (int other = 0; other < problem->items; ++other)
            if (spread_of[other] >= 0 && problem->are_rivals(item, other) && problem->in_spread(spread_of[other], device)) return false;
        return true;
    }

    // Whether all devices of a spread have room for it.
    bool spread_fits(int spread) const {
        for (auto device : problem->devices_of(spread))
            if (problem->spreads.bytes[spread] > room_on(static_cast<int>(device))) return false;
        return true;
    }

    // Whether the devices of an item's spread have room for it, and rivals leave them.
    bool may_take(int item, int spread) const {
        return spread_fits(spread) && (problem->rivals.empty() || std::ranges::all_of(problem->devices_of(spread), [&](std::int64_t device) {
                                           return may_lie(item, static_cast<int>(device));
                                       }));
    }

    // Price the calls whose sums have changed, and all links.
    void refresh() {
        for (int device = 0; device < problem->devices; ++device) {
            refresh_calls(device);
            refresh_links(device);
        }
    }

    void refresh_calls(int device) {
        Ms total = problem->head.once;
        for (int call = 0; call < problem->calls; ++call) {
            const std::size_t place = static_cast<std::size_t>(device) * problem->calls + call;
            Ms& ms = call_times[place];
            if (ms.forward == STALE) ms = counts[place] > 0 ? call_ms(problem->head, call_sums(device, call)) : Ms{};
            total.forward += ms.forward;
            total.backward += ms.backward;
        }
        times[device][FORWARD] = total.forward;
        times[device][BACKWARD] = total.backward;
    }

    void refresh_links(int device) {
        const Bytes host = served_by_host[problem->links.host_of(device)];
        const Ms ms = link_ms(problem->links, served[device], host, served_by_all, apart[device]);
        times[device][FORWARD_LINKS] = ms.forward;
        times[device][BACKWARD_LINKS] = ms.backward;
    }

    // Ms of a device over all phases.
    double load(int device) const {
        const auto& of = times[device];
        return (of[FORWARD] + of[FORWARD_LINKS]) + (of[BACKWARD_LINKS] + of[BACKWARD]);
    }

    // Latencies of the sets of collectives in use, which every device pays in both passes.
    double waits_ms() const {
        double total = 0.0;
        for (std::size_t set = 0; set < uses.size(); ++set)
            if (uses[set]) total += problem->set_ms[set];
        return total;
    }

    // The sum over the phases of the maximum over devices, by the times as they are.
    double step_ms() const {
        double total = waits_ms();
        for (int phase = 0; phase < PHASES; ++phase) {
            double top = times[0][phase];
            for (const auto& of : times) top = std::max(top, of[phase]);
            total += top;
        }
        return total;
    }

  private:
    void book(int piece, int device, int sign) {
        const int row = row_of(piece);
        book_added(problem->added, row, device, sign);
        used[device] += sign * problem->bytes[row];
        serve(device, problem->serves(row) * sign);
        use(problem->sets[problem->owner(pieces[piece].form)], sign);
    }

    void book_spread(int spread, int sign) {
        const Problem& p = *problem;
        for (auto one : p.devices_of(spread)) {
            const int device = static_cast<int>(one);
            book_added(p.spreads.added, spread, device, sign);
            used[device] += sign * p.spreads.bytes[spread];
            serve(device, p.spread_serves(spread) * sign);
            apart[device] += p.apart(spread) * sign;
        }
        use(p.spreads.sets[spread], sign);
    }

    void use(std::int64_t sets, int sign) {
        for (auto left = static_cast<std::uint64_t>(sets); left; left &= left - 1) uses[std::countr_zero(left)] += sign;
    }

    void book_added(const Added& added, int row, int device, int sign) {
        const Problem& p = *problem;
        for (auto part = added.part[row]; part < added.part[row + 1]; ++part) {
            const std::size_t place = static_cast<std::size_t>(device) * p.calls + added.call[part];
            double* of_call = sums.data() + place * p.width;
            const double* vector = added.vector(part);
            if ((counts[place] += sign) == 0)  // clears the rounding error of sums that cancel
                std::copy(p.head.base.begin(), p.head.base.end(), of_call);
            else
                for (std::size_t column = 0; column < p.width; ++column) of_call[column] += sign * vector[column];
            call_times[place].forward = STALE;
        }
    }

    void serve(int device, Bytes more) {
        served[device] += more;
        served_by_host[problem->links.host_of(device)] += more;
        served_by_all += more;
    }

    template <auto next, auto previous>
    void link(int& head, int node) {
        pieces[node].*next = head;
        pieces[node].*previous = NONE;
        if (head >= 0) pieces[head].*previous = node;
        head = node;
    }

    template <auto next, auto previous>
    void unlink(int& head, int node) {
        const int after = pieces[node].*next, before = pieces[node].*previous;
        (before >= 0 ? pieces[before].*next : head) = after;
        if (after >= 0) pieces[after].*previous = before;
    }

    // Give the neighbours of a renumbered node its new number.
    template <auto next, auto previous>
    void rename(int& head, int node) {
        const int after = pieces[node].*next, before = pieces[node].*previous;
        (before >= 0 ? pieces[before].*next : head) = node;
        if (after >= 0) pieces[after].*previous = node;
    }
};

}  // namespace shardwright
