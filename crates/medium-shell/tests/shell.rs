//! The shell: what persists, which limits apply, and what a command cannot do from inside its cage.

use crate::gates;

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::{Duration, Instant};

use cantrip_circle::gate::{GateSessions, StopReason, StopSignal, Stopper};
use cantrip_circle::ward::ShellBounds;
use cantrip_circle::{Circle, Decision, Effect};
use cantrip_medium_shell::Shell;
use cantrip_reply::testing::assert_code;
use cantrip_reply::{Code, Invalid, Reply, codes};
use gates::{circle, decide, guard, identity, trace, value};
use serde_json::{Value, json};
use tempfile::TempDir;

/// An entity with a shell over its own folder.
pub(crate) struct Entity {
    pub(crate) folder: TempDir,
    circle: Circle,
    belongings: GateSessions,
}

impl Entity {
    pub(crate) fn new() -> Self {
        Self::with(|shell| shell)
    }

    pub(crate) fn with(change: impl FnOnce(Shell) -> Shell) -> Self {
        Self::prepared(|_, shell| change(shell))
    }

    /// The same, with files prepared in the folder.
    pub(crate) fn prepared(change: impl FnOnce(&Path, Shell) -> Shell) -> Self {
        let folder = TempDir::new().unwrap();
        let shell = change(folder.path(), Shell::over(folder.path()));
        let wards = json!({"allow_trifecta": "this test has nothing to steal"});
        Self { circle: circle([shell.gate()], wards), folder, belongings: GateSessions::default() }
    }

    fn bounded(change: impl FnOnce(&mut ShellBounds)) -> Self {
        // Other tests of this file may keep the machine busy in the meantime.
        let mut bounds = ShellBounds { wall: Duration::from_secs(180), ..ShellBounds::default() };
        change(&mut bounds);
        Self::with(|shell| shell.bounds(bounds))
    }

    pub(crate) fn path(&self, name: &str) -> std::path::PathBuf {
        self.folder.path().join(name)
    }

    async fn until(&self, command: &str, stop: StopSignal) -> Reply {
        let guard = guard();
        let trace = trace(&guard);
        let decided = decide(&self.circle, "shell", json!({ "command": command }));
        let Decision::Allowed(Effect::Execute(permit)) = decided else { panic!("{decided:?}") };
        let permit = permit.with_sessions(&self.belongings);
        permit.execute(&guard, &trace, Some(identity()), None, stop).await.guarded.reply
    }

    async fn call(&self, command: &str) -> Reply {
        self.until(command, StopSignal::never()).await
    }

    /// Returns the result of a command that must complete.
    pub(crate) async fn run(&self, command: &str) -> Value {
        let reply = self.call(command).await;
        assert_code(&reply, codes::GATE_OK);
        value(&reply).clone()
    }

    /// Returns the exit status of a command and its output.
    pub(crate) async fn ran(&self, command: &str) -> (i64, String) {
        let ran = self.run(command).await;
        (ran["exit_status"].as_i64().unwrap(), ran["output"].as_str().unwrap().to_owned())
    }

    pub(crate) async fn output(&self, command: &str) -> String {
        self.ran(command).await.1
    }

    async fn refused(&self, command: &str, code: Code<Invalid>) -> Reply {
        let reply = self.call(command).await;
        assert_code(&reply, code);
        reply
    }
}

/// Returns the number of processes on this machine whose command line contains this text.
fn running(mark: &str) -> usize {
    let processes = fs::read_dir("/proc").unwrap().flatten();
    let lines = processes.filter_map(|process| fs::read(process.path().join("cmdline")).ok());
    lines.filter(|line| String::from_utf8_lossy(line).replace('\0', " ").contains(mark)).count()
}

/// Waits until the number of such processes satisfies `wanted`.
async fn counted(mark: &str, wanted: impl Fn(usize) -> bool) {
    let until = Instant::now() + Duration::from_secs(10);
    while !wanted(running(mark)) {
        assert!(Instant::now() < until, "{} processes with {mark} are there", running(mark));
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

async fn none_left(mark: &str) {
    counted(mark, |there| there == 0).await;
}

#[tokio::test]
async fn an_exit_status_is_data_and_both_outputs_come_in_their_order() {
    let entity = Entity::new();
    assert_eq!(entity.ran("echo one; echo two >&2; echo three").await, (0, "one\ntwo\nthree\n".to_owned()));
    assert_eq!(entity.ran("exit_with() { return 3; }; exit_with").await.0, 3);
    assert_eq!(entity.ran("no-such-program").await.0, 127);
    let (status, said) = entity.ran("echo 'unfinished").await;
    assert!(status != 0 && said.contains("unexpected EOF"), "{status} {said}");
    assert_eq!(entity.ran("printf 'no newline'").await.1, "no newline");
    assert_eq!(entity.ran("").await, (0, String::new()));
    assert_eq!(entity.ran("printf '\\xff\\0a'").await.1, "\u{fffd}\0a");
}

#[tokio::test]
async fn folder_variables_functions_and_jobs_last_and_each_entity_has_its_own() {
    let (one, other) = (Entity::new(), Entity::new());
    one.run("mkdir -p deep/er && cd deep/er; export A=1; b=2; greet() { echo hello $A $b; }; sleep 1000 &").await;
    let ran = one.run("greet; pwd; jobs -r | wc -l").await;
    let folder = one.folder.path().canonicalize().unwrap().join("deep/er");
    assert_eq!(ran["output"], json!(format!("hello 1 2\n{}\n1\n", folder.display())));
    assert_eq!(ran["folder"], json!(folder.to_str()));
    assert_eq!(other.output("echo $A$b; type greet 2>&1 | wc -l").await, "\n1\n");
    fs::write(one.path("from-outside"), "seen").unwrap();
    assert_eq!(one.output("cat ../../from-outside; echo written > ../../from-inside").await, "seen");
    assert_eq!(fs::read_to_string(one.path("from-inside")).unwrap(), "written\n");
}

#[tokio::test]
async fn a_command_cannot_lose_the_thread_of_the_conversation() {
    let entity = Entity::new();
    for (command, wanted) in [
        ("cat; echo after", "after\n"),
        ("exec >/dev/null 2>&1; echo lost", ""),
        ("continue; echo not reached", ""),
        ("for i in 1 2; do break; done; break; echo not reached", ""),
        ("exec 7<&- 8>&- 9>&-; echo here", "here\n"),
        ("(echo a; sleep 0.1; echo b) & wait", "a\nb\n"),
    ] {
        let (_, said) = entity.ran(command).await;
        assert_eq!(said, wanted, "{command}");
    }
    let ended = entity.run("echo bye; exit 7").await;
    assert_eq!((&ended["exit_status"], &ended["output"]), (&json!(7), &json!("bye\n")));
    assert_eq!(entity.output("echo again").await, "[environment lost: the command before ended the shell]\nagain\n");
    assert_eq!(entity.output("echo still").await, "still\n");
}

#[tokio::test]
async fn output_is_shown_from_both_ends_and_stopped_where_there_is_too_much() {
    let entity = Entity::bounded(|bounds| bounds.output_bytes = 200_000);
    let ran = entity.run("echo first; head -c 100000 /dev/zero | tr '\\0' x; echo; echo last").await;
    let said = ran["output"].as_str().unwrap();
    assert!(said.starts_with("first\nxxx") && said.ends_with("xxx\nlast\n"), "{}", &said[..40]);
    assert_eq!(ran["truncated"], json!({"shown": 32 << 10, "total": 100_012}));
    let _ = entity.refused("echo mark-of-a-flood >/dev/null; yes", codes::OUTPUT_LIMIT).await;
    let said = entity.output("echo $PPID").await;
    assert!(said.starts_with("[environment lost: the command before passed a limit]\n"), "{said}");
}

#[tokio::test]
async fn a_command_that_takes_too_long_is_ended_with_all_it_started() {
    let entity = Entity::bounded(|bounds| bounds.wall = Duration::from_millis(700));
    let mark = "sleep 98761";
    let reply = entity.refused("(setsid sleep 98761 &); sleep 98761", codes::TIME_LIMIT).await;
    assert_eq!(reply.data()["kind"], json!("wall"));
    assert_eq!(running(mark), 0, "nothing is left when the reply is there");
    let _ = entity.refused("trap '' TERM INT; while :; do :; done", codes::TIME_LIMIT).await;
}

#[tokio::test]
async fn processor_time_counts_whoever_uses_it() {
    let entity = Entity::bounded(|bounds| bounds.cpu = Duration::from_millis(400));
    let busy = "spin() { while :; do :; done; }; spin & spin & wait";
    let reply = entity.refused(busy, codes::TIME_LIMIT).await;
    assert_eq!(reply.data()["kind"], json!("cpu"));
    // The usage of earlier commands does not count against the next command.
    let (status, _) = entity.ran("for i in $(seq 1000); do :; done").await;
    assert_eq!(status, 0);
}

#[tokio::test]
async fn memory_is_bounded_for_all_processes_together() {
    let entity = Entity::bounded(|bounds| bounds.memory_bytes = 200 << 20);
    let hoard = "hoard() { x=$(head -c 60000000 /dev/zero | tr '\\0' x); sleep 20; }; \
                 for i in 1 2 3 4 5 6; do hoard & done; wait";
    let reply = entity.refused(hoard, codes::MEMORY_LIMIT).await;
    assert_eq!(reply.data()["kind"], json!("memory"));
}

#[tokio::test]
async fn a_stop_from_outside_ends_the_command_and_the_cage() {
    let entity = Entity::new();
    let (stopper, stop) = Stopper::new();
    let ended = async {
        counted("sleep 98762", |there| there > 0).await;
        stopper.stop(StopReason::Outside { actor: "test".to_owned(), reason: "cancelled".to_owned() });
    };
    let (reply, ()) = tokio::join!(entity.until("sleep 98762", stop), ended);
    assert_code(&reply, codes::ENDED_FROM_OUTSIDE);
    none_left("sleep 98762").await;
    assert!(entity.output("echo x").await.starts_with("[environment lost: the command before was cut off]"));
}

#[tokio::test]
async fn nothing_of_an_entity_outlives_it() {
    let entity = Entity::new();
    entity.run("setsid nohup sleep 98763 >/dev/null 2>&1 & (sleep 98763 & disown) &").await;
    // The reply does not wait for background processes: both may still be about to start.
    counted("sleep 98763", |there| there >= 2).await;
    drop(entity);
    none_left("sleep 98763").await;
}

#[tokio::test]
async fn attack_reading_outside() {
    let entity = Entity::new();
    let secret = TempDir::new().unwrap();
    fs::write(secret.path().join("key"), "hunter2").unwrap();
    let home = std::env::var("HOME").unwrap_or_else(|_| "/root".to_owned());
    for path in [secret.path().join("key").to_str().unwrap(), "/etc/shadow", &home, "/root", "/home", "/var", "/sys"] {
        let (status, said) = entity.ran(&format!("cat {path} || ls {path}")).await;
        assert!(status != 0 && !said.contains("hunter2"), "{path}: {said}");
    }
    // The cage resolves a link inside of itself.
    std::os::unix::fs::symlink(secret.path(), entity.path("way-out")).unwrap();
    assert_ne!(entity.ran("cat way-out/key").await.0, 0);
    assert_ne!(entity.ran("cat /proc/1/root/etc/shadow /proc/self/root/../../etc/shadow").await.0, 0);
}

#[tokio::test]
async fn attack_finding_keys() {
    // The cage has no variables of this process: its environment and that of its first process are set by the host.
    let entity = Entity::with(|shell| shell.variable("GIVEN", "by the spell"));
    fs::write(entity.path(".env"), "API_KEY=hunter2").unwrap();
    fs::create_dir_all(entity.path("app/.cantrip")).unwrap();
    fs::write(entity.path("app/.cantrip/loom.db"), "hunter2").unwrap();
    fs::write(entity.path("app/.env.local"), "hunter2").unwrap();
    let said = entity.output("env; cat /proc/1/environ /proc/$$/environ | tr '\\0' '\\n'").await;
    for name in std::env::vars().map(|(name, _)| name).filter(|name| name.starts_with("CARGO")) {
        assert!(!said.contains(&name), "{name} is in the cage");
    }
    assert!(said.contains("GIVEN=by the spell") && !said.contains("CANTRIP_"), "{said}");
    let said = entity.output("cat .env app/.env.local; ls -A app/.cantrip; cat app/.cantrip/loom.db").await;
    assert!(!said.contains("hunter2"), "{said}");
    for command in
        ["echo x > .env", "rm -f .env", "rm -rf app/.cantrip", "echo x > app/.cantrip/y", "mv app/.cantrip b"]
    {
        assert_ne!(entity.ran(command).await.0, 0, "{command}");
    }
    assert_eq!(fs::read_to_string(entity.path(".env")).unwrap(), "API_KEY=hunter2");
    // The covers inside of a moved folder move with it.
    assert_eq!(entity.ran("mv app b; cat b/.env.local b/.cantrip/loom.db; ls -A b/.cantrip").await.0, 0);
    assert!(!entity.output("cat b/.env.local b/.cantrip/* 2>&1").await.contains("hunter2"));
    assert_eq!(fs::read_to_string(entity.path("b/.cantrip/loom.db")).unwrap(), "hunter2");
}

#[tokio::test]
async fn attack_writing_outside() {
    let entity = Entity::new();
    let outside = TempDir::new().unwrap();
    let written = format!("echo x > {}/y", outside.path().display());
    for command in [&*written, "echo x > /usr/bin/y", "echo x > /y", "mkdir /foo", "echo x > /dev/y", "touch /lib/y"] {
        assert_ne!(entity.ran(command).await.0, 0, "{command}");
    }
    assert_eq!(fs::read_dir(outside.path()).unwrap().count(), 0);
    // The temporary folder of the cage is separate from the host's.
    entity.run("echo x > /tmp/98764-mine").await;
    assert!(!Path::new("/tmp/98764-mine").exists());
    // A hook in the repository is a program that the next person runs.
    let entity = Entity::new();
    fs::create_dir_all(entity.path(".git/hooks")).unwrap();
    assert_ne!(entity.ran("echo 'rm -rf ~' > .git/hooks/pre-commit").await.0, 0);
    assert_ne!(entity.ran("mv .git .tig; rm -rf .git").await.0, 0);
}

#[tokio::test]
async fn a_read_only_folder_stays_as_it_is() {
    let entity = Entity::with(Shell::read_only);
    fs::write(entity.path("a"), "as it was").unwrap();
    for command in ["echo x > a", "echo x > b", "rm a", "mv a b", "chmod 777 a", "ln a b"] {
        assert_ne!(entity.ran(command).await.0, 0, "{command}");
    }
    assert_eq!(entity.output("cat a").await, "as it was");
    assert_eq!(fs::read_dir(entity.folder.path()).unwrap().count(), 1);
}

#[tokio::test]
async fn attack_the_kernels_switches() {
    let entity = Entity::new();
    let before = fs::read_to_string("/proc/sys/kernel/core_pattern").unwrap();
    for command in [
        "cat /proc/sys/kernel/core_pattern > /proc/sys/kernel/core_pattern",
        "echo 1 > /proc/sys/vm/drop_caches",
        "echo h > /proc/sysrq-trigger",
        "echo 0 > /proc/self/oom_score_adj",
        "echo x > /proc/1/comm",
        "mount -t proc proc /proc",
        "mount -o remount,rw /proc",
        "mount --bind /tmp /usr",
        "umount /proc",
        "unshare --user --map-root-user true",
        "unshare --mount true",
        "chroot / true",
        "dmesg",
        "cat /proc/kcore",
    ] {
        assert_ne!(entity.ran(command).await.0, 0, "{command}");
    }
    assert_eq!(fs::read_to_string("/proc/sys/kernel/core_pattern").unwrap(), before);
    let said = entity.output("grep -E 'CapEff|CapBnd|NoNewPrivs' /proc/self/status").await;
    assert!(said.contains("CapBnd:\t0000000000000000") && said.contains("NoNewPrivs:\t1"), "{said}");
    // Only the processes of the cage are visible.
    let said = entity.output("ls /proc | grep -c '^[0-9]'").await;
    assert!(said.trim().parse::<u32>().unwrap() < 10, "{said}");
}

#[tokio::test]
async fn attack_signals_to_the_host() {
    let entity = Entity::new();
    let mut bystander = std::process::Command::new("sleep").arg("98765").spawn().unwrap();
    let (status, _) = entity.ran(&format!("kill -9 {} {}", bystander.id(), std::process::id())).await;
    assert_ne!(status, 0);
    // The signal goes to all processes that the command can reach, which are only those of the cage. A bash that kills
    // itself ends.
    let _ = entity.call("kill -9 -1").await;
    assert!(bystander.try_wait().unwrap().is_none(), "a process outside was killed");
    bystander.kill().unwrap();
    bystander.wait().unwrap();
}

#[tokio::test]
async fn attack_the_network() {
    let entity = Entity::new();
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    listener.set_nonblocking(true).unwrap();
    let port = listener.local_addr().unwrap().port();
    let dial = format!("exec 3<>/dev/tcp/127.0.0.1/{port}");
    assert_ne!(entity.ran(&format!("({dial})")).await.0, 0);
    assert_ne!(entity.ran("(exec 3<>/dev/tcp/1.1.1.1/53)").await.0, 0);
    assert_eq!(listener.accept().unwrap_err().kind(), std::io::ErrorKind::WouldBlock, "somebody came");
    let said = entity.output("cat /proc/net/dev | tail -n +3 | cut -d: -f1").await;
    assert_eq!(said.trim(), "lo");
    // If the network is allowed, it is available.
    let entity = Entity::with(Shell::network);
    assert_eq!(entity.ran(&format!("({dial})")).await.0, 0);
    listener.accept().unwrap();
}

/// A socket with a path is not part of the network's namespace, so it has to be covered.
#[tokio::test]
async fn attack_a_socket_in_the_project() {
    let dial = "perl -MSocket -e 'socket(S, PF_UNIX, SOCK_STREAM, 0) or exit 2; \
                connect(S, pack_sockaddr_un(\"server.sock\")) or exit 7'";
    for (change, status) in [((|shell| shell) as fn(Shell) -> Shell, 7), (Shell::network as fn(Shell) -> Shell, 0)] {
        let mut listener = None;
        let entity = Entity::prepared(|folder, shell| {
            listener = Some(std::os::unix::net::UnixListener::bind(folder.join("server.sock")).unwrap());
            change(shell)
        });
        let listener = listener.unwrap();
        listener.set_nonblocking(true).unwrap();
        assert_eq!(entity.ran(dial).await, (status, String::new()));
        assert_eq!(listener.accept().is_ok(), status == 0);
        // A command may use sockets of its own.
        let own = "perl -MSocket -e 'socket(S, PF_UNIX, SOCK_STREAM, 0) or exit 2; \
                   bind(S, pack_sockaddr_un(\"own.sock\")) or exit 3'";
        assert_eq!(entity.ran(own).await.0, 0);
    }
}

#[tokio::test]
async fn attack_a_fork_bomb() {
    let entity = Entity::bounded(|bounds| bounds.processes = 40);
    let reply = entity.call("bomb() { bomb | bomb & }; bomb; sleep 20; echo mark-98766").await;
    // If the kernel counts processes too, forks fail inside and the command ends by itself or by its time limit.
    assert_code(&reply, codes::LIMIT);
    assert_eq!(reply.data()["limit"], json!(40));
    none_left("mark-98766").await;
    assert_eq!(entity.output("echo alive").await.lines().last(), Some("alive"));
}

#[tokio::test]
async fn attack_filling_the_disk() {
    let entity = Entity::bounded(|bounds| {
        bounds.file_bytes = 4 << 20;
        bounds.disk_bytes = 64 << 20;
    });
    // One file is limited to the maximum file size.
    let (status, _) = entity.ran("head -c 10000000 /dev/zero > big").await;
    assert_ne!(status, 0);
    assert_eq!(entity.path("big").metadata().unwrap().size(), 4 << 20);
    // Many files are limited by their total size. They are synced, so that the disk usage is visible.
    let many = "for i in $(seq 1000); do dd if=/dev/urandom of=f$i bs=1M count=4 conv=fsync 2>/dev/null; done";
    let reply = entity.refused(many, codes::MEMORY_LIMIT).await;
    assert_eq!(reply.data()["kind"], json!("disk"));
    // Folders in memory are limited too: the temporary folder, the shared memory and the cage's own /etc.
    for folder in ["/tmp", "/dev/shm", "/etc"] {
        let fill = format!("for i in $(seq 200); do head -c 4000000 /dev/zero > {folder}/f$i || exit 9; done");
        let filled = entity.run(&format!("({fill})")).await;
        assert_eq!(filled["exit_status"], json!(9), "{folder}: {filled}");
    }
}

#[tokio::test]
async fn without_bubblewrap_nothing_runs_and_it_is_said_what_to_install() {
    let entity = Entity::with(|shell| shell.bubblewrap("/no/such/bwrap"));
    let reply = entity.call("echo x").await;
    assert_code(&reply, codes::SANDBOX_UNAVAILABLE);
    assert!(reply.message().contains("apt install bubblewrap"), "{}", reply.message());
    // A bubblewrap that cannot make a cage gives the reason.
    let entity = Entity::with(|shell| shell.bubblewrap("/bin/false"));
    assert_code(&entity.call("echo x").await, codes::SANDBOX_UNAVAILABLE);
    let entity = Entity::with(|shell| shell.readable(["/no/such/path"]));
    let reply = entity.call("echo x").await;
    assert_code(&reply, codes::SANDBOX_UNAVAILABLE);
    assert!(reply.message().contains("/no/such/path"), "{}", reply.message());
}

#[tokio::test]
async fn wards_on_paths_and_hosts_stand_against_a_shell_that_could_pass_them() {
    let folder = TempDir::new().unwrap();
    let shell = || Shell::over(folder.path());
    let held = circle([shell().gate()], json!({"restrict": {"paths": ["src/**"]}}));
    assert_code(&gates::call(&held, "shell", json!({"command": "ls"})).await, codes::WRITE_REFUSED);
    let held =
        circle([shell().network().gate()], json!({"restrict": {"hosts": ["example.com"]}, "allow_trifecta": "x"}));
    assert_code(&gates::call(&held, "shell", json!({"command": "ls"})).await, codes::ADDRESS_REFUSED);
    let held = circle([shell().gate()], json!({}));
    assert_code(&gates::call(&held, "shell", json!({})).await, codes::SCHEMA);
    assert_code(&gates::call(&held, "shell", json!({"command": "a\0b"})).await, codes::TARGET_UNUSABLE);
}
