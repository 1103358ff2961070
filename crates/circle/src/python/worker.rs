//! The other side of a worker: a process that keeps sessions and does what its standard input says.

use std::io::{self, BufReader, BufWriter};
use std::sync::mpsc;
use std::thread;

use super::memory::is_counting;
use super::meter::CancelledSessions;
use super::session_host::SessionHost;
use super::wire::{self, Command, Message, PROTOCOL};
use crate::limits;

/// Serves Python sessions on standard input and output until the input ends: what `cantrip worker --python` does.
///
/// The process must have the [`CountingAllocator`](super::CountingAllocator) allocator, or whoever started it will not have it.
pub fn serve() -> io::Result<()> {
    let mut out = BufWriter::new(io::stdout());
    wire::write(
        &mut out,
        &Message::Hello { protocol: PROTOCOL, dump_version: monty::DUMP_VERSION, counts: is_counting() },
    )?;
    let cancelled = CancelledSessions::default();
    let mut keeper = SessionHost::new(cancelled.clone(), true);
    let (commands, taken) = mpsc::channel();
    thread::Builder::new().name("python".to_owned()).stack_size(limits::PYTHON_STACK_BYTES).spawn(move || {
        for command in taken {
            if let Some(message) = keeper.handle(command)
                && wire::write(&mut out, &message).is_err()
            {
                // Nobody hears us any more.
                std::process::exit(0);
            }
        }
    })?;
    let mut from = BufReader::new(io::stdin());
    while let Some(command) = wire::read::<Command>(&mut from)? {
        if let Command::Cancel { id } = command {
            cancelled.insert(id);
        }
        if commands.send(command).is_err() {
            break;
        }
    }
    // Whatever runs now runs for nobody.
    std::process::exit(0)
}
