// Costs of fused calls and links: the cost model's head, and the equations of cost/score.py, without the latencies of sets.
//
// A call's `sums` are the pre-activations of the h hidden units and the linear parts of forward and backward time, biases included; a piece
// adds a vector of h + 2 numbers to them.
#pragma once

#include <algorithm>
#include <cstddef>

#include "fields.hpp"

// The same code for several instruction sets; the loader takes the best. All give equal results: no operation is contracted or reordered.
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && defined(__gnu_linux__) && !defined(__SANITIZE_ADDRESS__)
#define SHARDWRIGHT_CLONES __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define SHARDWRIGHT_CLONES
#endif

namespace shardwright {

// The last layer of a cost model: ms = mix . max(sums, 0) + linear part. The last 3 * gates hidden units are not mixed: each
// gate has a number of shards, and the forward and backward ms that a call pays if that number is not 0; see `PricingHead` in cost/model.py.
struct PricingHead {
    From from;
    Floats mix = from->floats("mix", {2, ANY});
    std::size_t hidden = mix.size() / 2, width = hidden + 2, gates = from->count("gates", hidden / 3);
    Floats base = from->floats("base", {width});  // the sums of a call with nothing in it
    Ms once = from->ms("once");                   // a device's time besides its calls
};

// Of a call as it is.
Ms call_ms(const PricingHead& head, const double* sums);
// With a vector added.
Ms call_ms_with(const PricingHead& head, const double* sums, const double* in);
// With a vector removed.
Ms call_ms_without(const PricingHead& head, const double* sums, const double* out);
// With a vector removed and another added.
Ms call_ms_traded(const PricingHead& head, const double* sums, const double* out, const double* in);

// A topology's links; see `LinkFacts` in cost/collectives.py.
struct LinkFacts {
    From from;
    double devices = from->number("devices"), per_host = from->number("per_host");
    std::array<double, 2> forward = from->few<2>("forward"), backward = from->few<2>("backward");  // ms a byte inside a host, and between hosts
    std::array<double, 4> mean = from->few<4>("mean");  // the same of the mean device: forward, then backward
    std::array<double, 3> hidden = from->few<3>("hidden");  // ms for which values, ids and gradients travel behind dense layers

    bool hides() const { return hidden[0] + hidden[1] + hidden[2] > 0.0; }
    int host_of(int device) const { return device / static_cast<int>(per_host); }
};

// Communication of a device that serves `own`, on a host that serves `host`, among devices that serve `all`. `apart`: its collectives besides
// all-to-alls.
inline Ms link_ms(const LinkFacts& links, Bytes own, Bytes host, Bytes all, Ms apart) {
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
        if (links.mean[link] == 0.0) continue;
        // The mean device of the host, or of all hosts if each has one device. As many bytes come as go, but for a host of several.
        const bool hosts = links.per_host > 1.0;
        const Bytes& together = hosts ? host : all;
        const double of_mean = share * peers[link] / (hosts ? links.per_host : links.devices);
        const double mean_out = (link ? together.far : together.near) * of_mean, mean_asked = together.ids * of_mean;
        const double mean_in = link && hosts ? in : mean_out, mean_asks = link && hosts ? asks : mean_asked;
        found.forward = std::max(found.forward, std::max(mean_out + mean_asks, mean_in + mean_asked) * links.mean[link]);
        found.backward = std::max(found.backward, std::max(mean_in, mean_out) * links.mean[2 + link]);
        values = std::max(values, std::max(mean_out, mean_in) * links.mean[link]);
        ids = std::max(ids, std::max(mean_asked, mean_asks) * links.mean[link]);
    }
    found += apart;
    if (!links.hides()) return found;
    const auto [of_values, of_ids, of_gradients] = links.hidden;
    return {std::max({0.0, values + apart.forward - of_values, ids - of_ids, found.forward - of_values - of_ids}),
            std::max(0.0, found.backward - of_gradients)};
}

}  // namespace shardwright
