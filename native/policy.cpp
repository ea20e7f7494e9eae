#include "policy.hpp"

namespace shardwright {

// Four columns at a time, so that a lane is loaded and stored once for four products.
SHARDWRIGHT_CLONES void add_product(std::span<const float> weights, std::size_t columns, const float* in, float* out, std::size_t lanes) {
    const std::size_t rows = weights.size() / columns, even = columns - columns % 4;
    for (std::size_t row = 0; row < rows; ++row) {
        const float* of_row = weights.data() + row * columns;
        float* __restrict to = out + row * lanes;
        for (std::size_t column = 0; column < even; column += 4) {
            const float a = of_row[column], b = of_row[column + 1], c = of_row[column + 2], d = of_row[column + 3];
            const float *first = in + column * lanes, *second = first + lanes, *third = second + lanes, *fourth = third + lanes;
            for (std::size_t lane = 0; lane < lanes; ++lane) to[lane] += (a * first[lane] + b * second[lane]) + (c * third[lane] + d * fourth[lane]);
        }
        for (std::size_t column = even; column < columns; ++column) {
            const float weight = of_row[column];
            const float* from = in + column * lanes;
            for (std::size_t lane = 0; lane < lanes; ++lane) to[lane] += weight * from[lane];
        }
    }
}

}  // namespace shardwright
