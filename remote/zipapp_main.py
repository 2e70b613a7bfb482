"""The first thing that runs of the agent's zipapp: as ``__main__`` of the archive, before anything of the agent is imported.

Python keeps no byte-code for modules in an archive, so every call would compile the agent again (0.1 s, more than all it does for a
status). The archive therefore unpacks itself once, beside itself, into a folder of its own name, and imports from there. The folder is
only a cache: without it, or without the room for it, the archive serves.
"""

import gc
import os
import sys


def unpacked(archive: str) -> str:
    """The folder to import from: the unpacked copy, made when it is missing; the archive itself when that fails."""
    folder = os.path.splitext(archive)[0]
    if os.path.isdir(folder):
        return folder
    # Imported here: only the first call needs it.
    import zipfile

    scratch = f"{folder}.{os.getpid()}.tmp"
    try:
        with zipfile.ZipFile(archive) as file:
            file.extractall(scratch)
        os.rename(scratch, folder)
    except OSError:
        # Somebody else was quicker, or the disk is full; a half copy must not stay.
        import shutil

        shutil.rmtree(scratch, ignore_errors=True)
    return folder if os.path.isdir(folder) else archive


if __name__ == "__main__":
    os.umask(0o077)
    # Importing makes no garbage, but enough objects to set the collector off again and again; it is on again before a verb does its work.
    gc.disable()
    sys.path.insert(0, unpacked(os.path.realpath(sys.argv[0])))
    from gpuops_agent.__main__ import main

    sys.exit(main())
