# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Which saves stay: each checkpoint_id is a pin, until it is deleted."""

from __future__ import annotations

import warnings

from .._errors import NotRetained, StoreFull
from .._reading import read
from .._reports import CheckpointId
from .._session import Session
from ._dcp_metadata import HEAD, dump_withdrawal, saves
from ._dcp_variables import Variables


class Kept:
    """The saves of a writer, the same on all ranks."""

    def __init__(self, session: Session, variables: Variables) -> None:
        self._session, self._variables = session, variables
        self._saved: dict[str, CheckpointId] = {}
        self._former: list[tuple[str, CheckpointId]] = []

    def look(self) -> dict[str, tuple[CheckpointId, bool]]:
        """What is stored, and whether it is pinned. Local."""
        if not self._session.all_checkpoints:
            return {}
        stores = read(self._session.directory)
        return {save.checkpoint_id: (save.checkpoint.id, save.checkpoint.pinned)
                for save in saves(stores) if save.checkpoint_id is not None}

    def take(self, found: dict[str, tuple[CheckpointId, bool]]) -> None:
        """Takes over what an earlier start saved; pins what was not, as that start ended before. Collective."""
        there = set(self._session.all_checkpoints)
        for name, (identity, is_pinned) in found.items():
            if identity not in there:
                continue
            self._saved[name] = identity
            if not is_pinned:
                try:
                    self._session.pin(identity.number)
                except StoreFull as error:
                    warnings.warn(f"checkpoint_id {name!r} will not stay: {error}", stacklevel=4)

    def retained(self) -> dict[str, CheckpointId]:
        """By checkpoint_id. Local."""
        there = set(self._session.all_checkpoints)
        return {name: found for name, found in self._saved.items() if found in there}

    def names(self) -> list[str]:
        """Oldest first. Local."""
        return [name for name, _ in sorted(self.retained().items(), key=lambda one: one[1])]

    def check_room(self, name: str | None) -> None:
        """Raises StoreFull where no more can be kept. Local, the same on all ranks."""
        if name is not None and self._session.pins_left == 0:
            raise StoreFull(f"checkpoint_id {name!r} cannot be kept beside {len(self.retained())} others: delete some, "
                            "or lower retained", "degrade")

    def keep(self, name: str | None, identity: CheckpointId) -> None:
        """Pins a checkpoint that is durable, and lets the one go that it replaces. Collective."""
        if name is None:
            return
        former = self.retained().get(name)
        try:
            self._session.pin(identity.number)
        except StoreFull:
            # The program pinned others since there was room.
            self._withdraw([], [identity])
            raise
        self._saved[name] = identity
        if former is not None:
            self._session.unpin(former.number)
            self._former.append((name, former))

    def delete(self, name: str) -> None:
        """Lets a save go. Collective."""
        found = self.retained().get(name)
        if found is None:
            known = ", ".join(map(repr, self.names())) or "none"
            raise NotRetained(f"no checkpoint_id {name!r} is saved; there are {known}", "reconfigure")
        self._session.unpin(found.number)
        # It, or one that it replaced, may be retained for a while.
        there = set(self._session.all_checkpoints)
        self._former = [(one, replaced) for one, replaced in self._former if replaced in there]
        if found in there or any(one == name for one, _ in self._former):
            self._withdraw([name], [])
        del self._saved[name]

    def _withdraw(self, names: list[str], checkpoints: list[CheckpointId]) -> None:
        """Has checkpoints that are retained yet be saves no longer. Collective."""
        try:
            if self._session.rank == 0:
                self._variables.put_bytes(HEAD, dump_withdrawal(names, checkpoints))
            self._session.checkpoint()
        finally:
            self._variables.drop(HEAD)
