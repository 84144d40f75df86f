# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Plans of asynchronous saves: made anew where something of them changed, and gathered then only."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.checkpoint.metadata import Metadata, StorageMeta
from torch.distributed.checkpoint.planner import SavePlan, SavePlanner

from .._errors import Error, InvalidArgument
from .._session import Session

_T = TypeVar("_T")


class Planning:
    """How the ranks of a writer agree who saves what, over a gloo group of their own."""

    def __init__(self, session: Session, group: Any) -> None:
        self._session = session
        self._group: Any = None
        self._local: SavePlan | None = None
        self._kind: type[SavePlanner] | None = None
        self._final: SavePlan | None = None
        self._metadata: Metadata | None = None
        if session.size == 1:
            return
        size = dist.get_world_size(group) if group is not None else 1
        if size != session.size:
            raise InvalidArgument(
                f"the session is of {session.size} processes, the process group of {size}: initialize "
                "torch.distributed, or give the process_group of the session's processes")
        ranks = dist.get_process_group_ranks(group)
        self._group = dist.new_group(ranks, backend="gloo", use_local_synchronization=True)
        self._first = ranks[0]

    def free(self) -> None:
        """Lets the group go. Collective."""
        group, self._group = self._group, None
        if group is not None and dist.is_initialized():
            dist.destroy_process_group(group)

    def from_first(self, make: Callable[[], _T]) -> _T:
        """What the first rank makes, on all of them; what it raises as well. Collective."""
        made: tuple[Any, Exception | None] = _tried(make) if self._session.rank == 0 else (None, None)
        if self._group is not None:
            sent = [made]
            dist.broadcast_object_list(sent, src=self._first, group=self._group)
            made = sent[0]
        found, error = made
        if error is not None:
            raise error
        value: _T = found
        return value

    def plan(
        self, state_dict: dict[str, Any], given: SavePlanner | None, checkpoint_id: str | None,
    ) -> tuple[SavePlan, SavePlanner, Metadata | None]:
        """This rank's plan, the planner that resolves it, and on the first rank the whole's metadata. Collective."""
        planner = _own(given)
        local, error = _tried(lambda: self._make_local(planner, state_dict, checkpoint_id))
        is_changed = type(planner) is not self._kind or local != self._local
        if self.agree(error, is_changed):
            # Until the new one is agreed on there is none.
            self._local = self._final = None
            self._final = self._make_global(planner, local)
            self._local, self._kind = local, type(planner)
        assert self._final is not None
        return planner.finish_plan(self._final), planner, self._metadata

    def agree(self, error: BaseException | None, flag: bool = False) -> bool:
        """Whether any rank says `flag`; an error of one is raised on all. Collective."""
        any_flag, any_failed = self._vote(flag, error is not None)
        if error is not None:
            raise error
        if any_failed:
            raise InvalidArgument("another process could not capture its part of the save: its own error says why")
        return any_flag

    def _make_local(self, planner: SavePlanner, state_dict: dict[str, Any], checkpoint_id: str | None) -> SavePlan:
        planner.set_up_planner(state_dict, StorageMeta(checkpoint_id=checkpoint_id), self._session.rank == 0)
        return planner.create_local_plan()

    def _vote(self, *flags: bool) -> list[bool]:
        """Whether any rank says so, of each."""
        if self._group is None:
            return list(flags)
        tensor = torch.tensor([int(flag) for flag in flags])
        dist.all_reduce(tensor, op=dist.ReduceOp.MAX, group=self._group)
        return [bool(flag) for flag in tensor.tolist()]

    def _make_global(self, planner: SavePlanner, local: SavePlan) -> SavePlan:
        is_first = self._session.rank == 0
        plans: list[Any] = [local]
        if self._group is not None:
            gathered: list[Any] | None = [None] * self._session.size if is_first else None
            dist.gather_object(local, gathered, dst=self._first, group=self._group)
            plans = gathered or []
        made: list[Any] = [None] * self._session.size
        if is_first:
            found, error = _tried(lambda: planner.create_global_plan(plans))
            made = [(None, error)] * self._session.size if error is not None else [(one, None) for one in found[0]]
            self._metadata = None if error is not None else found[1]
        mine: list[Any] = [made[0]]
        if self._group is not None:
            dist.scatter_object_list(mine, made if is_first else None, src=self._first, group=self._group)
        plan, error = mine[0]
        if error is not None:
            raise error
        assert isinstance(plan, SavePlan)
        return plan


def _own(given: SavePlanner | None) -> SavePlanner:
    """A planner that nobody else uses: DCP hands the program's to the background."""
    if given is None:
        return DefaultSavePlanner()
    planner = copy.copy(given)
    if hasattr(planner, "_enable_plan_caching"):
        # Its cache is of the class, and is the background's.
        planner._enable_plan_caching = False
    return planner


def _tried(make: Callable[[], Any]) -> tuple[Any, Exception | None]:
    """What it makes, or raises, as something that can be sent."""
    try:
        return make(), None
    except Error as error:
        return None, error
    except Exception as error:
        sent = InvalidArgument(f"{type(error).__qualname__}: {error}")
        sent.__cause__ = error
        return None, sent
