"""Python inside an input pipeline: whether there is some, and the same pipeline without it."""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf

PYTHON_OPS = {"PyFunc", "PyFuncStateless", "EagerPyFunc"}


def uses_python(dataset: tf.data.Dataset) -> bool:
    """Whether elements pass through Python: py_function, numpy_function or from_generator."""
    policy = tf.data.experimental.ExternalStatePolicy.IGNORE
    serialized = dataset._as_serialized_graph(external_state_policy=policy)
    graph = tf.compat.v1.GraphDef.FromString(serialized.numpy())
    bodies = [graph.node, *(function.node_def for function in graph.library.function)]
    return any(node.op in PYTHON_OPS for body in bodies for node in body)


def without_python(make: Callable[[], tf.data.Dataset]) -> tf.data.Dataset | None:
    """A pipeline in which Python functions give what they gave the first time, at no cost.

    Args:
      make: builds the pipeline, calling tf.py_function or tf.numpy_function on the way.

    Returns:
      None if Python is left in it: code that took those functions by another name.
    """
    given: list[Any] = []
    with _standing_in(_recorder(given)):
        next(iter(make()))
    calls = iter(given)
    with _standing_in(lambda original: lambda *_, **__: next(calls)()):
        replayed = make()
    return None if uses_python(replayed) else replayed


def _recorder(given: list[Any]) -> Callable[[Any], Any]:
    """Stand-ins that also keep, call by call, what the Python function returned."""

    def wrap(original: Any) -> Any:
        def call(func: Any, inp: Any, Tout: Any, *rest: Any, **more: Any) -> Any:
            kept: dict[str, Any] = {}

            def recording(*arguments: Any) -> Any:
                value = func(*arguments)
                kept.setdefault("value", value)  # a pipeline may run ahead of the first element
                return value

            def replayed() -> Any:
                dtypes = Tout if isinstance(Tout, (list, tuple)) else [Tout]
                values = kept["value"] if isinstance(Tout, (list, tuple)) else [kept["value"]]
                tensors = [
                    tf.convert_to_tensor(value, dtype)
                    for value, dtype in zip(values, dtypes, strict=True)
                ]
                return tensors if isinstance(Tout, (list, tuple)) else tensors[0]

            given.append(replayed)
            return original(recording, inp, Tout, *rest, **more)

        return call

    return wrap


@contextlib.contextmanager
def _standing_in(wrap: Callable[[Any], Any]) -> Iterator[None]:
    originals = {name: getattr(tf, name) for name in ("py_function", "numpy_function")}
    try:
        for name, original in originals.items():
            setattr(tf, name, wrap(original))
        yield
    finally:
        for name, original in originals.items():
            setattr(tf, name, original)
