// Filling a struct from an object: each member names a field of the object, and the shape that it must have, once.
//
//     struct Added {
//         From from;
//         std::int64_t rows;
//         Ints part = from->ints("part", {rows + 1});
//     };
//     const Added added{from->at("added"), rows};
#pragma once

#include <algorithm>
#include <initializer_list>
#include <memory>
#include <stdexcept>
#include <string>
#include <type_traits>

#include "basics.hpp"

namespace shardwright {

inline constexpr std::int64_t ANY = -1, SOME = -2;  // lengths that are read from the array; SOME is at least 1
inline constexpr bool OR_NONE = true;               // the array may also be empty

// Throws unless a rule holds. The rule is a text, or a function that makes it: loops over all numbers of a problem must not make texts.
template <class Rule>
void require(bool holds, const Rule& rule) {
    if (holds) return;
    if constexpr (std::is_invocable_v<Rule>)
        throw std::invalid_argument(rule());
    else
        throw std::invalid_argument(rule);
}

struct Length {
    std::int64_t value;

    Length(std::integral auto length) : value(static_cast<std::int64_t>(length)) {}
};

using Shape = std::initializer_list<Length>;

// An object. It keeps the arrays of those of its fields alive that were read.
struct Fields {
    virtual ~Fields() = default;
    virtual Bools bools(const char* name, Shape shape, bool or_none = false) const = 0;
    virtual Ints ints(const char* name, Shape shape, bool or_none = false) const = 0;
    virtual Floats floats(const char* name, Shape shape, bool or_none = false) const = 0;
    virtual Singles singles(const char* name, Shape shape, bool or_none = false) const = 0;
    virtual double number(const char* name) const = 0;
    virtual std::shared_ptr<const Fields> at(const char* name) const = 0;  // a field that is an object itself

    // A whole number.
    std::size_t count(const char* name, std::size_t most) const {
        const double value = number(name);
        const bool fits = value >= 0.0 && value <= static_cast<double>(most) && value == std::floor(value);
        require(fits, std::string(name) + " must be a whole number of at least 0 and at most " + std::to_string(most));
        return static_cast<std::size_t>(value);
    }

    template <std::size_t count>
    std::array<double, count> few(const char* name) const {
        std::array<double, count> values;
        std::ranges::copy(floats(name, {count}), values.begin());
        return values;
    }

    Ms ms(const char* name) const {
        const auto [forward, backward] = few<2>(name);
        return {forward, backward};
    }
};

using From = std::shared_ptr<const Fields>;

}  // namespace shardwright
