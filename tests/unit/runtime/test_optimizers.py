import numpy as np
import pytest

pytest.importorskip("torch", reason="the runtime needs torch")

import torch

from shardwright.errors import InvalidInput
from shardwright.runtime.optimizers import STATES, Optimizer

ROWS, DIM = 20, 8
OPTIONS = {"learning_rate": 0.1, "eps": 1e-3, "betas": (0.8, 0.95)}


def states_of(optimizer, rows=ROWS, dim=DIM):
    return [torch.zeros(rows, 1 if optimizer == "rowwise_adagrad" else dim) for _ in STATES[optimizer]]


def steps(optimizer, dtype=torch.float32):
    """Weights and states after three steps on some rows, and the looked-up rows with their gradients."""
    rng = np.random.default_rng(3)
    weights = torch.from_numpy(rng.standard_normal((ROWS, DIM)).astype(np.float32)).to(dtype)
    start, states, batches = weights.clone(), states_of(optimizer), []
    for step in range(1, 4):
        ids = torch.from_numpy(rng.integers(0, ROWS, 15))
        gradients = torch.from_numpy(rng.standard_normal((15, DIM)).astype(np.float32))
        batches.append((ids, gradients))
        slots = ids.unique()
        dense = torch.zeros(ROWS, DIM).index_add_(0, ids, gradients)
        Optimizer(optimizer, **OPTIONS).update(step, weights, states, slots, dense[slots])
    return start, weights, states, batches


@pytest.mark.parametrize("optimizer", ["sgd", "rowwise_adagrad", "adagrad"])
def test_updates_are_those_of_fbgemm(optimizer):
    pytest.importorskip("fbgemm_gpu", reason="compares with FBGEMM")
    from fbgemm_gpu.split_embedding_configs import EmbOptimType
    from fbgemm_gpu.split_table_batched_embeddings_ops_common import EmbeddingLocation, PoolingMode
    from fbgemm_gpu.split_table_batched_embeddings_ops_training import (
        ComputeDevice,
        SplitTableBatchedEmbeddingBagsCodegen,
    )

    kinds = {
        "sgd": EmbOptimType.EXACT_SGD,
        "rowwise_adagrad": EmbOptimType.EXACT_ROWWISE_ADAGRAD,
        "adagrad": EmbOptimType.EXACT_ADAGRAD,
    }
    start, weights, states, batches = steps(optimizer)
    theirs = SplitTableBatchedEmbeddingBagsCodegen(
        [(ROWS, DIM, EmbeddingLocation.HOST, ComputeDevice.CPU)],
        optimizer=kinds[optimizer],
        learning_rate=OPTIONS["learning_rate"],
        eps=OPTIONS["eps"],
        pooling_mode=PoolingMode.NONE,
    )
    theirs.split_embedding_weights()[0].copy_(start)
    for ids, gradients in batches:
        theirs(ids, torch.arange(ids.numel() + 1)).backward(gradients)
    torch.testing.assert_close(weights, theirs.split_embedding_weights()[0], rtol=1e-6, atol=1e-6)
    if states:
        their_state = theirs.split_optimizer_states()[0][0].view(ROWS, -1)
        torch.testing.assert_close(states[0], their_state, rtol=1e-6, atol=1e-6)


def test_adam_is_that_of_the_paper_on_looked_up_rows():
    start, weights, (momentum, variance), batches = steps("adam")
    first, second = OPTIONS["betas"]
    w, m, v = start.double(), torch.zeros(ROWS, DIM).double(), torch.zeros(ROWS, DIM).double()
    for step, (ids, gradients) in enumerate(batches, 1):
        for row in ids.unique().tolist():
            g = gradients[ids == row].double().sum(0)
            m[row] = first * m[row] + (1 - first) * g
            v[row] = second * v[row] + (1 - second) * g * g
            w[row] -= (
                OPTIONS["learning_rate"]
                * (m[row] / (1 - first**step))
                / ((v[row] / (1 - second**step)).sqrt() + OPTIONS["eps"])
            )
    torch.testing.assert_close(weights.double(), w, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(momentum.double(), m, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(variance.double(), v, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("optimizer", STATES)
def test_half_precision_weights_are_rounded_once(optimizer):
    start, weights, _, _ = steps(optimizer, torch.float16)
    assert weights.dtype == torch.float16
    exact = start.float()
    slots, gradient = torch.tensor([1, 4]), torch.full((2, DIM), 0.01)
    once, states = start.clone(), states_of(optimizer)
    Optimizer(optimizer, **OPTIONS).update(1, once, states, slots, gradient.clone())
    Optimizer(optimizer, **OPTIONS).update(1, exact, states_of(optimizer), slots, gradient.clone())
    assert torch.equal(once, exact.half())


@pytest.mark.parametrize("dim", [1, 3, 8, 33, 128])
@pytest.mark.parametrize("optimizer", STATES)
def test_a_row_gets_the_same_bits_whatever_rows_are_beside_it(optimizer, dim):
    gradients = torch.randn(200, dim, generator=torch.Generator().manual_seed(0))
    together, alone = torch.ones(200, dim), torch.ones(200, dim)
    states, single = states_of(optimizer, 200, dim), states_of(optimizer, 200, dim)
    Optimizer(optimizer, **OPTIONS).update(1, together, states, torch.arange(200), gradients.clone())
    for row in range(200):
        Optimizer(optimizer, **OPTIONS).update(1, alone, single, torch.tensor([row]), gradients[row : row + 1].clone())
    assert torch.equal(together, alone)


@pytest.mark.parametrize("options", [{"learning_rate": -1}, {"eps": 0.0}, {"betas": (0.9,)}, {"betas": (-0.1, 0.5)}])
def test_options_are_checked(options):
    with pytest.raises(InvalidInput, match=next(iter(options))):
        Optimizer("adam", **options)
