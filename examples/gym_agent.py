"""Train an agent of a public library, MaskablePPO of sb3-contrib, on the placement environment: python examples/gym_agent.py.

Needs the extra "examples": pip install 'shardwright[examples]'. The agent learns on tasks of one half of a pool, and is compared with
random placements on tasks of the other half. The training is short: it shows how the parts fit together, not what such an agent can reach.
"""

from collections.abc import Sequence

import numpy as np
from sb3_contrib import MaskablePPO

import shardwright as sw
from shardwright.cost import cost_model_for
from shardwright.learned.gym_env import PlacementEnv
from shardwright.learned.worlds import SimulatedWorld
from shardwright.workload import random_task, split_pool

STEPS = 4096


def tasks_of(pool: Sequence[sw.Table], count: int) -> list[sw.Task]:
    return [
        random_task(
            seed, pool=pool, tables=12, devices=4, dims=(16,), memory="5 GB", batch_size=1024, device="cpu",
            replacement=False, fill=None,
        )
        for seed in range(count)
    ]  # fmt: skip


def mean_reward(env: PlacementEnv, count: int, agent: MaskablePPO | None) -> float:
    """Return the mean reward over the first `count` tasks; without an agent, that of random placements."""
    rng = np.random.default_rng(0)
    rewards = []
    for number in range(count):
        observation, _ = env.reset(options={"task": number})
        done = False
        while not done:
            mask = env.action_masks()
            if agent is None:
                action = rng.choice(np.flatnonzero(mask))
            else:
                action, _ = agent.predict(observation, action_masks=mask, deterministic=True)
            observation, reward, done, _, _ = env.step(action)
        rewards.append(reward)
    return float(np.mean(rewards))


def main() -> None:
    train, test = split_pool("dlrm-2021", 0.5)
    world = SimulatedWorld(cost_model_for("cpu"))
    env = PlacementEnv(tasks_of(train, 20), world)
    unseen = PlacementEnv(tasks_of(test, 20), world, like=env)

    agent = MaskablePPO(
        "MultiInputPolicy", env, n_steps=512, batch_size=128, learning_rate=2e-3, gamma=1.0, ent_coef=0.01, seed=0, device="cpu",
    )  # fmt: skip
    agent.learn(STEPS)

    for name, player in (("random placements", None), ("the trained agent", agent)):
        print(f"{name}: reward {mean_reward(unseen, 20, player):+.3f} on tasks never seen (greedy placement: 0)")
    print(f"the last plan puts {len(unseen.plan().shards)} shards on {unseen.action_space.n} devices")


if __name__ == "__main__":
    main()
