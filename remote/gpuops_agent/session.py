"""How the agent's long-lived processes are started, so that a logout does not end them.

Where systemd runs, they go into a transient *scope* of their own, outside the login session: ``systemd-run --scope`` puts itself into
the new scope and then executes its command. It is the same process, with the same parent, descriptors and environment, so a
launcher only puts a prefix before its argv. (A transient service would not do: ``systemd-run --pipe`` stays until the unit ends,
and holds the pipes on which the launcher waits for the first word.) A scope lives as long as any process in it.

Elsewhere, in a container without systemd for one, a session of one's own (``setsid``) is all there is, and all that is needed.

Sources: systemd-run(1), systemd.scope(5), logind.conf(5), loginctl(1), and sd_booted(3) for "does systemd run?".
"""

from __future__ import annotations

import os
import pwd
import re
import secrets
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Dict, List, Mapping, Optional, Sequence, Tuple

from .paths import Service

SYSTEM_UNIT, USER_UNIT, PLAIN = "system unit", "user unit", "plain session"

# Setting, value, and the systemd that first takes it for a scope (systemd NEWS): older ones refuse the whole command.
_SETTINGS = (
    # A unit with Delegate= has OOMPolicy=continue where scopes have that setting at all, as late updates of 252 do (systemd#25385).
    ("Delegate", "yes", 218),
    # One rank that the kernel's OOM killer takes is not the end of all: the supervisor notes it, and decides.
    ("OOMPolicy", "continue", 253),
    # systemd-oomd kills whole control groups: ours last.
    ("ManagedOOMPreference", "avoid", 248),
)

OOM_ENDS_SESSION = 252
"""The one systemd that ends a login session's scope when a process in it is OOM-killed (systemd#25376; 253 lets it go on)."""

# Where a drop-in or the main file is looked for; the first folder wins among files of one name (logind.conf(5)).
_CONFIG_FOLDERS = ("etc/systemd", "run/systemd", "usr/local/lib/systemd", "usr/lib/systemd", "lib/systemd")
_LIBRARY_FOLDERS = ("usr/lib", "lib", "usr/lib64", "lib64")
_BOOLEANS = {
    **dict.fromkeys(("1", "yes", "y", "true", "t", "on"), True),
    **dict.fromkeys(("0", "no", "n", "false", "f", "off"), False),
}
# SYS_UID_MAX of login.defs(5) where that file says nothing. RemoveIPC spares system users, and root (logind.conf(5)).
_SYS_UID_MAX = 999


@dataclass(frozen=True)
class Facts:
    """What of a host decides how to start. None means that nobody could tell.

    Args:
        systemd: it is the init that runs, and not only installed.
        user_manager: the user's own systemd runs and can be asked.
        linger: the user's systemd outlives the last session.
        kill_user_processes: logind ends what the user's sessions leave behind, this user's included.
        remove_ipc: logind deletes the user's shared memory after the last logout, this user's included.
        session_scope: the login session that we are part of (``session-3.scope``), or "".
        systemd_run: where the program is, or "".
        version: systemd's, such as 255.
        runtime_dir: the user's ``/run/user/UID``.
        runtime_dir_set: our own environment names it.
    """

    uid: int
    user: str
    systemd: bool
    user_manager: bool
    linger: bool
    kill_user_processes: Optional[bool]
    remove_ipc: Optional[bool]
    session_scope: str
    systemd_run: str
    version: Optional[int]
    runtime_dir: str
    runtime_dir_set: bool = True


@dataclass(frozen=True)
class Choice:
    """How to start, why so, and what can still end it.

    Args:
        how: :data:`SYSTEM_UNIT`, :data:`USER_UNIT` or :data:`PLAIN`.
        killers: what can end the processes or delete their shared memory without anybody meaning to; empty when nothing is known.
        next: what would make it safer, or "".
    """

    how: str
    reason: str
    killers: Tuple[str, ...]
    next: str
    facts: Facts


def choose(facts: Facts) -> Choice:
    """The safest way that this host offers."""
    ipc = ("RemoveIPC=yes: the last logout deletes its shared memory (/dev/shm)",) if _loses_shm(facts) else ()
    if not facts.systemd:
        return Choice(PLAIN, "systemd is not the init of this host; a session of its own survives a logout", (), "", facts)
    if not facts.systemd_run:
        return Choice(PLAIN, "systemd-run is not installed", _session_killers(facts) + ipc, _advice(facts), facts)
    if facts.uid == 0:
        return Choice(SYSTEM_UNIT, "root can start system units: no login session is involved", (), "", facts)
    if facts.linger and facts.user_manager:
        return Choice(USER_UNIT, f"{facts.user} lingers: the user's systemd outlives the sessions", (), "", facts)
    if facts.linger:
        reason = f"{facts.user} lingers, but the user's systemd cannot be reached ({facts.runtime_dir}/systemd/private)"
    else:
        # Without linger the user's systemd ends with the last session, and every unit of it: worse than setsid.
        reason = f"{facts.user} does not linger: the user's systemd would end it with the last session"
    return Choice(PLAIN, reason, _session_killers(facts) + ipc, _advice(facts), facts)


def command(choice: Choice, service: Service, argv: Sequence[str], role: str = "supervisor", token: str = "") -> List[str]:
    """The argv that starts ``argv`` in the chosen way. ``token`` makes the unit's name one that was never used.

    A name that is in use would be refused, and a process that nothing can end may keep the last one in use.
    """
    if choice.how == PLAIN:
        return list(argv)
    unit = "-".join(filter(None, ("gpuops", service.name, role, token)))
    where = ["--system"] if choice.how == SYSTEM_UNIT else ["--user"]
    # sshd without PAM, cron and sudo leave the variable out; systemd-run --user needs it.
    env = (
        []
        if choice.how == SYSTEM_UNIT or choice.facts.runtime_dir_set
        else ["env", f"XDG_RUNTIME_DIR={choice.facts.runtime_dir}"]
    )
    settings = [f"--property={name}={value}" for name, value in _settings(choice.facts.version)]
    about = f"--description=gpuops {role} of {service.name} in {service.root.path}"
    # --collect: a scope that failed is forgotten, not kept for `systemctl reset-failed`.
    head = [choice.facts.systemd_run, *where, "--scope", "--quiet", "--collect", f"--unit={unit}", about]
    return [*env, *head, *settings, "--", *argv]


def prefix(service: Service, role: str = "supervisor") -> List[str]:
    """What to put before the argv of a long-lived process on this host; empty where a session of its own is all there is."""
    return command(choose(facts()), service, (), role, secrets.token_hex(4)) if _booted(Path("/")) else []


def unit_text(choice: Choice, service: Service, argv: Sequence[str], role: str = "supervisor") -> str:
    """The same as a unit file, for an operator who wants ``argv``, a program that detaches itself, started at boot."""
    target = "multi-user.target" if choice.how == SYSTEM_UNIT else "default.target"
    settings = "".join(f"{name}={value}\n" for name, value in _settings(choice.facts.version))
    return (
        f"[Unit]\nDescription=gpuops {role} of {service.name}\n\n"
        # Everything of the run ends with the unit; the supervisor itself decides about restarts.
        f"[Service]\nType=forking\nRestart=no\nKillMode=control-group\n{settings}ExecStart={' '.join(map(_quoted, argv))}\n\n"
        f"[Install]\nWantedBy={target}\n"
    )


def facts(base: Path = Path("/"), environ: Mapping[str, str] = os.environ, uid: Optional[int] = None) -> Facts:
    """The facts of this host, read from a few small files under ``base``; no program is run."""
    uid = os.getuid() if uid is None else uid
    user = _user(uid)
    login = _login_settings(base)
    runtime_dir = environ.get("XDG_RUNTIME_DIR") or f"/run/user/{uid}"
    return Facts(
        uid=uid,
        user=user,
        systemd=_booted(base),
        user_manager=os.path.exists(base / runtime_dir.lstrip("/") / "systemd/private"),
        linger=(base / "var/lib/systemd/linger" / user).exists(),
        kill_user_processes=_kills(login, user),
        remove_ipc=None if "RemoveIPC" not in login else _bool(login["RemoveIPC"]) and not _system_user(base, uid),
        session_scope=_session_scope(_read(base / "proc/self/cgroup")),
        systemd_run=shutil.which("systemd-run", path=environ.get("PATH", os.defpath)) or "",
        version=_version(base),
        runtime_dir=runtime_dir,
        runtime_dir_set=bool(environ.get("XDG_RUNTIME_DIR")),
    )


def _booted(base: Path) -> bool:
    """sd_booted(3); in a container that only sees the host's /run, process 1 is another program. Hidden (hidepid), it has no name."""
    return (base / "run/systemd/system").is_dir() and _read(base / "proc/1/comm").strip() in ("systemd", "")


def _session_killers(facts: Facts) -> Tuple[str, ...]:
    """What can end a process that stays in the login session."""
    if not facts.session_scope:
        return ()
    told = []
    if facts.kill_user_processes:
        told.append(f"KillUserProcesses=yes: the end of {facts.session_scope} ends it")
    elif facts.kill_user_processes is None:
        told.append(f"the end of {facts.session_scope}, if KillUserProcesses=yes (logind.conf cannot be read)")
    if facts.version in (None, OOM_ENDS_SESSION):
        told.append(f"an OOM kill of anything else in {facts.session_scope} can end it with the session")
    return tuple(told)


def _advice(facts: Facts) -> str:
    return "" if facts.linger or facts.uid == 0 else f"loginctl enable-linger {facts.user}, then gpuops restart"


def _loses_shm(facts: Facts) -> bool:
    return facts.systemd and bool(facts.remove_ipc) and not facts.linger


def _settings(version: Optional[int]) -> List[Tuple[str, str]]:
    return [(name, value) for name, value, since in _SETTINGS if version is not None and version >= since]


def _quoted(word: str) -> str:
    """A word of ExecStart= (systemd.service(5), "Command lines"; systemd.unit(5), "Specifiers")."""
    return '"' + word.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%").replace("$", "$$") + '"'


def _login_settings(base: Path) -> Dict[str, str]:
    """``[Login]`` of logind.conf with its drop-ins, as ``systemd-analyze cat-config`` would merge them.

    A setting that only stands there commented out has its built-in default: distributions ship the file with those.
    """
    main = next((text for folder in _CONFIG_FOLDERS if (text := _read(base / folder / "logind.conf"))), "")
    dropins: Dict[str, Path] = {}
    for folder in _CONFIG_FOLDERS:
        for path in (base / folder / "logind.conf.d").glob("*.conf"):
            dropins.setdefault(path.name, path)
    shipped = [_read(base / folder / "logind.conf") for folder in reversed(_CONFIG_FOLDERS)]
    settings = {name: value for text in shipped for name, value in re.findall(r"^#(\w+)=(.*)$", text, re.MULTILINE)}
    for text in (main, *(_read(dropins[name]) for name in sorted(dropins))):
        section = ""
        for row in map(str.strip, text.splitlines()):
            if row.startswith("["):
                section = row
            elif section == "[Login]" and "=" in row and row[0] not in "#;":
                name, _, value = row.partition("=")
                settings[name.strip()] = value.strip()
    return settings


def _kills(login: Mapping[str, str], user: str) -> Optional[bool]:
    """Whether logind ends this user's left-over processes; KillExcludeUsers= comes before KillOnlyUsers= (logind.conf(5))."""
    kills = _bool(login.get("KillUserProcesses", ""))
    if not kills:
        return kills
    only = login.get("KillOnlyUsers", "").split()
    return user not in login.get("KillExcludeUsers", "root").split() and (not only or user in only)


def _bool(text: str) -> Optional[bool]:
    return _BOOLEANS.get(text.lower())


def _system_user(base: Path, uid: int) -> bool:
    said = re.search(r"^\s*SYS_UID_MAX\s+(\d+)", _read(base / "etc/login.defs"), re.MULTILINE)
    return uid <= (int(said.group(1)) if said else _SYS_UID_MAX)


def _session_scope(cgroup: str) -> str:
    found = re.search(r"/(session-[^/\n]+\.scope)", cgroup)
    return found.group(1) if found else ""


def _version(base: Path) -> Optional[int]:
    """From the name of systemd's private library (libsystemd-shared-255.4-1ubuntu8.so): asking the program would cost a process."""
    for folder in _LIBRARY_FOLDERS:
        for pattern in ("systemd", "*-linux-gnu*/systemd"):
            for path in (base / folder).glob(f"{pattern}/libsystemd-shared-*.so"):
                found = re.match(r"libsystemd-shared-(\d+)", path.name)
                if found:
                    return int(found.group(1))
    return None


def _user(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
