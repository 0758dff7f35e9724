"""Exceptions, one for each kind of error of the engines."""


class Error(Exception):
    """Base of all errors of a store. ``kind`` is the same word as in the reports of the command line."""

    kind = "io"


class InvalidInputError(Error, ValueError):
    """The request makes no sense."""

    kind = "bad_input"


class NotFoundError(Error, LookupError):
    """There is no such store, table, snapshot, version or root."""

    kind = "not_found"


class AlreadyExistsError(Error):
    """The name is taken."""

    kind = "already_exists"


class CorruptError(Error):
    """Stored bytes are not as they were written, or are gone."""

    kind = "corrupt"


class LockedError(Error):
    """Another process, or another handle of this one, holds the store."""

    kind = "locked"


class ConflictError(Error):
    """Another change came first: try the transaction again."""

    kind = "conflict"


class NoSpaceError(Error, OSError):
    """The disk, the quota or the reserve is used up."""

    kind = "no_space"


class PermissionDeniedError(Error, PermissionError):
    """The system does not allow it to this user."""

    kind = "permission"


class ReadOnlyError(Error):
    """The store was opened, or can only be opened, for reading."""

    kind = "read_only"


class UnsupportedError(Error):
    """A format or a feature that this build or this system does not have."""

    kind = "unsupported"


class ClosedError(Error):
    """The store was closed."""

    kind = "closed"


class PoisonedError(Error):
    """An earlier fsync failed: close the store and open it anew."""

    kind = "poisoned"


class InterruptedByCallerError(Error):
    """The caller stopped the work."""

    kind = "interrupted"


class InvalidProofError(Error, ValueError):
    """A proof proves something else, or nothing."""

    kind = "invalid_proof"


_CLASSES = {cls.kind: cls for cls in [Error, *Error.__subclasses__()]}


def error_of(kind: str, message: str) -> Error:
    """Returns the exception of a kind. The native half calls it."""
    return _CLASSES.get(kind, Error)(message)
