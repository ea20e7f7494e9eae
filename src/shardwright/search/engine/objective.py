r"""What a search lowers: the step time, smoothed so that every device near a maximum counts.

The step time is the sum over phases p of the maximum over devices d of t_dp. Where several devices share a maximum no single change
lowers it, so searches work on the power mean of growing power k instead,

    Ψ = Σ_p a_p · S_p^(1/k),   S_p = Σ_d (t_dp / a_p)^k,   a_p the maximum at the time the objective was set,

which lies between the step time and D^(1/k) times it. It is concave in S_p, so its linearisation

    ΔΨ ≤ Σ_p w_p · ΔS_p,   w_p = a_p / k · S_p^(1/k - 1)

never promises too much: a change that lowers the right side lowers Ψ. A device's `heat` is its part of Σ_p w_p S_p.
"""

from __future__ import annotations

from shardwright.jit import compiled, inner
from shardwright.search.engine.devices import (
    BACKWARD,
    BACKWARD_LINKS,
    FORWARD,
    FORWARD_LINKS,
    PHASES,
    Floats,
    Ints,
    link_times,
    times_after,
    times_of,
)
from shardwright.search.engine.state import Setting, State


@compiled
def set_objective(state: State, setting: Setting, squarings: int) -> None:
    """Price everything, and aim at the maxima as they are now, with the power 2 to `squarings`."""
    refresh_times(state, setting)
    state.squarings[0] = squarings
    power = 2.0**squarings
    step = step_ms(state)
    for phase in range(PHASES):
        top = max(state.times[:, phase].max(), 1e-6 * step, 1e-12)
        state.scale[phase] = 1.0 / top
        total = 0.0
        for device in range(state.used.size):
            total += raised(state.times[device, phase] / top, squarings)
        state.weight[phase] = top / power * max(total, 1e-300) ** (1.0 / power - 1.0) if total > 0 else top
    refresh_heat(state)


@compiled
def refresh_times(state: State, setting: Setting) -> None:
    """Price every device whose sums have changed, and all links."""
    for device in range(state.used.size):
        refresh_kernels(state, setting, device)
        refresh_links(state, setting, device)


@inner
def refresh_kernels(state: State, setting: Setting, device: int) -> None:
    """Price a device's calls whose sums have changed."""
    state.times[device, FORWARD], state.times[device, BACKWARD] = times_of(
        device, setting.once, state.sums, state.counts, state.priced, setting.mix
    )


@inner
def refresh_links(state: State, setting: Setting, device: int) -> None:
    """Price a device's links."""
    host, everyone = device // int(setting.links[1]), state.by_host.shape[0] - 1
    forward, backward = link_times(
        state.served[device, 0], state.served[device, 1], state.by_host[host, 0], state.by_host[host, 1],
        state.by_host[everyone, 0], state.by_host[everyone, 1], state.reduced[device, 0], state.reduced[device, 1], setting.links,
    )  # fmt: skip
    state.times[device, FORWARD_LINKS], state.times[device, BACKWARD_LINKS] = forward, backward


@inner
def refresh_heat(state: State) -> None:
    """Each device's part of the objective."""
    for device in range(state.used.size):
        refresh_heat_of(state, device)


@inner
def refresh_heat_of(state: State, device: int) -> None:
    """A device's part of the objective."""
    total = 0.0
    for phase in range(PHASES):
        total += state.weight[phase] * raised(state.times[device, phase] * state.scale[phase], state.squarings[0])
    state.heat[device] = total


@inner
def raised(base: float, squarings: int) -> float:
    """`base` to the power of 2 to `squarings`."""
    for _ in range(squarings):
        base *= base
    return min(base, 1e300)


@inner
def heat_after(
    device: int,
    out: int,
    into: int,
    more: tuple[float, float],
    host_more: tuple[float, float],
    all_more: tuple[float, float],
    times: Floats,
    part: Ints,
    call: Ints,
    vectors: Floats,
    sums: Floats,
    counts: Ints,
    priced: Floats,
    served: Floats,
    by_host: Floats,
    reduced: Floats,
    weight: Floats,
    scale: Floats,
    squarings: Ints,
    mix: Floats,
    links: Floats,
) -> float:
    """Heat of a device after a row of pieces has left it and another has come.

    It takes its arrays one by one: a tuple of them, handed from one compiled function to another, costs thirty times as much as this.

    Args:
        device: the device.
        out: the row that leaves, or -1.
        into: the row that comes, or -1.
        more: bytes of values and of ids that the device serves more.
        host_more: the same of its host.
        all_more: the same of all devices.
        times: as in `State`.
        part: this and the next two as in `Setting`.
        call: see above.
        vectors: see above.
        sums: this and the next eight as in `State`.
        counts: see above.
        priced: see above.
        served: see above.
        by_host: see above.
        reduced: see above.
        weight: see above.
        scale: see above.
        squarings: see above.
        mix: this and the next as in `Setting`.
        links: see above.
    """
    forward, backward = times_after(
        device, out, into, times[device, FORWARD], times[device, BACKWARD], part, call, vectors, sums, counts, priced, mix
    )  # fmt: skip
    host, everyone = device // int(links[1]), by_host.shape[0] - 1
    forward_links, backward_links = link_times(
        served[device, 0] + more[0], served[device, 1] + more[1],
        by_host[host, 0] + host_more[0], by_host[host, 1] + host_more[1],
        by_host[everyone, 0] + all_more[0], by_host[everyone, 1] + all_more[1],
        reduced[device, 0], reduced[device, 1], links,
    )  # fmt: skip
    power = squarings[0]
    return (
        weight[FORWARD] * raised(forward * scale[FORWARD], power)
        + weight[BACKWARD] * raised(backward * scale[BACKWARD], power)
        + weight[FORWARD_LINKS] * raised(forward_links * scale[FORWARD_LINKS], power)
        + weight[BACKWARD_LINKS] * raised(backward_links * scale[BACKWARD_LINKS], power)
    )


@compiled
def step_ms(state: State) -> float:
    """Sum over the phases of the maximum over devices."""
    total = 0.0
    for phase in range(PHASES):
        total += state.times[:, phase].max()
    return total
