"""What looks guilty and is not: said beside the verdict, so that nobody tunes it."""

from .diagnosis import Diagnosis

INNOCENT = 1.02  # a remedy whose gain cannot exceed this is not worth a look


def not_guilty(diagnosis: Diagnosis, device: str, replicas: int) -> list[str]:
    """Sentences about the usual suspects that the figures clear.

    Args:
      diagnosis: of the job.
      device: what computes, "GPU" or "CPU".
      replicas: among how many a step is shared.
    """
    gains = {prediction.change: prediction.speedup for prediction in diagnosis.predictions}
    model, found = diagnosis.model, []
    if model.exposed < 0.2 and model.residual < 1.1:
        found.append(
            "Prefetch: the input already works while the device computes; more of it, or a larger "
            "buffer, gives nothing."
        )
    for change, what in (
        ("stage", "Storage: with the records in memory, training is no faster"),
        ("steps_per_call", "The host's work between calls: with more steps a call, no faster"),
        ("copy", "Copying batches to the device: without it, no faster"),
    ):
        if change in gains and gains[change].high < INNOCENT + 0.03:
            found.append(f"{what} ({gains[change].mean:.2f}x).")
    if replicas > 1:
        found.append("TensorFlow's warning about auto-sharding: batches are split as they are.")
    if device == "GPU":
        found.append(
            "100 % utilisation says that some kernel ran, not that the GPU was full; and a small "
            "convnet reaches few of a GPU's FLOP/s however well it is fed."
        )
    return found
