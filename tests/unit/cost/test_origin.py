import pytest

from shardwright.cost.origin import learned_elsewhere, provenance
from shardwright.measure.hardware import cpu_model


@pytest.mark.parametrize(("processor", "said"), [("Other CPU (cpu family 1)", True), (None, False)])
def test_a_model_of_another_processor_is_named(processor, said):
    hardware = f"device_kind cpu, processor {processor or cpu_model()}, cores 2, backend fbgemm"
    text = learned_elsewhere({"hardware": hardware}, "cpu")
    assert (text is not None) is said
    assert not said or (processor in text and cpu_model() in text and "shardwright calibrate" in text)
    assert learned_elsewhere({"hardware": hardware}, "cuda") is None
    assert learned_elsewhere({}, "cpu") is None


def test_a_model_of_several_processors_names_them_all():
    machines = [f"device_kind cpu, processor {name}, cores 2, backend fbgemm" for name in ("One CPU", cpu_model())]
    assert learned_elsewhere({"hardware": "; ".join(machines)}, "cpu") is None
    assert "was learned on One CPU and " in learned_elsewhere({"hardware": "; ".join(machines)}, "cpu", "Third CPU")
    assert (
        provenance({"hardware": "; ".join(machines), "date": "today"}) == f"learned on One CPU and {cpu_model()}, today"
    )
