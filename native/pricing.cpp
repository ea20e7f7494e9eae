#include "pricing.hpp"

namespace shardwright {
namespace {

constexpr std::size_t LANES = 8;  // hidden units are summed in so many lanes, unit i in lane i mod 8, and the lanes pairwise at the end

constexpr double OPEN = 0.5;  // a gate is open from one shard on; sums of counts may be off by rounding

double total(const double* lanes) {
    return ((lanes[0] + lanes[4]) + (lanes[2] + lanes[6])) + ((lanes[1] + lanes[5]) + (lanes[3] + lanes[7]));
}

template <class Sum>
__attribute__((always_inline)) inline Ms priced(const PricingHead& head, Sum sum) {
    double forward[LANES] = {}, backward[LANES] = {};
    const double *first = head.mix.data(), *second = first + head.hidden;
    const std::size_t mixed = head.hidden - 3 * head.gates, even = mixed - mixed % LANES;
    for (std::size_t unit = 0; unit < even; unit += LANES)
        for (std::size_t lane = 0; lane < LANES; ++lane) {
            const double value = sum(unit + lane), active = value > 0.0 ? value : 0.0;
            forward[lane] += first[unit + lane] * active;
            backward[lane] += second[unit + lane] * active;
        }
    for (std::size_t unit = even; unit < mixed; ++unit) {
        const double value = sum(unit), active = value > 0.0 ? value : 0.0;
        forward[unit - even] += first[unit] * active;
        backward[unit - even] += second[unit] * active;
    }
    Ms ms{std::max(total(forward) + sum(head.hidden), 0.0), std::max(total(backward) + sum(head.hidden + 1), 0.0)};
    for (std::size_t gate = mixed; gate < head.hidden; gate += 3)
        if (sum(gate) > OPEN) ms.forward += sum(gate + 1), ms.backward += sum(gate + 2);
    return ms;
}

}  // namespace

SHARDWRIGHT_CLONES Ms call_ms(const PricingHead& head, const double* sums) {
    return priced(head, [=](std::size_t unit) { return sums[unit]; });
}

SHARDWRIGHT_CLONES Ms call_ms_with(const PricingHead& head, const double* sums, const double* in) {
    return priced(head, [=](std::size_t unit) { return sums[unit] + in[unit]; });
}

SHARDWRIGHT_CLONES Ms call_ms_without(const PricingHead& head, const double* sums, const double* out) {
    return priced(head, [=](std::size_t unit) { return sums[unit] - out[unit]; });
}

SHARDWRIGHT_CLONES Ms call_ms_traded(const PricingHead& head, const double* sums, const double* out, const double* in) {
    return priced(head, [=](std::size_t unit) { return sums[unit] - out[unit] + in[unit]; });
}

}  // namespace shardwright
