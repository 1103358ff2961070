//! The cage: the arguments of bubblewrap.
//!
//! The cage has its own namespace for everything: processes (the first process of the cage dies with this process, and
//! all others die with it), users (no capabilities, and no further namespaces), mounts, IPC, host name and, unless it
//! is allowed, the network. The root is an empty folder in memory, which becomes read-only after the system's programs
//! and the project were mounted in it. `/proc` shows the cage's own processes and cannot be written: if this process is
//! root, the switches in it would be those of the whole machine. A filter refuses the system calls that would leave
//! privileges behind ([`filter`](super::filter)), and bubblewrap mounts everything `nosuid`.

use std::collections::HashSet;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use cantrip_circle::ward::ShellBounds;
use cantrip_reply::{Refusal, codes};

use super::filter;
use super::masks::{Mask, SocketAccess, TooMany, masks};
use super::open_cages;
use super::{SHELL, Shell};
use crate::limits::{SHELL_ETC_BYTES, SHELL_FILES_OPEN, SHELL_TMP_BYTES};

const PRELUDE: &str = include_str!("prelude.sh");

/// The folders of the system's programs.
const SYSTEM: [&str; 9] = ["/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/opt", "/nix/store"];

/// The system configuration that programs need; none of it is secret.
const ETC: [&str; 12] = [
    "/etc/alternatives",
    "/etc/ld.so.cache",
    "/etc/ld.so.conf",
    "/etc/ld.so.conf.d",
    "/etc/localtime",
    "/etc/mime.types",
    "/etc/ssl/certs",
    "/etc/ssl/openssl.cnf",
    "/etc/ca-certificates",
    "/etc/pki/tls/certs",
    "/etc/java",
    "/etc/protocols",
];

/// The system configuration that only network programs need.
const ETC_NETWORK: [&str; 5] =
    ["/etc/resolv.conf", "/etc/hosts", "/etc/nsswitch.conf", "/etc/host.conf", "/etc/services"];

const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// The command that starts a cage with a bash in it.
#[derive(Debug)]
pub(super) struct CageCommand {
    pub(super) command: Command,
    /// The seccomp filter. The command refers to this file by its descriptor number and must inherit it.
    pub(super) filter: OwnedFd,
    /// The paths of the project that are covered in the cage, relative to the root of the project.
    pub(super) covered: HashSet<String>,
    /// True if the project can be changed in the cage.
    pub(super) writes: bool,
}

impl Shell {
    /// Builds the command that starts a cage with a bash in it.
    pub(super) fn cage_command(&self, bubblewrap: &Path, bounds: &ShellBounds) -> Result<CageCommand, Refusal> {
        let root = self.root()?;
        let filter = filter::sealed_file().map_err(|error| {
            let cause = format!("the filter of its system calls cannot be written: {}", error.kind());
            Refusal::from(codes::sandbox_unavailable(SHELL, cause))
        })?;
        let sockets = if self.network { SocketAccess::Reachable } else { SocketAccess::Covered };
        let mut covered = masks(&root, &self.existing_spells(), sockets).map_err(|TooMany| {
            let rule = "it holds more files, or more of them to be hidden, than a cage takes; name a smaller root";
            Refusal::from(codes::sandbox_unavailable(SHELL, rule))
        })?;
        covered.extend(open_cages::folder_within(&root).map(Mask::Folder));
        let mut args = Arguments::default();
        args.flags(&["--unshare-all", "--unshare-user", "--disable-userns", "--die-with-parent", "--new-session"]);
        args.flags(&["--seccomp", &filter.as_raw_fd().to_string()]);
        if self.network {
            args.flags(&["--share-net"]);
        }
        args.flags(&["--uid", "1000", "--gid", "1000", "--cap-drop", "ALL", "--hostname", "cage", "--clearenv"]);
        for (name, value) in self.variables() {
            args.flags(&["--setenv", &name, &value]);
        }
        for path in SYSTEM {
            args.flags(&["--ro-bind-try", path, path]);
        }
        args.flags(&["--proc", "/proc", "--remount-ro", "/proc", "--dev", "/dev"]);
        let (etc, tmp) = (SHELL_ETC_BYTES.to_string(), SHELL_TMP_BYTES.to_string());
        args.flags(&["--size", &tmp, "--perms", "1777", "--tmpfs", "/dev/shm", "--remount-ro", "/dev"]);
        args.flags(&["--size", &etc, "--perms", "0755", "--tmpfs", "/etc"]);
        args.flags(&["--size", &tmp, "--perms", "1777", "--tmpfs", "/tmp"]);
        let network: &[&str] = if self.network { &ETC_NETWORK } else { &[] };
        for path in ETC.iter().chain(network) {
            args.flags(&["--ro-bind-try", path, path]);
        }
        for path in &self.readable {
            args.bind("--ro-bind", path);
        }
        args.bind(if self.read_only { "--ro-bind" } else { "--bind" }, &root);
        for mask in &covered {
            match mask {
                Mask::ReadOnly(path) => args.bind("--ro-bind", path),
                Mask::File(path) => args.paths(&["--ro-bind".as_ref(), "/dev/null".as_ref(), path]),
                Mask::Folder(path) => {
                    args.flags(&["--size", "4096", "--perms", "0555", "--tmpfs"]);
                    args.paths(&[path, "--remount-ro".as_ref(), path]);
                }
            }
        }
        args.flags(&["--remount-ro", "/", "--chdir"]);
        args.paths(&[&root]);
        let prelude = PRELUDE
            .replace("@FILE_KIB@", &(bounds.file_bytes / 1024).max(1).to_string())
            .replace("@FILES_OPEN@", &SHELL_FILES_OPEN.to_string())
            .replace("@PROCESSES@", &bounds.processes.to_string());
        args.flags(&["bash", "--noprofile", "--norc", "-c", &prelude, "shell"]);
        let mut command = Command::new(bubblewrap);
        // The environment of bubblewrap is visible in the cage too, as that of its first process, so it holds only
        // `PATH`.
        command.args(args.0).env_clear().env("PATH", PATH).current_dir("/");
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let below = |mask: &Mask| mask.path().strip_prefix(&root).ok().map(|path| path.to_string_lossy().into_owned());
        let covered = covered.iter().filter_map(below).collect();
        Ok(CageCommand { command, filter, covered, writes: !self.read_only })
    }

    /// Returns the canonical path of the project.
    pub(super) fn root(&self) -> Result<PathBuf, Refusal> {
        let unusable = |rule: &str| Refusal::from(codes::sandbox_unavailable(SHELL, format!("its root {rule}")));
        let root = self.root.canonicalize().map_err(|_| unusable("is not there"))?;
        if root.parent().is_none() || SYSTEM.iter().any(|system| root.starts_with(system)) {
            return Err(unusable("is part of the system; name the folder of a project"));
        }
        Ok(root)
    }

    /// Returns the canonical paths of the files that make up spells. A file that does not exist cannot be covered.
    pub(super) fn existing_spells(&self) -> Vec<PathBuf> {
        self.spells.iter().filter_map(|path| path.canonicalize().ok()).collect()
    }

    fn variables(&self) -> Vec<(String, String)> {
        let own = [
            ("PATH", PATH.to_owned()),
            ("HOME", "/tmp".to_owned()),
            ("TMPDIR", "/tmp".to_owned()),
            ("USER", "entity".to_owned()),
            ("LOGNAME", "entity".to_owned()),
            ("SHELL", "/bin/bash".to_owned()),
            ("LANG", "C.UTF-8".to_owned()),
            ("TERM", "dumb".to_owned()),
            ("PAGER", "cat".to_owned()),
            ("GIT_PAGER", "cat".to_owned()),
        ];
        let own = own.into_iter().map(|(name, value)| (name.to_owned(), value));
        own.chain(self.environment.iter().cloned()).collect()
    }
}

#[derive(Default)]
struct Arguments(Vec<std::ffi::OsString>);

impl Arguments {
    fn flags(&mut self, flags: &[&str]) {
        self.0.extend(flags.iter().map(Into::into));
    }

    fn paths(&mut self, paths: &[&Path]) {
        self.0.extend(paths.iter().map(Into::into));
    }

    /// Mounts a path at its own location.
    fn bind(&mut self, how: &str, path: &Path) {
        self.paths(&[how.as_ref(), path, path]);
    }
}
