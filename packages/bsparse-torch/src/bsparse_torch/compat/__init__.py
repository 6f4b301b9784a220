"""Old names on top of bsparse: one module for each library whose users bsparse wants to take along."""

__all__ = ["CompatibilityWarning"]


class CompatibilityWarning(UserWarning):
    """An old call was understood, but bsparse does on purpose something else than the old library did."""
