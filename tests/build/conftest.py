"""`evaluate`: expressions of the kernel language over arrays, through the whole build."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from tests.build.support import STORAGE, elementwise_source, run

Evaluate = Callable[..., np.ndarray]
EvaluateAll = Callable[..., list[np.ndarray]]


@pytest.fixture(scope="session")
def evaluate_all() -> EvaluateAll:
    """Several expressions at once, as (expression, kind): one kernel is quicker than many."""

    def function(results: list[tuple[str, str]], **operands: tuple[str, object]):
        kinds = {name: kind for name, (kind, _) in operands.items()}
        arrays = [
            np.ascontiguousarray(np.asarray(values, STORAGE[kind]))
            for kind, values in operands.values()
        ]
        outputs = [np.zeros(arrays[0].shape, STORAGE[kind]) for _, kind in results]
        extent = arrays[0].size
        assert all(array.size == extent for array in arrays)
        run(elementwise_source(results, kinds, extent), *arrays, *outputs)
        return outputs

    return function


@pytest.fixture(scope="session")
def evaluate(evaluate_all: EvaluateAll) -> Evaluate:
    def function(expression: str, result: str = "f32", **operands: tuple[str, object]):
        return evaluate_all([(expression, result)], **operands)[0]

    return function
