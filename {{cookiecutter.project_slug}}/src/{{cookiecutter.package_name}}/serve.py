"""A part of a tf.data service, which reads and decodes for trainings on other machines.

python -m PACKAGE.serve --port=5050                   on one machine: the dispatcher
python -m PACKAGE.serve --dispatcher=HOST:5050        on each machine that decodes: a worker
python -m PACKAGE.train --data_service=grpc://HOST:5050 ...
"""

import signal
import socket
import threading
from typing import Any

from .command_line import parse
from .errors import UserError, run_command
from .runtime import start_tensorflow
from .settings import ServeSettings

DISPATCHER_PORT = 5050


def main(argv: list[str] | None = None) -> int:
    """Serves until SIGTERM or an interrupt; returns the exit code."""
    settings = parse(ServeSettings, argv)
    start_tensorflow()
    return run_command("serve", lambda: _serve(settings))


def _serve(settings: ServeSettings) -> int:
    import tensorflow as tf

    tf.config.set_visible_devices([], "GPU")  # they belong to the training
    service, host = tf.data.experimental.service, settings.host or socket.gethostname()
    try:
        server: Any
        if settings.dispatcher:
            # Others are told the port before it is opened: it has to be a certain one.
            port = settings.port if settings.port > 0 else _free_port()
            _require_free(port)
            config = service.WorkerConfig(
                dispatcher_address=settings.dispatcher.removeprefix("grpc://"),
                worker_address=f"{host}:{port}",
                port=port,
            )
            server = service.WorkerServer(config)
            print(f"worker of {settings.dispatcher} on {host}:{port}", flush=True)
        else:
            port = DISPATCHER_PORT if settings.port < 0 else settings.port
            _require_free(port)
            server = service.DispatchServer(service.DispatcherConfig(port=port))
            port = int(server.target.rpartition(":")[2])
            print(f"dispatcher: train with --data_service=grpc://{host}:{port}", flush=True)
    except tf.errors.OpError as error:
        raise UserError(f"cannot serve on port {port}: {error.message}") from None
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    stop.wait()
    del server  # it serves as long as it is there
    return 0


def _require_free(port: int) -> None:
    """Raises `UserError` if the port is taken: gRPC would share it, and each get some calls."""
    try:
        with socket.socket() as probe:
            probe.bind(("", port))
    except OSError as error:
        raise UserError(f"--port={port}: {error.strerror}: name another") from None


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("", 0))
        return probe.getsockname()[1]


if __name__ == "__main__":
    raise SystemExit(main())
