"""The mixed-precision model builder: a backbone by name, and a float32 head."""

import contextlib
import dataclasses
import random
from collections.abc import Callable, Iterator
from typing import Any

import keras
from keras import layers

from .errors import UserError


@dataclasses.dataclass(frozen=True)
class Backbone:
    """A feature extractor and the range of pixel values it was designed for.

    Attributes:
      build: (image_size) -> a Keras model from [batch, size, size, 3] to feature maps or vectors.
      scale, offset: pixels 0..255 become pixel * scale + offset.
      reversed_channels: True if it takes blue, green, red.
    """

    build: Callable[[int], keras.Model]
    scale: tuple[float, ...] | float = 1.0
    offset: tuple[float, ...] | float = 0.0
    reversed_channels: bool = False


def _application(name: str, **options: Any) -> Callable[[int], keras.Model]:
    def build(size: int) -> keras.Model:
        make = getattr(keras.applications, name)
        return make(include_top=False, weights=None, input_shape=(size, size, 3), **options)

    return build


def _small_convnet(size: int) -> keras.Model:
    """Three convolutions, 94 thousand weights, on which replicas agree to rounding.

    Without batch norm, whose statistics would be each replica's own; and with SiLU, because ReLU's
    gradient jumps where rounding moves an activation over zero: between one device and two the
    losses of 50 steps then differed by 1e-4, with SiLU by 2e-7.
    """
    inputs = x = layers.Input((size, size, 3))
    for filters, strides in ((32, 1), (64, 2), (128, 2)):
        x = layers.Conv2D(filters, 3, strides, padding="same", activation="silu")(x)
    return keras.Model(inputs, x, name="small_convnet")


# The ranges are those of each family's preprocess_input. ResNet50 was trained on Caffe's: blue,
# green, red with ImageNet's mean subtracted. The others that stay at 1.0 rescale inside.
_MINUS_1_TO_1: dict[str, Any] = {"scale": 1 / 127.5, "offset": -1.0}
BACKBONES: dict[str, Backbone] = {
    "small_convnet": Backbone(_small_convnet, **_MINUS_1_TO_1),
    "resnet50": Backbone(
        _application("ResNet50"), offset=(-103.939, -116.779, -123.68), reversed_channels=True
    ),
    "resnet50v2": Backbone(_application("ResNet50V2"), **_MINUS_1_TO_1),
    "resnet101v2": Backbone(_application("ResNet101V2"), **_MINUS_1_TO_1),
    "mobilenetv2": Backbone(_application("MobileNetV2"), **_MINUS_1_TO_1),
    "mobilenetv3small": Backbone(_application("MobileNetV3Small")),
    "mobilenetv3large": Backbone(_application("MobileNetV3Large")),
    "efficientnetv2b0": Backbone(_application("EfficientNetV2B0")),
    "efficientnetv2s": Backbone(_application("EfficientNetV2S")),
    "convnexttiny": Backbone(_application("ConvNeXtTiny")),
    "convnextsmall": Backbone(_application("ConvNeXtSmall")),
}


@contextlib.contextmanager
def building(precision: str, seed: int) -> Iterator[None]:
    """Where a model is built: layers compute in this precision, weights come from this seed.

    The policy holds for what is built in the block alone: nothing global is left changed.

    Args:
      precision: float32, mixed_float16 or mixed_bfloat16. The last layer should be of dtype float32
        all the same: a half-precision softmax loses the small probabilities.
      seed: of the initial weights.
    """
    # Keras draws the seeds of initializers from it. TensorFlow's global seed stays untouched: with
    # one set, tf.data mixes it into every shuffle, and refuses a seed that is a tensor.
    random.seed(seed)
    before = keras.config.dtype_policy()
    keras.config.set_dtype_policy(precision)
    try:
        yield
    finally:
        keras.config.set_dtype_policy(before)


def build_model(
    name: str,
    outputs: int,
    image_size: int,
    precision: str = "float32",
    dropout: float = 0.0,
    seed: int = 0,
) -> keras.Model:
    """Builds a classifier or regressor of images.

    The head computes in float32 under every precision.

    Args:
      name: a key of `BACKBONES`.
      outputs: how many numbers it gives, such as the number of classes.
      image_size: side of the input in pixels.
      precision: float32, mixed_float16 or mixed_bfloat16.
      dropout: rate before the head; 0 leaves drop-out away.
      seed: of the initial weights and of drop-out.

    Returns:
      A model from [batch, image_size, image_size, 3], any dtype, values 0..255, to float32 logits
      [batch, outputs].

    Raises:
      UserError: no backbone of that name, or a size it cannot take.
    """
    if name not in BACKBONES:
        raise UserError(f"--model={name}: there is no such backbone: {', '.join(BACKBONES)}")
    backbone = BACKBONES[name]
    with building(precision, seed):
        inputs = x = layers.Input((image_size, image_size, 3), name="image")
        if backbone.reversed_channels:
            x = x[..., ::-1]
        # In float32 whatever the policy: bfloat16's 8 bits tell no two bright pixels apart.
        x = layers.Rescaling(backbone.scale, backbone.offset, dtype="float32")(x)
        try:
            x = backbone.build(image_size)(x)
        except ValueError as error:
            raise UserError(
                f"--image_size={image_size} does not suit --model={name} ({error})"
            ) from None
        x = layers.GlobalAveragePooling2D(dtype="float32")(x)
        if dropout:
            x = layers.Dropout(dropout, seed=seed, dtype="float32")(x)
        logits = layers.Dense(outputs, dtype="float32", name="head")(x)
        return keras.Model(inputs, logits, name=name)


def build_schedule(
    steps: int, learning_rate: float, warmup: float
) -> keras.optimizers.schedules.LearningRateSchedule:
    """Linear warm-up to `learning_rate` over the part `warmup` of the steps, then a cosine to 0."""
    warm_steps = max(1, round(steps * warmup))
    return keras.optimizers.schedules.CosineDecay(
        0.0, max(1, steps - warm_steps), warmup_target=learning_rate, warmup_steps=warm_steps
    )


def build_optimizer(
    model: keras.Model,
    schedule: keras.optimizers.schedules.LearningRateSchedule,
    weight_decay: float,
    precision: str,
) -> keras.optimizers.Optimizer:
    """AdamW, its variables made for `model`; under mixed_float16 with dynamic loss scaling.

    Args:
      model: whose weights it trains; biases and norm scales (vectors) are not decayed.
      schedule: step -> learning rate.
      weight_decay: a step subtracts learning rate * weight_decay * weight.
      precision: mixed_float16 scales the loss, or small gradients would become 0.
    """
    optimizer = keras.optimizers.AdamW(schedule, weight_decay=weight_decay)
    vectors = [v for v in model.trainable_variables if len(v.shape) <= 1]
    optimizer.exclude_from_weight_decay(var_list=vectors)
    if precision == "mixed_float16":
        optimizer = keras.optimizers.LossScaleOptimizer(optimizer)
    optimizer.build(model.trainable_variables)
    return optimizer
