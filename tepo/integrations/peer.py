"""Messages of every adapter where its peer is missing or is another version than the one it was tested with."""

from tepo.common.errors import UserError


def missing(package: str, command: str) -> UserError:
    """The error for a peer that cannot be imported; command: what installs it."""
    return UserError(f"{package} is not installed here", where=f"tepo.integrations.{package}", fix=command)


def check_version(package: str, version: str, tested: tuple[str, ...], command: str) -> None:
    """Raise UserError unless `version` begins with a tested one (`1.16` stands for 1.16.*)."""
    if not any(version == known or version.startswith(f"{known}.") for known in tested):
        what = f"{package} {version} is installed; tested with {', '.join(f'{known}.*' for known in tested)}"
        raise UserError(what, where=f"tepo.integrations.{package}", fix=command)
