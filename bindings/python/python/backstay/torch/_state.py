# SPDX-License-Identifier: Apache-2.0 OR MIT
"""What a training program has: its tensors by name, and everything else as a tree.

Names are the module's and the parameter's: ``model/layer1.weight``, ``optimizer/layer1.weight/exp_avg``. Single values
(the steps of an optimizer) are in the tree, as a variable each would cost more than it holds.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from .._errors import InvalidArgument, VariableMismatch
from ._trees import Words, dtype_words

Get = Callable[[], Tensor]


@dataclass(frozen=True)
class Found:
    """A tensor of the program."""

    name: str
    get: Get
    kind: Literal["parameter", "buffer", "state"]


def named(what: str, given: Any, kinds: tuple[type, ...] | None = None) -> dict[str, Any]:
    """One object, a list or a mapping of some, by name: ``model``, or ``model.generator``."""
    if given is None:
        return {}
    if isinstance(given, Mapping) and not isinstance(given, nn.Module):
        found = {f"{what}.{key}": one for key, one in given.items()}
    elif isinstance(given, (list, tuple)):
        found = {f"{what}.{at}": one for at, one in enumerate(given)}
    else:
        found = {what: given}
    for name, one in found.items():
        if kinds is not None and not isinstance(one, kinds):
            raise InvalidArgument(f"{name} is {type(one).__qualname__}, not {' or '.join(k.__name__ for k in kinds)}")
    return found


def bare(module: nn.Module) -> nn.Module:
    """The module that wrappers (DistributedDataParallel, torch.compile) run."""
    while True:
        if isinstance(module, (nn.parallel.DistributedDataParallel, nn.DataParallel)):
            module = module.module
        elif isinstance(inner := getattr(module, "_orig_mod", None), nn.Module):
            module = inner
        else:
            return module


def module_tensors(key: str, module: nn.Module) -> Iterator[Found]:
    """Parameters and buffers of a module, each once whatever names it has."""
    seen: set[int] = set()
    for prefix, owner in bare(module).named_modules():
        tables: list[tuple[Literal["parameter", "buffer"], dict[str, Any]]] = [
            ("parameter", owner._parameters), ("buffer", owner._buffers)]
        for kind, table in tables:
            for name, tensor in table.items():
                is_kept = kind == "parameter" or name not in owner._non_persistent_buffers_set
                if tensor is None or not is_kept or id(tensor) in seen:
                    continue
                seen.add(id(tensor))
                full = f"{key}/{prefix}.{name}" if prefix else f"{key}/{name}"
                yield Found(full, _entry(table, name, full), kind)


def _entry(table: dict[str, Any], name: Any, full: str) -> Get:
    def get() -> Tensor:
        tensor = table.get(name)
        if tensor is None:
            raise InvalidArgument(f"tensor {full!r} is gone: it was taken out of its module or optimizer")
        found: Tensor = tensor
        return found

    return get


def extra_states(modules: Mapping[str, nn.Module]) -> dict[str, Any]:
    """What modules keep beside tensors (`get_extra_state`), by name."""
    found = {}
    for key, module in modules.items():
        for prefix, owner in bare(module).named_modules():
            if type(owner).get_extra_state is not nn.Module.get_extra_state:
                found[f"{key}/{prefix}"] = owner.get_extra_state()
    return found


def set_extra_states(modules: Mapping[str, nn.Module], stored: Mapping[str, Any]) -> None:
    """Gives modules back what `extra_states` found."""
    for key, module in modules.items():
        for prefix, owner in bare(module).named_modules():
            if f"{key}/{prefix}" in stored:
                owner.set_extra_state(stored[f"{key}/{prefix}"])


class OptimizerState:
    """An optimizer's state: tensors of the size of its parameters as variables, the rest as a tree."""

    def __init__(self, key: str, optimizer: Optimizer, modules: Mapping[str, nn.Module]) -> None:
        self.key, self.optimizer = key, optimizer
        self._former: list[tuple[Tensor, dict[str, Any]]] | None = None
        self._module_names = {
            id(parameter): name if len(modules) == 1 else f"{module_key}/{name}"
            for module_key, module in modules.items()
            for name, parameter in bare(module).named_parameters()
        }

    def _parameters(self) -> Iterator[tuple[str, Tensor]]:
        names = self._module_names
        for number, group in enumerate(self.optimizer.param_groups):
            for at, parameter in enumerate(group["params"]):
                yield names.get(id(parameter), f"group{number}.{at}"), parameter

    @staticmethod
    def _is_variable(value: Any) -> bool:
        return isinstance(value, Tensor) and (value.numel() > 1 or hasattr(value, "to_local"))

    def tensors(self) -> Iterator[Found]:
        """Its tensors, which are there once it made a step."""
        for name, parameter in self._parameters():
            state = self.optimizer.state.get(parameter, {})
            for key, value in state.items():
                if self._is_variable(value):
                    full = f"{self.key}/{name}/{key}"
                    yield Found(full, _entry(state, key, full), "state")

    def tensors_of(self, parameter: Tensor) -> Iterator[str]:
        """Names of its tensors for one parameter."""
        state = self.optimizer.state.get(parameter)
        if state:
            name = next(name for name, one in self._parameters() if one is parameter)
            yield from (f"{self.key}/{name}/{key}" for key, value in state.items() if self._is_variable(value))

    def singles(self) -> Iterator[Tensor]:
        """Its single values that are tensors."""
        for _, parameter in self._parameters():
            for value in self.optimizer.state.get(parameter, {}).values():
                if isinstance(value, Tensor) and value.numel() == 1 and not self._is_variable(value):
                    yield value

    def tree(self, fetched: Mapping[int, Tensor]) -> dict[str, Any]:
        """Settings of its groups, single values, as far as they were `fetched`, and what tensors there are."""
        groups = []
        for group in self.optimizer.param_groups:
            groups.append({key: value for key, value in group.items() if key != "params"})
        state: dict[str, dict[str, Any]] = {}
        for name, parameter in self._parameters():
            for key, value in self.optimizer.state.get(parameter, {}).items():
                told = _described(value, parameter, self._is_variable(value))
                here = fetched.get(id(value))
                state.setdefault(name, {})[key] = told if here is None else {**told, "value": here}
        names = [name for name, _ in self._parameters()]
        return {"groups": groups, "state": state, "parameters": names}

    def make(self, tree: Mapping[str, Any]) -> None:
        """Makes the state that `tree` tells of, for a restore to fill; `undo` takes that back."""
        self._check(tree)
        if self._former is None:
            self._former = [(parameter, dict(self.optimizer.state.get(parameter, {}))) for _, parameter in
                            self._parameters()]
        for name, parameter in self._parameters():
            kept = self.optimizer.state[parameter]
            made = {key: _made(kept.get(key), told, parameter) for key, told in tree["state"].get(name, {}).items()}
            kept.clear()
            kept.update(made)

    def undo(self) -> None:
        """The state is as before `make`: nothing was restored."""
        for parameter, state in self._former or []:
            kept = self.optimizer.state[parameter]
            kept.clear()
            kept.update(state)
        self._forget_empty()

    def fill(self, tree: Mapping[str, Any]) -> None:
        """Gives it single values and settings back, when its tensors are."""
        for name, parameter in self._parameters():
            for key, told in tree["state"].get(name, {}).items():
                if not told["is_variable"]:
                    self.optimizer.state[parameter][key] = _made(None, told, parameter)
        for group, stored in zip(self.optimizer.param_groups, tree["groups"]):
            for key, value in stored.items():
                now = group.get(key)
                if isinstance(now, Tensor) and isinstance(value, Tensor):
                    now.copy_(value)
                else:
                    group[key] = value
        self._forget_empty()

    def _forget_empty(self) -> None:
        """A parameter without state has no entry, as before the first step."""
        self._former = None
        for _, parameter in self._parameters():
            if not self.optimizer.state[parameter]:
                del self.optimizer.state[parameter]

    def _check(self, tree: Mapping[str, Any]) -> None:
        names = [name for name, _ in self._parameters()]
        if names == tree["parameters"]:
            return
        stored, now = set(tree["parameters"]), set(names)
        raise VariableMismatch(
            f"{self.key} has other parameters than in the checkpoint: not stored {sorted(now - stored)[:8]}, stored only "
            f"{sorted(stored - now)[:8]}" + ("" if stored != now else ", or in another order"), "reconfigure")


def _described(value: Any, parameter: Tensor, is_variable: bool) -> dict[str, Any]:
    """A piece of an optimizer's state: how to make it, or what it is."""
    if not isinstance(value, Tensor):
        return {"is_variable": False, "value": value, "on_cpu": True}
    on_cpu = value.device.type == "cpu" and parameter.device.type != "cpu"
    if not is_variable:
        return {"is_variable": False, "value": value, "on_cpu": on_cpu}
    like = value.shape == parameter.shape and hasattr(value, "to_local") == hasattr(parameter, "to_local")
    return _variable(value.dtype, like, value.shape, on_cpu)


@functools.lru_cache(maxsize=4096)
def _variable(dtype: torch.dtype, like: bool, shape: torch.Size, on_cpu: bool) -> Words:
    """How to make a tensor of an optimizer: of many the same."""
    words = dtype_words(dtype)
    return Words(is_variable=True, dtype=words, like=like, shape=list(shape), on_cpu=on_cpu)


def _made(former: Any, told: Mapping[str, Any], parameter: Tensor) -> Any:
    """What `_described` tells of; a tensor that is there already is used again."""
    device = torch.device("cpu") if told["on_cpu"] else parameter.device
    if not told["is_variable"]:
        value = told["value"]
        return value.to(device) if isinstance(value, Tensor) else value
    shape = parameter.shape if told["like"] else torch.Size(told["shape"])
    is_sharded = told["like"] and hasattr(parameter, "to_local")
    if isinstance(former, Tensor) and hasattr(former, "to_local") == is_sharded and (
            former.shape, former.dtype, former.device) == (shape, told["dtype"], device):
        return former
    if told["like"]:
        return torch.empty_like(parameter, dtype=told["dtype"], device=device, requires_grad=False)
    return torch.empty(shape, dtype=told["dtype"], device=device)


def random_states() -> dict[str, Any]:
    """The generators of this process: torch's, its devices', Python's and, where it is loaded, numpy's."""
    import random
    import sys

    states: dict[str, Any] = {"torch": torch.get_rng_state(), "python": random.getstate()}
    if torch.cuda.is_available() and torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        states["cuda"] = torch.cuda.get_rng_state_all()
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        states["numpy"] = numpy.random.get_state(legacy=True)
    return states


def set_random_states(states: Mapping[str, Any]) -> None:
    """Has the generators go on as they were."""
    import random

    torch.set_rng_state(states["torch"])
    random.setstate(states["python"])
    if "cuda" in states and torch.cuda.is_available():
        count = min(len(states["cuda"]), torch.cuda.device_count())
        torch.cuda.set_rng_state_all(states["cuda"][:count])
    if "numpy" in states:
        import numpy

        numpy.random.set_state(states["numpy"])
