"""The compiled training and evaluation steps: many in one call, the same code on any devices."""

import functools
import time
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from .errors import NotFinite

# Of work in one call: the host's share of it falls under 1 %, and a signal waits no longer.
CALL_SECONDS = 0.2
MOST_STEPS = 1_000  # in one call

Batch = tuple[Any, Any, Any]
# (features, labels, index or weights) -> (inputs, targets): what the device does before the model
Prepare = Callable[[Any, Any, Any], tuple[Any, Any]]
# (targets, outputs) -> float32 [batch]
Loss = Callable[[Any, Any], Any]
Agree = Callable[[int], int]


class Loop:
    """Trains and evaluates one model on one strategy.

    One call of `train` runs any number of steps: the host prepares a call, not a step, and the
    losses leave the device once a call. The number of steps is an argument of the graph, so
    changing it compiles nothing anew.
    """

    def __init__(
        self,
        strategy: tf.distribute.Strategy,
        model: keras.Model,
        optimizer: keras.optimizers.Optimizer,
        *,
        loss: Loss,
        metrics: list[keras.metrics.Metric],
        prepare_training: Prepare,
        prepare_evaluation: Prepare,
        batch_size: int,
        accumulate: int = 1,
        ema: float = 0.0,
        jit: bool = False,
        agree: Agree = int,
    ) -> None:
        """Call it inside the strategy's scope.

        Args:
          strategy: how replicas share a step.
          model: inputs -> outputs; its weights live on the strategy.
          optimizer: built for the model.
          loss: (targets, outputs) -> float32 [batch], one number an example.
          metrics: Keras metrics, updated with (targets, outputs, sample_weight) in evaluation.
          prepare_training: (features, labels, index) -> (inputs, targets), on the device.
          prepare_evaluation: the same for evaluation; its third argument is the weights.
          batch_size: examples of a global batch.
          accumulate: parts that each replica's batch is computed in, one after the other.
          ema: decay of the averaged weights that evaluation uses; 0 for none.
          jit: compile forward and backward with XLA.
          agree: makes the number of steps of a call that of the other hosts.
        """
        self.strategy, self.model, self.optimizer = strategy, model, optimizer
        self.metrics, self.val_loss = metrics, keras.metrics.Mean("loss")
        self._loss, self._batch_size, self._accumulate = loss, batch_size, accumulate
        self._prepare_training, self._prepare_evaluation = prepare_training, prepare_evaluation
        self._decay, self._agree_on_steps = ema, agree
        self._statistics = [
            v
            for v in model.non_trainable_variables
            if v.path.endswith(("moving_mean", "moving_variance"))
        ]
        self._averaged = [*model.trainable_variables, *self._statistics] if ema else []
        self.ema = [tf.Variable(v.value, trainable=False) for v in self._averaged]
        # XLA compiles forward and backward alone: the optimizer's update leaves the replica, which
        # a compiled function cannot.
        self._gradients = (
            tf.function(self._gradients_of, jit_compile=True) if jit else self._gradients_of
        )
        self._train_call = tf.function(self._train_steps, reduce_retracing=True)
        self._resident_call = tf.function(self._resident_steps, reduce_retracing=True)
        self._consume_call = tf.function(self._consume, reduce_retracing=True)
        self._feed_call = tf.function(self._feed_steps, reduce_retracing=True)
        self._idle_call = tf.function(self._idle_steps, reduce_retracing=True)
        self._evaluate_call = tf.function(self._evaluate_steps, reduce_retracing=True)

    def train(self, iterator: Any, steps: int) -> np.ndarray:
        """Runs `steps` training steps in one call; returns their losses, float32 [steps]."""
        return self._train_call(iterator, tf.constant(steps)).numpy()

    def train_resident(self, batch: Batch, steps: int) -> np.ndarray:
        """The same on one batch that is already on the devices: what the input cannot slow down."""
        return self._resident_call(batch, tf.constant(steps)).numpy()

    def consume(self, iterator: Any, batches: int) -> None:
        """Takes batches and drops them: the input alone."""
        self._consume_call(iterator, tf.constant(batches))

    def feed(self, iterator: Any, steps: int) -> None:
        """Runs steps that take a batch to the devices and compute nothing there: host and copy."""
        self._feed_call(iterator, tf.constant(steps)).numpy()

    def idle(self, batch: Batch, steps: int) -> None:
        """The same on one batch that is already on the devices: the host alone."""
        self._idle_call(batch, tf.constant(steps)).numpy()

    def evaluate(
        self, batches: Any, count: int, stop: Callable[[], bool] = lambda: False
    ) -> dict[str, float] | None:
        """Evaluates on all of a finite data set, each example weighing what its weight says.

        Args:
          batches: (features, labels, weights), as `distribute` gave them.
          count: how many batches there are.
          stop: asked between calls; when it says yes on any host, the evaluation is given up.

        Returns:
          {"loss": ..., and each metric by name}, or None if given up.
        """
        for metric in [self.val_loss, *self.metrics]:
            metric.reset_state()
        left, iterator, pace = count, iter(batches), CallPace(0, self._agree_on_steps)
        self._swap_averages()
        try:
            while left and (steps := pace.take(left, stop())):
                with pace:
                    self._evaluate_call(iterator, tf.constant(steps))
                left -= steps
        finally:
            self._swap_averages()
        if left:
            return None
        return {m.name: float(m.result()) for m in [self.val_loss, *self.metrics]}

    def distribute(self, batches: tf.data.Dataset) -> Any:
        """Gives each replica its even share of every batch, ahead of time on its own device."""
        if self.strategy.num_replicas_in_sync > 1:
            each = batches.element_spec[-1].shape[0] // len(self.strategy.extended.worker_devices)
            return self.strategy.distribute_datasets_from_function(lambda _: batches.rebatch(each))
        gpus = tf.config.list_logical_devices("GPU")
        if gpus:
            # The copy of the next batch runs beside the computation of this one.
            return batches.apply(tf.data.experimental.prefetch_to_device(gpus[0].name, 2))
        return batches

    def _train_steps(self, iterator: Any, steps: Any) -> Any:
        losses = tf.TensorArray(tf.float32, steps)
        for step in tf.range(steps):
            losses = losses.write(step, self._train_step(next(iterator)))
        return losses.stack()

    def _resident_steps(self, batch: Batch, steps: Any) -> Any:
        losses = tf.TensorArray(tf.float32, steps)
        for step in tf.range(steps):
            losses = losses.write(step, self._train_step(batch))
        return losses.stack()

    def _consume(self, iterator: Any, batches: Any) -> None:
        for _ in tf.range(batches):
            next(iterator)

    def _feed_steps(self, iterator: Any, steps: Any) -> Any:
        touched = tf.constant(0.0)
        for _ in tf.range(steps):
            touched += self._touch(next(iterator))
        return touched

    def _idle_steps(self, batch: Batch, steps: Any) -> Any:
        touched = tf.constant(0.0)
        for _ in tf.range(steps):
            touched += self._touch(batch)
        return touched

    def _touch(self, batch: Batch) -> Any:
        """Reads one number of each tensor where it lies, so that it must have arrived."""

        def first_numbers(*tensors: Any) -> Any:
            flat = [tf.reshape(tensor, [-1])[0] for tensor in tf.nest.flatten(tensors)]
            return tf.add_n([tf.cast(number, tf.float32) for number in flat])

        return self.strategy.reduce("SUM", self.strategy.run(first_numbers, batch), axis=None)

    def _evaluate_steps(self, iterator: Any, steps: Any) -> None:
        for _ in tf.range(steps):
            self.strategy.run(self._replica_evaluation, next(iterator))

    def _train_step(self, batch: Batch) -> Any:
        losses = self.strategy.run(self._replica_step, batch)
        for average, variable in zip(self.ema, self._averaged, strict=True):
            self.strategy.extended.update(average, self._decay_towards, (variable.value,))
        return self.strategy.reduce("SUM", losses, axis=None)

    def _decay_towards(self, average: Any, value: Any) -> Any:
        return average.assign(self._decay * average + (1.0 - self._decay) * value)

    def _replica_step(self, features: Any, labels: Any, index: Any) -> Any:
        """One optimizer step; returns this replica's share of the global batch's mean loss."""
        inputs, targets = self._prepare_training(features, labels, index)
        if self._accumulate == 1:
            loss, gradients = self._gradients(inputs, targets)
        else:
            loss, gradients = self._accumulated(inputs, targets)
        self.optimizer.apply(self._agree(gradients), self.model.trainable_variables)
        self._average_statistics()
        return loss

    def _gradients_of(self, inputs: Any, targets: Any) -> tuple[Any, list[Any]]:
        with tf.GradientTape() as tape:
            outputs = self.model(inputs, training=True)
            # Summed and divided by the global batch, not averaged here: the sum over replicas is
            # then the mean over the batch whatever each replica holds.
            loss = tf.reduce_sum(self._loss(targets, outputs)) / self._batch_size
            if self.model.losses:
                parts = self.strategy.num_replicas_in_sync * self._accumulate
                loss += tf.add_n(self.model.losses) / parts
            scaled = self.optimizer.scale_loss(loss)
        return loss, tape.gradient(scaled, [v.value for v in self.model.trainable_variables])

    def _accumulated(self, inputs: Any, targets: Any) -> tuple[Any, list[Any]]:
        def parts(values: Any) -> Any:
            size = (values.shape[0] or tf.shape(values)[0]) // self._accumulate
            shape = tf.concat([[self._accumulate, size], tf.shape(values)[1:]], 0)
            return tf.reshape(values, shape)

        inputs, targets = tf.nest.map_structure(parts, (inputs, targets))
        loss = tf.constant(0.0)
        gradients = [tf.zeros(v.shape, v.dtype) for v in self.model.trainable_variables]
        for part in tf.range(self._accumulate):
            part_loss, part_gradients = self._gradients(
                *tf.nest.map_structure(
                    functools.partial(tf.gather, indices=part), (inputs, targets)
                )
            )
            loss += part_loss
            gradients = [total + new for total, new in zip(gradients, part_gradients, strict=True)]
        return loss, gradients

    def _agree(self, gradients: list[Any]) -> list[Any]:
        """Makes gradients such as replicas can add up, and one's overflow everyone's.

        Keras asks each replica, or the first alone, whether its own gradients are finite: replicas
        that disagree would hang, or add one's infinities to everyone's weights.
        """
        if self.strategy.num_replicas_in_sync == 1:
            return gradients
        # Replicas exchange the rows that an embedding used in one shape for all steps of a call,
        # and sequences are of many.
        gradients = [tf.convert_to_tensor(gradient) for gradient in gradients]
        if not isinstance(self.optimizer, keras.optimizers.LossScaleOptimizer):
            return gradients
        finite = tf.reduce_all([tf.reduce_all(tf.math.is_finite(g)) for g in gradients])
        context = tf.distribute.get_replica_context()
        bad = context.all_reduce("SUM", 1.0 - tf.cast(finite, tf.float32))
        return [tf.where(bad > 0, tf.cast(float("nan"), g.dtype), g) for g in gradients]

    def _average_statistics(self) -> None:
        """Averages BatchNorm's moving statistics: Keras leaves each replica its own, saves one."""
        if self._statistics and self.strategy.num_replicas_in_sync > 1:
            context = tf.distribute.get_replica_context()
            means = context.all_reduce("MEAN", [v.value for v in self._statistics])
            for variable, mean in zip(self._statistics, means, strict=True):
                variable.assign(mean)

    def _replica_evaluation(self, features: Any, labels: Any, weights: Any) -> None:
        inputs, targets = self._prepare_evaluation(features, labels, weights)
        outputs = self.model(inputs, training=False)
        self.val_loss.update_state(self._loss(targets, outputs), sample_weight=weights)
        for metric in self.metrics:
            metric.update_state(targets, outputs, sample_weight=weights)

    def _swap_averages(self) -> None:
        for average, variable in zip(self.ema, self._averaged, strict=True):
            value = variable.numpy()
            variable.assign(average.numpy())
            average.assign(value)


class CallPace:
    """How many steps to put into one call: so many that it takes about `CALL_SECONDS`.

    `steps = pace.take(left)`, then `with pace: loop.train(iterator, steps)`. The first call
    compiles, so it runs one step and is not counted.
    """

    def __init__(self, fixed: int, agree: Agree = int) -> None:
        """Starts with one step, if their number is not fixed.

        Args:
          fixed: always this many steps; 0 to measure.
          agree: the number of steps on this host -> the least of all hosts.
        """
        self._fixed, self.steps, self._calls = fixed, fixed or 1, 0
        self._taken, self._agree = self.steps, agree
        self.seconds = 0.0  # that the last call took

    def take(self, left: int, stop: bool = False) -> int:
        """The steps of the next call: what the pace gives, or the few that are left.

        0 if this host, or another, is to `stop`: so all of them do, after the same step.
        """
        self._taken = self._agree(0 if stop else min(self.steps, left))
        return self._taken

    def __enter__(self) -> None:
        self._began = time.perf_counter()

    def __exit__(self, *error: object) -> None:
        self.seconds = max(time.perf_counter() - self._began, 1e-6)
        self._calls += 1
        if not self._fixed and self._calls > 1:
            # At most four times as many at once: one short call must not start a very long one.
            fitting = round(self._taken * CALL_SECONDS / self.seconds)
            self.steps = max(1, min(fitting, self.steps * 4, MOST_STEPS))


def require_finite(losses: np.ndarray, first_step: int, last_good: str) -> None:
    """Raises `NotFinite` if a loss is NaN or infinite, naming its step and the last good
    checkpoint.

    Args:
      losses: of consecutive steps.
      first_step: the number of the first of them.
      last_good: a checkpoint's path, or words for none.
    """
    bad = np.flatnonzero(~np.isfinite(losses))
    if bad.size:
        step = first_step + int(bad[0])
        raise NotFinite(
            f"the loss is {losses[bad[0]]} at step {step}: stopped; last good checkpoint: "
            f"{last_good}; try a lower --learning_rate, or --precision=float32, or --nan_budget=3 "
            "to leave such batches out",
            step,
        )
