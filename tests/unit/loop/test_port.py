"""`provides` agrees with ``isinstance``."""

import gc
from weakref import ref

import pytest

from dify_agent.loop.port import HumanLayer, ModelLayer, OutputLayer, UsageReport, provides


class Output:
    def output_contract(self):
        return None


class Human:
    def __init__(self):
        self.enabled = False

    def deferred_call(self, requests):
        return requests


@pytest.mark.parametrize(
    "value", [Output(), Human(), object(), None, 1, "text"], ids=lambda value: type(value).__name__
)
@pytest.mark.parametrize("port", [HumanLayer, ModelLayer, OutputLayer, UsageReport])
def test_it_says_what_isinstance_says_again_and_again(value, port):
    assert [provides(value, port) for _ in range(3)] == [isinstance(value, port)] * 3


def test_it_does_not_keep_a_type_alive():
    kind = type("Kind", (Output,), {})
    gone = ref(kind)
    assert provides(kind(), OutputLayer)
    del kind
    gc.collect()
    assert gone() is None
