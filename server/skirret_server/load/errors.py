"""Why a model can't be served. `reason` is a CamelCase word that ends up on the custom resource.

LoadError
├── SourceNotFound     no such folder, bucket, repository, revision or file
├── SourceDenied       the source wants credentials, or other ones
├── SourceUnavailable  the source fails again and again; trying later may help
├── SourceStalled      the source answers, but no byte has moved for too long
├── UnsupportedModel   an architecture, quantisation or setting that this server does not know
├── BrokenCheckpoint   files that contradict each other, or end too early
└── DoesNotFit         weights and cache need more memory than there is
"""

from __future__ import annotations


class LoadError(Exception):
    """The message says what is wrong, with what, and what to do."""

    @property
    def reason(self) -> str:
        return type(self).__name__


class SourceNotFound(LoadError):
    pass


class SourceDenied(LoadError):
    pass


class SourceUnavailable(LoadError):
    pass


class SourceStalled(LoadError):
    pass


class UnsupportedModel(LoadError):
    pass


class BrokenCheckpoint(LoadError):
    pass


class DoesNotFit(LoadError):
    pass
