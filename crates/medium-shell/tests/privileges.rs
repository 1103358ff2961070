//! Privileges: no file that is made in a cage has one when the host looks at it.

use std::fs::{self, Permissions};
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::path::Path;

use serde_json::json;
use tempfile::TempDir;

use crate::shell::Entity;

/// Returns every file below this folder that has a privilege, as the host sees it.
fn privileged(folder: &Path) -> Vec<String> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).expect("a folder").flatten() {
        let path = entry.path();
        let metadata = path.symlink_metadata().expect("it is there");
        let (kind, mode) = (metadata.file_type(), metadata.permissions().mode());
        let mut nothing: [u8; 0] = [];
        let capable = kind.is_file() && rustix::fs::getxattr(&path, "security.capability", &mut nothing).is_ok();
        if !kind.is_symlink() && (mode & 0o7000 != 0 || kind.is_char_device() || kind.is_block_device() || capable) {
            found.push(format!("{} {mode:o}", path.display()));
        }
        if kind.is_dir() {
            found.extend(privileged(&path));
        }
    }
    found
}

/// Runs an attack that has to fail, and checks what it left on the host.
async fn attack(entity: &Entity, command: &str) {
    let ran = entity.run(command).await;
    assert_ne!(ran["exit_status"], json!(0), "{command}: {ran}");
    assert_eq!(privileged(entity.folder.path()), Vec::<String>::new(), "{command}: {ran}");
    // The filter refused the call: the search behind it found nothing to remove.
    assert_eq!(ran.get("privileges_removed"), None, "{command}: {ran}");
}

#[tokio::test]
async fn attack_setuid_setgid_and_sticky_by_every_ordinary_program() {
    let outside = TempDir::new().expect("a temporary folder");
    let setuid = outside.path().join("setuid");
    fs::copy("/bin/true", &setuid).expect("a copy");
    fs::set_permissions(&setuid, Permissions::from_mode(0o6755)).expect("permissions");
    let archive = outside.path().join("archive.tar");
    let packed = std::process::Command::new("tar")
        .args(["--mode=4755", "-cf"])
        .args([archive.as_path(), Path::new("-C"), outside.path(), Path::new("setuid")])
        .status();
    assert!(packed.expect("tar runs").success());
    let entity = Entity::with(|shell| shell.readable([outside.path()]));
    entity.run("cp /bin/bash b && mkdir d").await;
    let (setuid, archive) = (setuid.display(), archive.display());
    for command in [
        "chmod 4777 b",
        "chmod u+s b",
        "chmod g+s b",
        "chmod g+s d",
        "chmod +t d",
        "chmod 1777 d",
        "install -m 4755 /bin/bash installed",
        "install -d -m 2777 folder",
        "mkdir -m 2777 folder-2",
        "mkdir -m 1777 folder-3",
        &format!("cp -p {setuid} copy"),
        &format!("cp -a {setuid} copy-2"),
        &format!("tar -xpf {archive}"),
        "perl -e 'chmod(04755, \"b\") or exit 1'",
        "perl -e 'use Fcntl; sysopen(F, \"made\", O_CREAT|O_WRONLY, 04755) or exit 1'",
        "perl -e 'mkdir(\"folder-4\", 01777) or exit 1'",
        "mknod disk b 8 0",
        "mknod memory c 1 1",
        "mknod whiteout c 0 0",
        "mknod /tmp/disk b 8 0",
        "cat /dev/sda /dev/vda",
    ] {
        attack(&entity, command).await;
    }
    // The same holds for a background job.
    entity.run("(setsid chmod 4777 b; echo tried > tried) >/dev/null 2>&1 & wait").await;
    assert!(entity.path("tried").exists());
    assert_eq!(privileged(entity.folder.path()), Vec::<String>::new());
    // A started program does not change its user, and all mounts have `nosuid`, so that none could.
    let said = entity.output("id -u; ./b -p -c 'id -u'; su -c id 2>&1").await;
    assert!(said.starts_with("1000\n1000\n") && !said.contains("uid=0"), "{said}");
    let mounts = entity.output("grep -v -e nosuid /proc/self/mountinfo | cut -d' ' -f5").await;
    assert_eq!(mounts, "", "these are mounted without nosuid");
}

/// Tests every system call that can give a file a privilege by its number, because a program need not use the system
/// library.
#[cfg(target_arch = "x86_64")]
#[tokio::test]
async fn attack_privileges_by_bare_system_calls() {
    let entity = Entity::new();
    entity.run("cp /bin/bash b && mkdir d").await;
    // Perl passes numbers as numbers and texts as pointers. A version 2 capability: effective, all bits.
    let perl = |call: &str| {
        let capability = "pack(\"V5\", 0x02000001, 0xffffffff, 0, 0, 0)";
        format!(
            "perl -e 'my $b = \"b\"; my $cap = {capability}; my $name = \"security.capability\"; \
             my $how = pack(\"Q3\", 0101, 04755, 0); my $f = \"new\"; open(my $h, \"<\", \"b\"); my $fd = fileno($h); \
             my $r = syscall({call}); print \"$r $!{{EPERM}} $!\"; exit($r == -1 ? 1 : 0)'"
        )
    };
    for call in [
        "90, $b, 04777",                                 // chmod
        "91, $fd, 04777",                                // fchmod
        "268, -100, $b, 04777",                          // fchmodat
        "452, -100, $b, 04777, 0",                       // fchmodat2
        "90, $b, 0x7fff0000 | 04777",                    // the kernel looks at the lower half only
        "2, $f, 0101, 04755",                            // open
        "257, -100, $f, 0101, 04755",                    // openat
        "257, -100, my $here = \".\", 020200002, 04755", // openat of an unnamed file
        "85, $f, 02755",                                 // creat
        "437, -100, $f, $how, 24",                       // openat2
        "425, 4, my $p = \"\\0\" x 120",                 // io_uring_setup
        "83, $f, 01777",                                 // mkdir
        "258, -100, $f, 01777",                          // mkdirat
        "133, $f, 0104755, 0",                           // mknod of a file
        "133, $f, 020644, 0",                            // mknod of a whiteout
        "259, -100, $f, 0104755, 0",                     // mknodat
        "259, -100, $f, 020644, 0",
        "188, $b, $name, $cap, 20, 0",  // setxattr
        "189, $b, $name, $cap, 20, 0",  // lsetxattr
        "190, $fd, $name, $cap, 20, 0", // fsetxattr
        "0x40000000 | 90, $b, 04777",   // the same calls as x32 has them
        "0x40000000 | 268, -100, $b, 04777",
        "0x4000010c, -100, $b, 04777",
        "463, -100, $b, 0, $name, $cap, 20", // setxattrat
        "600, 0",                            // a call of the future
    ] {
        attack(&entity, &perl(call)).await;
        assert!(!entity.path("new").exists(), "{call}");
    }
    // The calls of 32-bit programs: chmod("b", 04777), and then exit(0), in a program of a hundred bytes.
    fs::write(entity.path("old"), interrupt_program()).expect("a program");
    attack(&entity, "chmod 755 old && ./old").await;
}

/// Builds a program that calls `chmod("b", 04777)` and `exit(0)` through the interrupt of 32-bit programs.
#[cfg(target_arch = "x86_64")]
fn interrupt_program() -> Vec<u8> {
    const AT: u32 = 0x40_0000;
    let code = |path: u32| {
        let mut code = vec![0xb8, 15, 0, 0, 0, 0xbb];
        code.extend(path.to_le_bytes());
        code.extend([0xb9, 0xff, 0x09, 0, 0, 0xcd, 0x80, 0xb8, 1, 0, 0, 0, 0x31, 0xdb, 0xcd, 0x80]);
        code
    };
    let (head, length) = (120, code(0).len() as u32);
    let size = u64::from(head + length + 2);
    let mut program = vec![0x7f, b'E', b'L', b'F', 2, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2, 0, 62, 0, 1, 0, 0, 0];
    program.extend(u64::from(AT + head).to_le_bytes());
    program.extend(64u64.to_le_bytes());
    program.extend([0; 12]);
    program.extend([64, 0, 56, 0, 1, 0, 0, 0, 0, 0, 0, 0]);
    program.extend([1, 0, 0, 0, 5, 0, 0, 0]);
    for field in [0, u64::from(AT), u64::from(AT), size, size, 0x1000] {
        program.extend(field.to_le_bytes());
    }
    program.extend(code(AT + head + length));
    program.extend(b"b\0");
    program
}

#[tokio::test]
async fn ordinary_work_goes_on() {
    let entity = Entity::new();
    for command in [
        "echo 'echo hello' > run.sh && chmod +x run.sh && ./run.sh",
        "chmod 600 run.sh && chmod 0755 run.sh && chmod -R u+rwX,go-w .",
        "mkdir -p a/b/c && mkdir -m 700 private && umask 077 && touch secret && umask 022",
        "install -m 755 run.sh installed && cp -a run.sh copy && cp -rp a a2 && mv a2 a3",
        "mkfifo pipe && rm pipe && ln -s run.sh link && ln run.sh hard",
        "tar -cf all.tar a run.sh && mkdir out && tar -xpf all.tar -C out && test -x out/run.sh",
        "perl -e 'use Fcntl; sysopen(F, \"made\", O_CREAT|O_WRONLY, 0755) or exit 1; chmod(0644, \"made\") == 1 or exit 2'",
        "mkdir repository && cd repository && git init -q . && echo x > x && git add x && \
         git -c user.name=a -c user.email=a@b.c commit -q -m one && git log --oneline && git status && cd ..",
    ] {
        let (status, said) = entity.ran(command).await;
        assert_eq!(status, 0, "{command}: {said}");
    }
    assert_eq!(entity.path("run.sh").metadata().expect("it is there").permissions().mode() & 0o7777, 0o755);
}

#[tokio::test]
async fn a_privilege_that_came_by_an_unknown_way_is_taken_away_and_reported() {
    let entity = Entity::new();
    entity.run("cp /bin/true own && mkdir -p deep/er").await;
    // No command can do this, so the host does it in place of an unknown attack.
    fs::set_permissions(entity.path("own"), Permissions::from_mode(0o4755)).expect("permissions");
    fs::set_permissions(entity.path("deep/er"), Permissions::from_mode(0o1777)).expect("permissions");
    let ran = entity.run("echo done").await;
    assert_eq!(ran["output"], json!("done\n"));
    let mut removed: Vec<&str> =
        ran["privileges_removed"].as_array().expect("a list").iter().filter_map(|path| path.as_str()).collect();
    removed.sort_unstable();
    assert_eq!(removed, ["deep/er", "own"]);
    assert_eq!(privileged(entity.folder.path()), Vec::<String>::new());
    assert_eq!(entity.run("echo done").await.get("privileges_removed"), None);
}
