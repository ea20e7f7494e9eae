// The objective of a search: the step time, smoothed so that every device near a maximum counts.
//
// The step time is the sum over phases p of the maximum over devices d of t_dp. If several devices share a maximum, no single change
// lowers it, so searches lower the power mean of growing power k = 2^squarings instead,
//
//     Psi = sum_p a_p S_p^(1/k),   S_p = sum_d (t_dp / a_p)^k,   a_p the maximum at the time the objective was set,
//
// which lies between the step time and D^(1/k) times it. It is concave in S_p, so its linearisation
//
//     dPsi <= sum_p w_p dS_p,   w_p = a_p / k S_p^(1/k - 1)
//
// never overstates a gain: a change that lowers the right side lowers Psi. A device's objective is its part of sum_p w_p S_p.
#pragma once

#include "solution.hpp"

namespace shardwright {

// `base` to the power of 2 to `squarings`.
inline double raised(double base, int squarings) {
    for (int time = 0; time < squarings; ++time) base *= base;
    return std::min(base, 1e300);
}

inline double objective_of(const Solution& s, Ms calls, Ms links) {
    return (s.weight[FORWARD] * raised(calls.forward * s.scale[FORWARD], s.squarings) +
            s.weight[BACKWARD] * raised(calls.backward * s.scale[BACKWARD], s.squarings)) +
           (s.weight[FORWARD_LINKS] * raised(links.forward * s.scale[FORWARD_LINKS], s.squarings) +
            s.weight[BACKWARD_LINKS] * raised(links.backward * s.scale[BACKWARD_LINKS], s.squarings));
}

inline void refresh_objective(Solution& s, int device) {
    const auto& t = s.times[device];
    s.objective[device] = objective_of(s, {t[FORWARD], t[BACKWARD]}, {t[FORWARD_LINKS], t[BACKWARD_LINKS]});
}

inline void refresh_objective(Solution& s) {
    for (int device = 0; device < s.problem->devices; ++device) refresh_objective(s, device);
}

inline double total_objective(const Solution& s) { return std::accumulate(s.objective.begin(), s.objective.end(), s.waits_ms()); }

// `total` to the power of 1 / 2^squarings, by square roots, which are the same on every machine.
inline double rooted(double total, int squarings) {
    for (int time = 0; time < squarings; ++time) total = std::sqrt(total);
    return total;
}

// Psi itself, and the latencies: they decide on changes of many devices, since the linearisation hides most of the gain of these.
inline double smoothed_step(const Solution& s) {
    double ms = s.waits_ms();
    for (int phase = 0; phase < PHASES; ++phase) {
        double total = 0.0;
        for (const auto& of : s.times) total += raised(of[phase] * s.scale[phase], s.squarings);
        ms += rooted(total, s.squarings) / s.scale[phase];
    }
    return ms;
}

// Price everything, and set the objective at the present maxima.
inline void set_objective(Solution& s, int squarings) {
    s.refresh();
    s.squarings = squarings;
    const double power = static_cast<double>(1 << squarings), step = s.step_ms();
    for (int phase = 0; phase < PHASES; ++phase) {
        double top = std::max(1e-6 * step, 1e-12), total = 0.0;
        for (const auto& of : s.times) top = std::max(top, of[phase]);
        for (const auto& of : s.times) total += raised(of[phase] / top, squarings);
        const double root = rooted(std::max(total, 1e-300), squarings);
        s.scale[phase] = 1.0 / top;
        s.weight[phase] = total > 0.0 ? top / power * (root / std::max(total, 1e-300)) : top;
    }
    refresh_objective(s);
}

// Forward and backward ms of a device's calls with a row of pieces removed and another added; NONE for no row.
inline Ms calls_after(const Solution& s, int device, int out, int in) {
    const Problem& p = *s.problem;
    const Added& added = p.added;
    Ms ms{s.times[device][FORWARD], s.times[device][BACKWARD]};
    const auto out_begin = out >= 0 ? added.part[out] : 0, out_end = out >= 0 ? added.part[out + 1] : 0;
    const auto in_begin = in >= 0 ? added.part[in] : 0, in_end = in >= 0 ? added.part[in + 1] : 0;
    const auto change = [&](std::int64_t call, const Ms& now) {
        const Ms& before = s.call_times[static_cast<std::size_t>(device) * p.calls + call];
        ms.forward += now.forward - before.forward;
        ms.backward += now.backward - before.backward;
    };
    for (auto part = in_begin; part < in_end; ++part) {
        const auto call = added.call[part];
        const double* sums = s.call_sums(device, static_cast<int>(call));
        auto same = out_begin;
        while (same < out_end && added.call[same] != call) ++same;
        change(call, same < out_end ? call_ms_traded(p.head, sums, added.vector(same), added.vector(part))
                                    : call_ms_with(p.head, sums, added.vector(part)));
    }
    for (auto part = out_begin; part < out_end; ++part) {
        const auto call = added.call[part];
        auto same = in_begin;
        while (same < in_end && added.call[same] != call) ++same;
        if (same < in_end) continue;
        const bool last = s.counts[static_cast<std::size_t>(device) * p.calls + call] <= 1;
        change(call, last ? Ms{} : call_ms_without(p.head, s.call_sums(device, static_cast<int>(call)), added.vector(part)));
    }
    return ms;
}

// Objective of a device with a row of pieces removed and another added; it, its host and all devices serve these bytes more.
inline double objective_after(const Solution& s, int device, int out, int in, Bytes more, Bytes host_more, Bytes all_more) {
    const Bytes host = s.served_by_host[s.problem->links.host_of(device)];
    const Ms links = link_ms(s.problem->links, s.served[device] + more, host + host_more, s.served_by_all + all_more, s.apart[device]);
    return objective_of(s, calls_after(s, device, out, in), links);
}

// Rise of the objectives of all other devices if `target` serves them in the place of `one`.
inline double others_objective(const Solution& s, int one, int target, Bytes out, Bytes in) {
    const Problem& p = *s.problem;
    const int host_one = p.links.host_of(one), host_target = p.links.host_of(target);
    const Bytes all = in - out;
    const bool same_total = all.nothing();
    if (same_total && host_one == host_target) return 0.0;
    double more = 0.0;
    for (int device = 0; device < p.devices; ++device) {
        const int host = p.links.host_of(device);
        if (device == one || device == target || (same_total && host != host_one && host != host_target)) continue;
        const Bytes host_more = (host == host_target ? in : Bytes{}) - (host == host_one ? out : Bytes{});
        const Ms now = link_ms(p.links, s.served[device], s.served_by_host[host] + host_more, s.served_by_all + all, s.apart[device]);
        const auto grown = [&](Phase phase, double ms) {
            return s.weight[phase] * (raised(ms * s.scale[phase], s.squarings) - raised(s.times[device][phase] * s.scale[phase], s.squarings));
        };
        more += grown(FORWARD_LINKS, now.forward) + grown(BACKWARD_LINKS, now.backward);
    }
    return more;
}

}  // namespace shardwright
