// numpy arrays from and to Python: named, checked once, and not copied on their way in.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <string>
#include <type_traits>

#include "basics.hpp"

namespace shardwright {

namespace nb = nanobind;

template <class T>
using In = nb::ndarray<const T, nb::numpy, nb::c_contig, nb::device::cpu>;
template <class T>
using Out = nb::ndarray<T, nb::numpy, nb::c_contig, nb::device::cpu>;

inline constexpr std::int64_t ANY = -1;  // a length that is read from the array

template <class T>
constexpr const char* name_of() {
    return std::is_same_v<T, double> ? "float64" : std::is_same_v<T, float> ? "float32" : std::is_same_v<T, bool> ? "bool" : "int64";
}

// The keyword arguments of a constructor, and the references that keep their memory alive.
class NamedArrays {
  public:
    explicit NamedArrays(nb::kwargs given) : given_(std::move(given)) {}

    // The array of this name, with this shape; with `or_none`, it may also be empty.
    template <class T>
    std::span<const T> take(const char* name, std::initializer_list<std::int64_t> shape, bool or_none = false) {
        if (!given_.contains(name)) throw nb::value_error((std::string(name) + " is missing").c_str());
        In<T> array;
        bool fits = nb::try_cast(given_[name], array, false) && array.is_valid() && array.ndim() == shape.size();
        if (fits && !(or_none && array.size() == 0)) {
            std::size_t axis = 0;
            for (auto length : shape) {
                fits &= length == ANY || array.shape(axis) == static_cast<std::size_t>(length);
                ++axis;
            }
        }
        if (!fits) throw nb::value_error(problem<T>(name, shape).c_str());
        kept_.push_back(given_[name]);
        return {array.data(), array.size()};
    }

    std::vector<nb::object> kept() && { return std::move(kept_); }

  private:
    template <class T>
    std::string problem(const char* name, std::initializer_list<std::int64_t> shape) {
        std::string text = std::string(name) + " must be a contiguous numpy array of " + name_of<T>() + " with shape (";
        for (auto length : shape) text += (length == ANY ? std::string("any") : std::to_string(length)) + ", ";
        const nb::object given = given_[name], type = nb::getattr(given, "dtype", given.type()), of_shape = nb::getattr(given, "shape", nb::none());
        return text + "), is " + nb::str(type).c_str() + " with shape " + nb::str(of_shape).c_str();
    }

    nb::kwargs given_;
    std::vector<nb::object> kept_;
};

template <class T>
std::span<const T> span_of(const In<T>& array) {
    return {array.data(), array.size()};
}

template <class T>
std::span<T> span_of(Out<T>& array) {
    return {array.data(), array.size()};
}

// A numpy array that owns the numbers.
template <class T>
nb::object to_numpy(std::vector<T> values, std::initializer_list<std::size_t> shape) {
    auto* moved = new std::vector<T>(std::move(values));
    nb::capsule owner(moved, [](void* pointer) noexcept { delete static_cast<std::vector<T>*>(pointer); });
    return nb::cast(nb::ndarray<T, nb::numpy>(moved->data(), shape, owner), nb::rv_policy::reference);
}

template <class T>
nb::object to_numpy(std::vector<T> values) {
    const std::size_t size = values.size();
    return to_numpy(std::move(values), {size});
}

}  // namespace shardwright
