// The two passes of the runtime over a step's lookups: the rank that answers each, and the lookups in order of these ranks.
#pragma once

#include "basics.hpp"

namespace shardwright {

// Devices of rows; see runtime/placement.py.
struct Routes {
    Ints base;         // (tables + 1,) first key of each table
    Ints bits;         // by 64 keys, which of them are hottest
    Ints before;       // by 64 keys, how many hottest keys come before
    Ints ranked;       // key by rank of each hottest key
    Ints stops;        // (tables,) hottest keys of each table and those before it
    Ints firsts;       // (tables + 1,) first segment of each table
    Ints starts;       // first key of each segment
    Ints parts;        // ranges that each segment is dealt to
    Ints ranges;       // first range of each segment
    Ints first_codes;  // code of the first row of each range
};

// Write the codes of ids, table after table; `ends` (tables + 1,): where the lookups of each table start. Returns whether an id is out of range;
// its code is that of row 0.
inline bool find_codes(const Routes& routes, Ints ids, Ints ends, std::span<std::int64_t> codes) {
    bool wrong = false;
    for (std::size_t table = 0; table + 1 < ends.size(); ++table) {
        const auto base = routes.base[table], rows = routes.base[table + 1] - base;
        const auto low = routes.firsts[table], high = routes.firsts[table + 1] - 1;
        const double step = static_cast<double>(high - low + 1) / static_cast<double>(rows);  // segments a row: equal blocks are found at once
        const bool mapped = routes.stops[table] > (table ? routes.stops[table - 1] : 0);
        for (auto index = ends[table]; index < ends[table + 1]; ++index) {
            const bool outside = ids[index] < 0 || ids[index] >= rows;
            wrong |= outside;
            auto key = base + (outside ? 0 : ids[index]);
            if (mapped) {
                const auto word = static_cast<std::uint64_t>(routes.bits[key >> 6]);
                const auto place = key & 63;
                const auto count = routes.before[key >> 6] + std::popcount(word & ((std::uint64_t{1} << place) - 1));
                key = (word >> place) & 1 ? routes.ranked[count] : key + routes.stops[table] - count;
            }
            auto segment = std::min(low + static_cast<std::int64_t>(static_cast<double>(key - base) * step), high);
            while (routes.starts[segment] > key) --segment;
            while (segment < high && routes.starts[segment + 1] <= key) ++segment;
            const auto row = key - routes.starts[segment], dealt = routes.parts[segment];
            const auto range = routes.ranges[segment];
            codes[index] = dealt == 1 ? routes.first_codes[range] + row : routes.first_codes[range + row % dealt] + row / dealt;
        }
    }
    return wrong;
}

// Sort codes by their digits above the lowest `bits`; the sort is stable. `counts` (places,), zeros before: codes of each place;
// `order` (n,): which code comes first, second, ...; `inverse` (n,): where each code comes; `questions` (n,): the lowest bits, sorted.
inline void sort_by_place(Ints codes, int bits, std::span<std::int64_t> counts, std::span<std::int64_t> order, std::span<std::int64_t> inverse,
                          std::span<std::int64_t> questions) {
    for (auto code : codes) ++counts[code >> bits];
    std::vector<std::int64_t> next(counts.size());
    for (std::size_t place = 1; place < counts.size(); ++place) next[place] = next[place - 1] + counts[place - 1];
    const auto mask = (std::int64_t{1} << bits) - 1;
    for (std::size_t index = 0; index < codes.size(); ++index) {
        const auto position = next[codes[index] >> bits]++;
        order[position] = static_cast<std::int64_t>(index);
        inverse[index] = position;
        questions[position] = codes[index] & mask;
    }
}

// Sort the codes of lookups in bags by place, with the lookups of one bag at one place next to each other: each such run gets one answer. Bags
// are ascending. `counts` and `answers` (places,), zeros before: lookups and runs of each place; `questions` (n,): the lowest bits of each code,
// then one bit that marks the first of a run; `heads` (n,): bag of each run, less the first bag of its place; `order` (n,), or empty: which lookup
// comes first, second, ...
inline void runs_by_place(Ints codes, Ints bags, Ints first_bags, int bits, std::span<std::int64_t> counts, std::span<std::int64_t> answers,
                          std::span<std::int64_t> questions, std::span<std::int64_t> heads, std::span<std::int64_t> order) {
    std::vector<std::int64_t> last(counts.size(), -1), next(counts.size()), answer(counts.size());
    // Lookups of one bag at one place are mostly neighbours already: whole stretches of them are handled at once.
    const auto by_stretch = [&](auto&& handle) {
        for (std::size_t begin = 0, end = 0; begin < codes.size(); begin = end) {
            const auto place = codes[begin] >> bits, bag = bags[begin];
            while (++end < codes.size() && bags[end] == bag && codes[end] >> bits == place) {}
            handle(place, bag, begin, end, std::exchange(last[place], bag) != bag);
        }
        std::fill(last.begin(), last.end(), -1);
    };
    by_stretch([&](auto place, auto, std::size_t begin, std::size_t end, bool first) {
        counts[place] += static_cast<std::int64_t>(end - begin);
        answers[place] += static_cast<std::int64_t>(first);
    });
    for (std::size_t place = 1; place < next.size(); ++place) {
        next[place] = next[place - 1] + counts[place - 1];
        answer[place] = answer[place - 1] + answers[place - 1];
    }
    const auto mask = (std::int64_t{1} << bits) - 1;
    by_stretch([&](auto place, auto bag, std::size_t begin, std::size_t end, bool first) {
        auto position = next[place];
        next[place] += static_cast<std::int64_t>(end - begin);
        if (first) heads[answer[place]++] = bag - first_bags[place];
        for (auto index = begin; index < end; ++index, ++position) {
            questions[position] = (codes[index] & mask) << 1 | static_cast<std::int64_t>(first && index == begin);
            if (!order.empty()) order[position] = static_cast<std::int64_t>(index);
        }
    });
}

}  // namespace shardwright
