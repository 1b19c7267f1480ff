"""What outlives the machine, and files that are none."""

import errno
import os
import stat
from pathlib import Path
from typing import BinaryIO


def to_disk(descriptor: int) -> None:
    """Puts what a file holds on the disk itself, and closes this descriptor: give a duplicate, for a thread. Raises
    OSError.
    """
    try:
        getattr(os, "fdatasync", os.fsync)(descriptor)
    finally:
        os.close(descriptor)


def folder_to_disk(folder: Path) -> None:
    """The same for the names in it. Raises OSError."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def expect_name(descriptor: int, path: Path) -> None:
    """Raises FileNotFoundError where the file has no name any more: all that goes into it is lost."""
    if not os.fstat(descriptor).st_nlink:
        raise FileNotFoundError(errno.ENOENT, f"{path.name} was removed meanwhile")


def open_regular(path: Path) -> BinaryIO:
    """To read. Raises OSError, also for a pipe or a device, which could make us wait for ever."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "it is no regular file")
    return os.fdopen(descriptor, "rb")
