import pytest


@pytest.fixture
def one_thread():
    """Results are promised to be the same on one thread only."""
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
