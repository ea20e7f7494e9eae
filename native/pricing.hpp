// Costs of fused calls and links: the cost model's head, and the equations of cost/score.py, without the latencies of sets.
//
// A call's `sums` are the pre-activations of the h hidden units and the linear parts of forward and backward time, biases included; a piece
// adds a vector of h + 2 numbers to them.
#pragma once

#include <algorithm>
#include <cstddef>

#include "basics.hpp"

// The same code for several instruction sets; the loader takes the best. All give equal results: no operation is contracted or reordered.
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && defined(__gnu_linux__) && !defined(__SANITIZE_ADDRESS__)
#define SHARDWRIGHT_CLONES __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define SHARDWRIGHT_CLONES
#endif

namespace shardwright {

// The last layer of a cost model: ms = mix . max(sums, 0) + linear part, `mix` (2, h). The last 3 * gates hidden units are not mixed: each
// gate has a number of shards, and the forward and backward ms that a call pays if that number is not 0 (see cost/model.py).
struct Head {
    const double* mix = nullptr;
    std::size_t hidden = 0, gates = 0;
};

// Of a call as it is.
Ms call_ms(const Head& head, const double* sums);
// With a vector added.
Ms call_ms_with(const Head& head, const double* sums, const double* in);
// With a vector removed.
Ms call_ms_without(const Head& head, const double* sums, const double* out);
// With a vector removed and another added.
Ms call_ms_traded(const Head& head, const double* sums, const double* out, const double* in);

// A topology's links: ms a byte that all-to-alls send inside a host and between hosts, in each pass; and ms for which values, ids and
// gradients travel behind dense layers.
struct Links {
    double devices = 1.0, per_host = 1.0;
    std::array<double, 2> forward{}, backward{};
    std::array<double, 3> hidden{};

    bool hides() const { return hidden[0] + hidden[1] + hidden[2] > 0.0; }
    int host_of(int device) const { return device / static_cast<int>(per_host); }
};

// Communication of a device that serves `own`, on a host that serves `host`, among devices that serve `all`. `apart`: its collectives besides
// all-to-alls.
inline Ms link_ms(const Links& links, Bytes own, Bytes host, Bytes all, Ms apart) {
    const double share = 1.0 / links.devices;
    const std::array<double, 2> peers{links.per_host - 1.0, links.devices - links.per_host};
    const std::array<Bytes, 2> theirs{host - own, all - host};
    const std::array<double, 2> own_values{own.near, own.far}, their_values{theirs[0].near, theirs[1].far};
    Ms found;
    double values = 0.0, ids = 0.0;  // ms of either alone
    for (int link = 0; link < 2; ++link) {
        const double out = own_values[link] * (share * peers[link]), in = their_values[link] * share;
        const double asked = own.ids * (share * peers[link]), asks = theirs[link].ids * share;  // ids that come, and that go
        found.forward = std::max(found.forward, std::max(out + asks, in + asked) * links.forward[link]);
        found.backward = std::max(found.backward, std::max(in, out) * links.backward[link]);
        values = std::max(values, std::max(out, in) * links.forward[link]);
        ids = std::max(ids, std::max(asked, asks) * links.forward[link]);
    }
    found += apart;
    if (!links.hides()) return found;
    const auto [of_values, of_ids, of_gradients] = links.hidden;
    return {std::max({0.0, values + apart.forward - of_values, ids - of_ids, found.forward - of_values - of_ids}),
            std::max(0.0, found.backward - of_gradients)};
}

}  // namespace shardwright
