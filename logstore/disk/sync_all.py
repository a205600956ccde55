"""Whether one syncfs makes a whole data directory durable, and tells when it has not.

The journal rests on syncfs, as does every sync of many files. It takes three things:

- *The kernel tells.* Before Linux 5.8 syncfs returned success although a write-back had failed.
- *The file system tells.* overlayfs syncs the file system below it, but errors of that one are
  kept there, and syncfs on the overlay does not report them (except on a volatile mount, which
  syncs nothing at all). FUSE hands syncfs to hardly any server. So only file systems count of which
  the answer is known: ext4, XFS, Btrfs, F2FS; and tmpfs, which keeps nothing anyway.
- *All files are in it.* A partition's directory may be a mount, or a symlink to another disk.

Where one is missing each file is synced by itself, with fdatasync, which reports errors everywhere.
Source: syncfs(2); Linux's fs/sync.c, fs/overlayfs/super.c, Documentation/filesystems/overlayfs.rst.
"""

from __future__ import annotations

import errno
import os
import re
import sys

from logstore.disk.linux import file_system_type, find_syncfs

#: The first kernel whose syncfs reports write-back errors.
_KERNEL_MIN = (5, 8)
#: By their numbers in linux/magic.h.
_TELLING = frozenset({0xEF53, 0x58465342, 0x9123683E, 0xF2F52010, 0x01021994})
_NAMES = {0x794C7630: "overlayfs", 0x65735546: "FUSE", 0x6969: "NFS", 0x2FC12FC1: "ZFS"}


def obstacle(root: str, descriptor: int) -> str | None:
    """Return why syncfs does not serve the data directory `root`; None: it does. Blocks.

    `descriptor` is that of the directory.
    """
    if not sys.platform.startswith("linux") or find_syncfs() is None:
        return "this system has no syncfs"
    return (
        obstacle_of_kernel(os.uname().release)
        or obstacle_of_file_system(file_system_type(descriptor))
        or obstacle_of_mounts(root)
    )


def obstacle_of_kernel(release: str) -> str | None:
    """Return what keeps the kernel of that `uname -r` from telling of errors."""
    found = re.match(r"([0-9]+)\.([0-9]+)", release)
    if found is not None and (int(found[1]), int(found[2])) >= _KERNEL_MIN:
        return None
    return f"syncfs of Linux {release} does not report write-back errors; 5.8 and later do"


def obstacle_of_file_system(number: int) -> str | None:
    """Return what keeps a file system, by its type, from telling of errors."""
    if number in _TELLING:
        return None
    name = _NAMES.get(number, f"a file system of type {number:#x}")
    return f"the data directory is on {name}, whose syncfs may not report write-back errors"


def obstacle_of_mounts(root: str) -> str | None:
    """Return which directory in `root` lies on another file system."""
    device = os.stat(root).st_dev
    with os.scandir(root) as entries:
        for entry in entries:
            try:
                if entry.is_dir() and os.stat(entry.path).st_dev != device:
                    return f"{entry.path} is on another file system than {root}"
            except FileNotFoundError:
                continue  # Nothing that has just gone is a directory, and no link to nothing.
            except OSError as error:
                if error.errno != errno.ELOOP:  # Nor is a link to itself.
                    raise
    return None
