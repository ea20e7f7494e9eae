#include "pricing.hpp"

namespace shardwright {
namespace {

constexpr std::size_t LANES = 8;  // hidden units are summed in so many lanes, unit i in lane i mod 8, and the lanes pairwise at the end

double total(const double* lanes) {
    return ((lanes[0] + lanes[4]) + (lanes[2] + lanes[6])) + ((lanes[1] + lanes[5]) + (lanes[3] + lanes[7]));
}

template <class Sum>
__attribute__((always_inline)) inline Ms priced(const Head& head, Sum sum) {
    double forward[LANES] = {}, backward[LANES] = {};
    const double *first = head.mix, *second = head.mix + head.hidden;
    const std::size_t even = head.hidden - head.hidden % LANES;
    for (std::size_t unit = 0; unit < even; unit += LANES)
        for (std::size_t lane = 0; lane < LANES; ++lane) {
            const double value = sum(unit + lane), active = value > 0.0 ? value : 0.0;
            forward[lane] += first[unit + lane] * active;
            backward[lane] += second[unit + lane] * active;
        }
    for (std::size_t unit = even; unit < head.hidden; ++unit) {
        const double value = sum(unit), active = value > 0.0 ? value : 0.0;
        forward[unit - even] += first[unit] * active;
        backward[unit - even] += second[unit] * active;
    }
    return {std::max(total(forward) + sum(head.hidden), 0.0), std::max(total(backward) + sum(head.hidden + 1), 0.0)};
}

}  // namespace

SHARDWRIGHT_CLONES Ms call_ms(const Head& head, const double* sums) {
    return priced(head, [=](std::size_t unit) { return sums[unit]; });
}

SHARDWRIGHT_CLONES Ms call_ms_with(const Head& head, const double* sums, const double* in) {
    return priced(head, [=](std::size_t unit) { return sums[unit] + in[unit]; });
}

SHARDWRIGHT_CLONES Ms call_ms_without(const Head& head, const double* sums, const double* out) {
    return priced(head, [=](std::size_t unit) { return sums[unit] - out[unit]; });
}

SHARDWRIGHT_CLONES Ms call_ms_traded(const Head& head, const double* sums, const double* out, const double* in) {
    return priced(head, [=](std::size_t unit) { return sums[unit] - out[unit] + in[unit]; });
}

}  // namespace shardwright
