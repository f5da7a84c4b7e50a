"""grpc.health.v1: the server as a whole ("") and each service, NOT_SERVING unless the engine is ready."""

import asyncio
from collections.abc import Sequence

from grpc_health.v1 import health_pb2
from grpc_health.v1._async import HealthServicer

from sandbox.engine.supervisor import EngineState

SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING


class Health:
    """The status of the server and its services."""

    def __init__(self, services: Sequence[str]) -> None:
        """Everything begins in NOT_SERVING once `set` was called; unknown names are NOT_FOUND."""
        self.servicer = HealthServicer()
        self._names = ("", *services)
        self._updates: set[asyncio.Task[None]] = set()

    async def set(self, status: "health_pb2.HealthCheckResponse.ServingStatus.ValueType") -> None:
        """Set the status of all names."""
        for name in self._names:
            await self.servicer.set(name, status)

    def follow_engine(self, state: EngineState) -> None:
        """Show the engine's state."""
        update = asyncio.create_task(self.set(SERVING if state is EngineState.READY else NOT_SERVING))
        self._updates.add(update)
        update.add_done_callback(self._updates.discard)

    async def shut_down(self) -> None:
        """NOT_SERVING from now on, whatever the engine says."""
        await self.servicer.enter_graceful_shutdown()
