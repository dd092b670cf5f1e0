"""Child processes, recorded on disk from their first moment so that somebody else can end them too."""

import os
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from . import processes
from .processes import Child
from .state import GRACE, Folder, State, boot_id


class Crew:
    """The processes of one fleet, and a folder for their unix sockets.

    It lies in the system's folder for temporary files: a socket's path has 107 bytes at most.
    """

    def __init__(self, folder: Folder, url: str) -> None:
        self.sockets = Path(tempfile.mkdtemp(prefix="hpkv-"))
        self.children: list[Child] = []
        self._folder = folder
        self._state = State(boot_id(), processes.identify(os.getpid()), url, str(self.sockets))
        folder.write(self._state)

    def start(self, name: str, command: Sequence[str], environment: Mapping[str, str]) -> Child:
        """Start a process; a second of the same name writes to the same log, from its beginning."""
        child = Child(name, command, environment, self._folder.log(name))
        self.children.append(child)
        records = tuple(child.record for child in self.children)
        self._state = msgspec.structs.replace(self._state, children=records)
        self._folder.write(self._state)
        return child

    def end(self) -> None:
        """End all that was started, and forget it."""
        processes.end(self._state.children, GRACE)
        for child in self.children:
            child.process.wait()
        self._folder.clear(self._state)
