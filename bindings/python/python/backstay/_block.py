# SPDX-License-Identifier: Apache-2.0 OR MIT
"""What a `with` block ends: one rule for sessions and all that is built on them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from types import TracebackType
from typing import Self


class Block(ABC):
    """Closed at the end of a block, abandoned where an exception leaves it."""

    @abstractmethod
    def close(self) -> None:
        """Ends it as planned."""

    def abandon(self) -> None:
        """Ends it where the program failed; what has nothing that could be left half done is closed."""
        self.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if kind is None:
            self.close()
        else:
            self.abandon()
