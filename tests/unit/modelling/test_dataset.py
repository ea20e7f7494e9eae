import numpy as np

from shardwright.modelling.dataset import pair_label, pairs_of, split


def test_the_split_keeps_both_measurements_of_a_set_together():
    sample = np.concatenate([np.arange(600), np.arange(300)])
    parts = split(sample, seed=3)
    assert [len(np.unique(sample[part])) for part in parts] == [480, 60, 60]
    assert (np.sum(parts, axis=0) == 1).all()
    assert all((part[:300] == part[600:]).all() for part in parts)
    assert (split(sample, seed=4)[2] != parts[2]).any()


def test_complete_variants_are_compared_with_the_first():
    labels = ["", pair_label("a", 0, 1), pair_label("a", 1, 2), "other", pair_label("a", 1, 2), pair_label("a", 2, 2)]
    pairs = pairs_of(labels)
    assert pairs.variant.tolist() == [-1, 0, 1, -1, 1, -1]  # of variant 2 a set is missing
    assert pairs.base.tolist() == [0, 0]
    assert pairs.group.tolist() == [0, 1, 1, 3, 1, 1]


def test_a_pair_without_its_first_variant_teaches_nothing():
    pairs = pairs_of([pair_label("a", 1, 1), pair_label("b/c", 0, 1), pair_label("b/c", 1, 1)])
    assert pairs.variant.tolist() == [-1, 0, 1]
    assert pairs.base.tolist() == [0, 0]


def test_other_labels_belong_to_no_pair():
    pairs = pairs_of(["pair:", "pair:a/b/c", "pair:a/1", "x"])
    assert pairs.variant.tolist() == [-1] * 4
    assert not len(pairs.base)
