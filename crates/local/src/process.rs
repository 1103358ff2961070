//! Is the process that holds a run still alive?
//!
//! A lease expires by itself, but after a crash the user should not have to wait for that. So the owner of this
//! binary's leases names facts that another process of the same machine can look up: the machine's boot, the PID
//! namespace, the PID, and the start time of the process with that PID. If a process of the same boot and namespace is
//! gone, its lease can be released. For any other owner, on another machine or in another container, nothing is known
//! here, and its lease has to expire.

use std::fs;

use cantrip::canon::RunId;
use cantrip::loom::{AnyLoom, Error, Journal, Lease, WorkerId};
use cantrip::store_refusal;
use cantrip_reply::Refusal;
pub use cantrip_terminal::run::Presence;
use rustix::io::Errno;
use rustix::process::{Pid, test_kill_process};

/// The identity of a process, as its leases name it.
#[derive(Debug, Clone, PartialEq, Eq)]
struct ProcessIdentity {
    /// The boot of the machine and the PID namespace.
    place: String,
    process: u32,
    /// The start time in ticks since the boot. It distinguishes processes if a PID is reused.
    started: u64,
}

impl ProcessIdentity {
    fn own() -> Option<Self> {
        let process = std::process::id();
        Some(Self { place: place()?, process, started: start_time(process).ok()? })
    }

    fn to_owner(&self) -> Option<WorkerId> {
        WorkerId::new(format!("process-{}-{}-{}", self.process, self.started, self.place)).ok()
    }

    fn read(owner: &WorkerId) -> Option<Self> {
        let mut parts = owner.as_str().strip_prefix("process-")?.splitn(3, '-');
        let (process, started) = (parts.next()?.parse().ok()?, parts.next()?.parse().ok()?);
        Some(Self { place: parts.next()?.to_owned(), process, started })
    }
}

/// Returns the name under which this process holds leases; None if the system does not give the facts for it.
pub fn owner() -> Option<WorkerId> {
    ProcessIdentity::own()?.to_owner()
}

pub fn presence(owner: &WorkerId) -> Presence {
    let Some(signed) = ProcessIdentity::read(owner) else { return Presence::Elsewhere };
    if place().as_ref() != Some(&signed.place) {
        return Presence::Elsewhere;
    }
    match start_time(signed.process) {
        Ok(started) if started == signed.started => Presence::Here,
        Ok(_) | Err(StartUnknown::Ended) => Presence::Gone,
        Err(StartUnknown::Hidden) => Presence::Elsewhere,
    }
}

/// Releases the lease if its owner is gone. If several processes do so at once, one of them takes the run. If the lease
/// has changed its owner meanwhile, nothing happens.
pub async fn release_if_gone(loom: &AnyLoom, lease: &Lease) -> Result<bool, Error> {
    if presence(&lease.owner) != Presence::Gone {
        return Ok(false);
    }
    loom.release(lease).await?;
    Ok(true)
}

/// Releases the lease of a run if a dead process of this machine holds it.
pub async fn release_run(loom: &AnyLoom, run: RunId) -> Result<bool, Refusal> {
    let stored = |error| store_refusal(&error);
    match loom.holder(run).await.map_err(stored)? {
        Some(lease) => release_if_gone(loom, &lease).await.map_err(stored),
        None => Ok(false),
    }
}

/// Returns the boot of this machine and the PID namespace of this process; None if `/proc` shows another namespace,
/// where the PIDs are those of other processes.
fn place() -> Option<String> {
    let shown = fs::read_link("/proc/self").ok()?;
    if shown.to_str()?.parse() != Ok(std::process::id()) {
        return None;
    }
    let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?;
    let space = fs::read_link("/proc/self/ns/pid").ok()?;
    let space: String = space.to_string_lossy().chars().filter(char::is_ascii_digit).collect();
    let boot: String = boot.chars().filter(char::is_ascii_hexdigit).collect();
    (!boot.is_empty() && !space.is_empty()).then(|| format!("{boot}.{space}"))
}

/// The reason why the start time of a process cannot be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum StartUnknown {
    /// There is no process with this PID, or it has ended and its parent has not reaped it yet.
    Ended,
    /// The process exists, but this process may not read its state.
    Hidden,
}

/// Returns the start time of a process.
fn start_time(process: u32) -> Result<u64, StartUnknown> {
    let Ok(stat) = fs::read_to_string(format!("/proc/{process}/stat")) else {
        // If `/proc` hides the processes of other users, a null signal still shows whether the process exists.
        let number = i32::try_from(process).ok().and_then(Pid::from_raw).ok_or(StartUnknown::Ended)?;
        return Err(match test_kill_process(number) {
            Err(Errno::SRCH) => StartUnknown::Ended,
            Ok(()) | Err(_) => StartUnknown::Hidden,
        });
    };
    // The process name in parentheses may hold any character, also parentheses.
    let (_, rest) = stat.rsplit_once(')').ok_or(StartUnknown::Hidden)?;
    let mut fields = rest.split_ascii_whitespace();
    let state = fields.next().ok_or(StartUnknown::Hidden)?;
    if matches!(state, "Z" | "X") {
        return Err(StartUnknown::Ended);
    }
    // The start time is the 22nd field; the state is the third.
    fields.nth(18).and_then(|field| field.parse().ok()).ok_or(StartUnknown::Hidden)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn signed(change: impl FnOnce(&mut ProcessIdentity)) -> WorkerId {
        let mut signature = ProcessIdentity::own().expect("this system tells");
        change(&mut signature);
        signature.to_owner().expect("a short name")
    }

    #[test]
    fn a_living_process_is_here_and_one_that_ended_is_gone() {
        assert_eq!(presence(&owner().expect("this system tells")), Presence::Here);
        let mut child = std::process::Command::new("true").spawn().expect("a process");
        let number = child.id();
        let began = start_time(number);
        child.wait().expect("it ends");
        let ended = signed(|signature| (signature.process, signature.started) = (number, began.unwrap_or(1)));
        assert_eq!(presence(&ended), Presence::Gone);
    }

    #[test]
    fn a_number_that_was_given_out_again_is_somebody_else() {
        assert_eq!(presence(&signed(|signature| signature.started += 1)), Presence::Gone);
    }

    #[test]
    fn nothing_is_said_of_another_machine_or_container_or_of_other_names() {
        assert_eq!(presence(&signed(|signature| signature.place.push('0'))), Presence::Elsewhere);
        for name in ["process-00c0ffee", "heir", "process-1-2", "process-x-y-z"] {
            assert_eq!(presence(&WorkerId::new(name).expect("a name")), Presence::Elsewhere, "{name}");
        }
    }
}
