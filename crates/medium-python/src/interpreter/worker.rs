//! The main function of a worker process, which holds sessions and executes the commands on its standard input.

use std::io::{self, BufReader, BufWriter};
use std::sync::mpsc;
use std::thread;

use super::memory::is_counting;
use super::meter::CancelledSessions;
use super::session_host::SessionHost;
use super::wire::{self, Command, Message, PROTOCOL};
use crate::limits;

/// Serves Python sessions on standard input and output until the input ends.
///
/// The command `cantrip worker --python` calls it.
///
/// The process must use the [`CountingAllocator`](super::CountingAllocator), or the host rejects the worker.
pub fn serve() -> io::Result<()> {
    let mut out = BufWriter::new(io::stdout());
    let cancelled = CancelledSessions::default();
    let mut keeper = SessionHost::new(cancelled.clone(), true);
    let (commands, taken) = mpsc::channel();
    let thread = thread::Builder::new().name("python".to_owned()).stack_size(limits::PYTHON_STACK_BYTES);
    let started = thread.spawn(move || {
        let hello = Message::Hello { protocol: PROTOCOL, dump_version: monty::DUMP_VERSION, counts: is_counting() };
        if wire::write(&mut out, &hello).is_err() {
            std::process::exit(0);
        }
        for command in taken {
            if let Some(message) = keeper.handle(command)
                && wire::write(&mut out, &message).is_err()
            {
                // The host has closed its end of the pipe.
                std::process::exit(0);
            }
        }
    });
    if let Err(error) = started {
        // The host can say why only if it hears it: the worker ends, and its exit status says nothing.
        return wire::write(&mut BufWriter::new(io::stdout()), &Message::NoThread(error.to_string()));
    }
    let mut from = BufReader::new(io::stdin());
    while let Some(command) = wire::read::<Command>(&mut from)? {
        if let Command::Cancel { id } = command {
            cancelled.insert(id);
        }
        if commands.send(command).is_err() {
            break;
        }
    }
    // The host has closed the input, so nothing waits for a running program.
    std::process::exit(0)
}
