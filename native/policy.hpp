// Placing units one after another by a learned policy: `learned/priced/policy.py` names its inputs and its layers.
//
// Letters: n units, d devices, k copies of the placement, c fused calls, q numbers of a pricing vector, g facts of a unit. Times are in ms as
// they come in, and over the references of their phases from then on.
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>

#include "pricing.hpp"

namespace shardwright {

inline constexpr int DEVICE_PHASES = 4, POWERS = 3;  // kernels forward and backward, links forward and backward
inline constexpr std::size_t SEEN = 2 * DEVICE_PHASES + 10, RISE = 2 * DEVICE_PHASES + 1;
inline constexpr double LEAST_RISE = 1e-9, FAR = 4.0, LOG_SCALE = 8.0, GATE_IS_OPEN = 0.5;

using Phased = std::array<double, DEVICE_PHASES>;

// The task of a placement: `PricedTask` of learned/priced/task.py, its rules, and what is known before the first unit is placed.
struct Units {
    From from, before;
    From arrays = from->at("arrays");
    Ints bytes = arrays->ints("bytes", {ANY}), memory = arrays->ints("memory", {SOME});
    std::size_t size = bytes.size(), devices = memory.size();
    Ints used = arrays->ints("used", {devices});
    Bools allowed = arrays->bools("allowed", {size, devices}), rivals = arrays->bools("rivals", {size, size});
    bool apart = std::ranges::find(rivals, true) != rivals.end();  // whether any unit has a rival
    PricingHead head{from->at("pricing")->at("head")};
    std::array<double, 2> once{head.once.forward, head.once.backward};
    Bools fixed_calls = from->bools("fixed_calls", {devices, ANY});
    std::size_t made = fixed_calls.size() / devices, width = head.width;  // c, q
    Bools calls = from->bools("calls", {size, made});
    Floats vectors = from->floats("vectors", {size, made, width}), fixed_vectors = from->floats("fixed_vectors", {devices, made, width});
    Floats links = from->floats("links", {size, 3}), fixed_links = from->floats("fixed_links", {devices, 2});
    Floats over = before->floats("over", {DEVICE_PHASES}), parts = before->floats("parts", {DEVICE_PHASES});
    Floats facts = before->floats("facts", {size, ANY}), kernels = before->floats("kernels", {size});
    std::size_t known = facts.size() / std::max<std::size_t>(1, size);  // g
};

// The layers of a policy, h hidden units each.
struct Layers {
    From from;
    Singles bias = from->singles("bias", {ANY});
    std::size_t hidden = bias.size();
    Singles device = from->singles("device", {hidden, SEEN}), facts = from->singles("facts", {hidden, ANY});
    Singles between = from->singles("between", {hidden, hidden}), between_bias = from->singles("between_bias", {hidden});
    Singles last = from->singles("last", {hidden});
    double gain = from->number("gain");
};

// `out` (rows, lanes) += weights (rows, columns) . `in` (columns, lanes); in single precision, as in training.
void add_product(std::span<const float> weights, std::size_t columns, const float* in, float* out, std::size_t lanes);

// Data for training, recorded during placement; n * k decisions each.
struct Record {
    std::vector<float> seen, facts;  // (n, k, d, SEEN), (n, k, g)
    std::vector<double> logits;      // (n, k, d), -inf if a device cannot take the unit
    std::vector<double> slowest;     // (n + 1, k, 4)
};

// One copy of a placement while its devices fill up.
class Floor {
  public:
    Floor(const Units& units, const Layers& layers) : device_of(units.size, NONE), u_(units), net_(layers), d_(units.devices) {
        const std::size_t calls = u_.made, q = u_.width;
        used_.assign(u_.used.begin(), u_.used.end());
        sums_.resize(d_ * calls * q), call_ms_.resize(d_ * calls), served_.resize(d_), before_.resize(d_), present_.assign(d_, false), barred_.resize(d_);
        powers_.resize(d_), now_.resize(d_), open_.resize(d_);
        for (std::size_t unit = 0; unit < u_.size; ++unit)
            for (int way = 0; way < 3; ++way) even_[way] += u_.links[3 * unit + way] / static_cast<double>(d_);
        for (std::size_t device = 0; device < d_; ++device) {
            Phased& times = before_[device];
            for (std::size_t call = 0; call < calls; ++call) {
                const std::size_t at = device * calls + call;
                for (std::size_t i = 0; i < q; ++i) sums_[at * q + i] = u_.head.base[i] + u_.fixed_vectors[at * q + i];
                if (!u_.fixed_calls[at]) continue;
                call_ms_[at] = call_ms(u_.head, &sums_[at * q]);
                times[0] += call_ms_[at].forward * u_.over[0], times[1] += call_ms_[at].backward * u_.over[1];
                present_[device] = true;
            }
            if (present_[device])
                for (int pass = 0; pass < 2; ++pass) times[pass] += u_.once[pass] * u_.over[pass];
            set_links(times, device, served_[device]);
            open_[device] = opened(device, nullptr);
            powers_[device] = powers_of(times), now_[device] = weighed(times);
            for (int phase = 0; phase < DEVICE_PHASES; ++phase) slowest[phase] = std::max(slowest[phase], times[phase]);
        }
        lanes_ = (d_ + 15) / 16 * 16;
        after_.resize(d_), after_powers_.resize(d_), logits_.resize(d_), rise_.resize(d_), steps_.resize(d_), above_.resize(d_);
        seen_.resize(SEEN * lanes_), added_.resize(lanes_), hidden_.resize(net_.bias.size() * lanes_), second_.resize(hidden_.size());
    }

    // Place a unit on the able device of the highest logit plus noise (d,), if there is one; nullptr for no noise.
    void place(std::size_t unit, const double* noise) {
        look(unit);
        judge();
        int best = NONE;
        double highest = -std::numeric_limits<double>::infinity();
        bar(unit);
        for (std::size_t device = 0; device < d_; ++device) {
            if (barred_[device]) logits_[device] = -std::numeric_limits<double>::infinity();
            const double logit = logits_[device] + (noise ? noise[device] : 0.0);
            if (logit > highest) highest = logit, best = static_cast<int>(device);
        }
        if (best >= 0) take(unit, static_cast<std::size_t>(best));
    }

    // Of the unit that was placed last.
    float seen(std::size_t input, std::size_t device) const { return seen_[input * lanes_ + device]; }
    double logit(std::size_t device) const { return logits_[device]; }
    const std::vector<float>& facts() const { return facts_; }
    // `(d,)` times of the devices by phase.
    const std::vector<Phased>& times() const { return before_; }

    Phased slowest{};                     // the slowest device of each phase
    std::vector<std::int64_t> device_of;  // of each unit; NONE before it is placed, or if no device was able to take it

  private:
    // Bar the devices that are not allowed, have too little memory left, or hold a rival.
    void bar(std::size_t unit) {
        for (std::size_t device = 0; device < d_; ++device)
            barred_[device] = !u_.allowed[unit * d_ + device] || used_[device] + u_.bytes[unit] > u_.memory[device];
        if (!u_.apart) return;
        for (std::size_t other = 0; other < u_.size; ++other)
            if (u_.rivals[unit * u_.size + other] && device_of[other] >= 0) barred_[device_of[other]] = true;
    }

    // Links of a device that serves these: values and ids travel in opposite directions; incoming bytes are an even share.
    void set_links(Phased& times, std::size_t device, const std::array<double, 3>& served) const {
        times[2] = (u_.fixed_links[2 * device] + std::max(served[0] + even_[1], even_[0] + served[1])) * u_.over[2];
        times[3] = (u_.fixed_links[2 * device + 1] + std::max(served[2], even_[2])) * u_.over[3];
    }

    double weighed(const Phased& times) const {
        double sum = 0.0;
        for (int phase = 0; phase < DEVICE_PHASES; ++phase) sum += u_.parts[phase] * times[phase];
        return sum;
    }

    // Sums of the phases' 2nd, 8th and 28th powers, each times its part.
    std::array<double, POWERS> powers_of(const Phased& times) const {
        std::array<double, POWERS> sums{};
        for (int phase = 0; phase < DEVICE_PHASES; ++phase) {
            const double two = times[phase] * times[phase], four = two * two, eight = four * four;
            sums[0] += u_.parts[phase] * two, sums[1] += u_.parts[phase] * eight, sums[2] += u_.parts[phase] * (four * eight * eight * eight);
        }
        return sums;
    }

    // Share of the gates that are open on a device, with a unit's vectors (c, q) or without.
    double opened(std::size_t device, const double* more) const {
        if (!u_.head.gates) return 0.0;
        const std::size_t calls = u_.made, q = u_.width, first = q - 2 - 3 * u_.head.gates;
        int open = 0;
        for (std::size_t call = 0; call < calls; ++call)
            for (std::size_t gate = first; gate < q - 2; gate += 3)
                open += sums_[(device * calls + call) * q + gate] + (more ? more[call * q + gate] : 0.0) > GATE_IS_OPEN;
        return open / static_cast<double>(u_.head.gates);
    }

    // Price every device with a unit.
    void look(std::size_t unit) {
        const std::size_t calls = u_.made, q = u_.width;
        const double* vectors = &u_.vectors[unit * calls * q];
        double mean = 0.0, least_step = std::numeric_limits<double>::infinity(), least_above = least_step;
        for (double now : now_) mean += now / static_cast<double>(d_);
        for (std::size_t device = 0; device < d_; ++device) {
            Phased& after = after_[device] = before_[device];
            for (std::size_t call = 0; call < calls; ++call) {
                if (!u_.calls[unit * calls + call]) continue;
                const std::size_t at = device * calls + call;
                const Ms ms = call_ms_with(u_.head, &sums_[at * q], vectors + call * q);
                after[0] += (ms.forward - call_ms_[at].forward) * u_.over[0], after[1] += (ms.backward - call_ms_[at].backward) * u_.over[1];
            }
            if (!present_[device])
                for (int pass = 0; pass < 2; ++pass) after[pass] += u_.once[pass] * u_.over[pass];
            set_links(after, device, with(device, unit));
            after_powers_[device] = powers_of(after);
            double step = 0.0, above = 0.0;
            for (int phase = 0; phase < DEVICE_PHASES; ++phase) {
                const double most = std::max(after[phase], slowest[phase]);
                step += u_.parts[phase] * most, above += u_.parts[phase] * std::max(most, 1.0);
                set(phase, device, after[phase]), set(DEVICE_PHASES + phase, device, before_[device][phase]);
            }
            for (int power = 0; power < POWERS; ++power) {
                const double rise = std::log(std::max(after_powers_[device][power] - powers_[device][power], LEAST_RISE));
                set(2 * DEVICE_PHASES + power, device, rise / LOG_SCALE);
                if (power == 1) rise_[device] = std::min(rise, FAR * LOG_SCALE);
            }
            steps_[device] = step, above_[device] = above;
            least_step = std::min(least_step, step), least_above = std::min(least_above, above);
            set(13, device, (after[0] + after[1] - before_[device][0] - before_[device][1]) / u_.kernels[unit]);
            set(14, device, static_cast<double>(used_[device] + u_.bytes[unit]) / std::max(1.0, static_cast<double>(u_.memory[device])));
            set(15, device, open_[device]), set(16, device, opened(device, vectors) - open_[device]);
            set(17, device, weighed(after) - mean);
        }
        for (std::size_t device = 0; device < d_; ++device)
            set(11, device, steps_[device] - least_step), set(12, device, above_[device] - least_above);
        const auto known = u_.facts.subspan(unit * u_.known, u_.known);
        facts_.assign(known.begin(), known.end());
        double step = 0.0;
        for (int phase = 0; phase < DEVICE_PHASES; ++phase) step += u_.parts[phase] * slowest[phase];
        facts_.back() = static_cast<float>(std::min(step, FAR));
    }

    // The logit of every device.
    void judge() {
        const std::size_t hidden = net_.bias.size();
        for (std::size_t row = 0; row < hidden; ++row) {
            float sum = net_.bias[row];
            for (std::size_t fact = 0; fact < facts_.size(); ++fact) sum += net_.facts[row * facts_.size() + fact] * facts_[fact];
            std::fill_n(&hidden_[row * lanes_], lanes_, sum);
            std::fill_n(&second_[row * lanes_], lanes_, net_.between_bias[row]);
        }
        std::fill(added_.begin(), added_.end(), 0.0F);
        add_product(net_.device, SEEN, seen_.data(), hidden_.data(), lanes_);
        for (float& value : hidden_) value = std::max(value, 0.0F);
        add_product(net_.between, hidden, hidden_.data(), second_.data(), lanes_);
        for (float& value : second_) value = std::max(value, 0.0F);
        add_product(net_.last, hidden, second_.data(), added_.data(), lanes_);
        for (std::size_t device = 0; device < d_; ++device) logits_[device] = static_cast<double>(added_[device]) - net_.gain * rise_[device];
    }

    void take(std::size_t unit, std::size_t device) {
        const std::size_t calls = u_.made, q = u_.width;
        const double* vectors = &u_.vectors[unit * calls * q];
        served_[device] = with(device, unit);
        for (std::size_t call = 0; call < calls; ++call) {
            const std::size_t at = device * calls + call;
            for (std::size_t i = 0; i < q; ++i) sums_[at * q + i] += vectors[call * q + i];
            if (u_.calls[unit * calls + call]) call_ms_[at] = call_ms(u_.head, &sums_[at * q]);
        }
        before_[device] = after_[device], powers_[device] = after_powers_[device], now_[device] = weighed(after_[device]);
        for (int phase = 0; phase < DEVICE_PHASES; ++phase) slowest[phase] = std::max(slowest[phase], after_[device][phase]);
        used_[device] += u_.bytes[unit];
        present_[device] = true;
        open_[device] = opened(device, nullptr);
        device_of[unit] = static_cast<std::int64_t>(device);
    }

    std::array<double, 3> with(std::size_t device, std::size_t unit) const {
        std::array<double, 3> served = served_[device];
        for (int way = 0; way < 3; ++way) served[way] += u_.links[3 * unit + way];
        return served;
    }

    void set(std::size_t number, std::size_t device, double value) { seen_[number * lanes_ + device] = static_cast<float>(std::min(value, FAR)); }

    const Units& u_;
    const Layers& net_;
    std::size_t d_, lanes_ = 0;  // lanes: devices, filled up to a multiple of 16
    std::array<double, 3> even_{};
    std::vector<std::int64_t> used_;
    std::vector<double> sums_, now_, open_, rise_, steps_, above_, logits_;  // sums (d, c, q), with base
    std::vector<float> seen_, hidden_, second_, added_, facts_;              // seen (SEEN, lanes)
    std::vector<Ms> call_ms_;                                                // (d, c)
    std::vector<std::array<double, 3>> served_, powers_, after_powers_;      // served: as `links` of the units
    std::vector<Phased> before_, after_;
    std::vector<bool> present_, barred_;
};

// Place the units of a task in an order. `noise` (n, j, d) is added to the logits of the last j copies. Returns the copies.
inline std::vector<Floor> place_units(const Units& units, const Layers& layers, Ints order, Floats noise, std::size_t copies, Record* record) {
    std::vector<Floor> floors(copies, Floor(units, layers));
    const std::size_t d = units.devices;
    const auto keep_slowest = [&](const Floor& floor) { record->slowest.insert(record->slowest.end(), floor.slowest.begin(), floor.slowest.end()); };
    if (record)
        for (const Floor& floor : floors) keep_slowest(floor);
    if (record) {
        record->seen.reserve(order.size() * copies * d * SEEN);
        record->logits.reserve(order.size() * copies * d);
    }
    const std::size_t noisy = noise.size() / std::max<std::size_t>(1, order.size() * d), first = copies - noisy;
    std::size_t step = 0;
    for (auto unit : order) {
        for (std::size_t copy = 0; copy < copies; ++copy) {
            Floor& floor = floors[copy];
            floor.place(static_cast<std::size_t>(unit), copy < first ? nullptr : &noise[(step * noisy + copy - first) * d]);
            if (!record) continue;
            for (std::size_t device = 0; device < d; ++device) {
                for (std::size_t number = 0; number < SEEN; ++number) record->seen.push_back(floor.seen(number, device));
                record->logits.push_back(floor.logit(device));
            }
            record->facts.insert(record->facts.end(), floor.facts().begin(), floor.facts().end());
            keep_slowest(floor);
        }
        ++step;
    }
    return floors;
}

}  // namespace shardwright
