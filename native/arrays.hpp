// numpy arrays from and to Python: checked once, and not copied on their way in; and objects with arrays as fields.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <string>
#include <type_traits>

#include "fields.hpp"

namespace shardwright {

namespace nb = nanobind;

template <class T>
using In = nb::ndarray<const T, nb::numpy, nb::c_contig, nb::device::cpu>;
template <class T>
using Out = nb::ndarray<T, nb::numpy, nb::c_contig, nb::device::cpu>;

template <class T>
constexpr const char* name_of() {
    return std::is_same_v<T, double> ? "float64" : std::is_same_v<T, float> ? "float32" : std::is_same_v<T, bool> ? "bool" : "int64";
}

// The attributes of a Python object. It is borrowed while a struct is filled, since it may hold that struct itself; what is read is kept.
class Attributes final : public Fields {
  public:
    explicit Attributes(nb::handle object, std::string path = "") : object_(object), path_(std::move(path)) {}

    Bools bools(const char* name, Shape shape, bool or_none) const override { return take<bool>(name, shape, or_none); }
    Ints ints(const char* name, Shape shape, bool or_none) const override { return take<std::int64_t>(name, shape, or_none); }
    Floats floats(const char* name, Shape shape, bool or_none) const override { return take<double>(name, shape, or_none); }
    Singles singles(const char* name, Shape shape, bool or_none) const override { return take<float>(name, shape, or_none); }
    From at(const char* name) const override { return std::make_shared<Attributes>(kept_.emplace_back(attribute(name)), path_ + name + "."); }

    double number(const char* name) const override {
        double value = 0.0;
        if (!nb::try_cast(attribute(name), value)) throw nb::value_error((path_ + name + " must be a number").c_str());
        return value;
    }

  private:
    nb::object attribute(const char* name) const {
        if (!nb::hasattr(object_, name)) throw nb::value_error((path_ + name + " is missing").c_str());
        return nb::getattr(object_, name);
    }

    template <class T>
    std::span<const T> take(const char* name, Shape shape, bool or_none) const {
        const nb::object& given = kept_.emplace_back(attribute(name));
        In<T> array;
        bool fits = nb::try_cast(given, array, false) && array.is_valid() && array.ndim() == shape.size();
        if (fits && !(or_none && array.size() == 0)) {
            std::size_t axis = 0;
            for (auto [length] : shape) {
                const auto actual = static_cast<std::int64_t>(array.shape(axis++));
                fits &= length == ANY || (length == SOME ? actual > 0 : actual == length);
            }
        }
        if (fits) return {array.data(), array.size()};
        std::string text = path_ + name + " must be a contiguous numpy array of " + name_of<T>() + " with shape (";
        for (auto [length] : shape) text += (length == ANY ? "any" : length == SOME ? "at least 1" : std::to_string(length)) + ", ";
        const nb::object type = nb::getattr(given, "dtype", given.type()), of_shape = nb::getattr(given, "shape", nb::none());
        throw nb::value_error((text + "), is " + nb::str(type).c_str() + " with shape " + nb::str(of_shape).c_str()).c_str());
    }

    nb::handle object_;
    std::string path_;
    mutable std::vector<nb::object> kept_;
};

inline From fields_of(nb::handle object) { return std::make_shared<Attributes>(object); }

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
