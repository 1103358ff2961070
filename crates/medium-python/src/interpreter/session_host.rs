//! Holds sessions and executes their commands, one at a time.
//!
//! The same code runs in a thread of this process and in a worker process; only the way in which commands arrive
//! differs. A panic of the interpreter costs the session in which it happened. That session is leaked and not dropped,
//! because its memory may be in any state.

use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};

use super::meter::CancelledSessions;
use super::session::Session;
use super::wire::{Command, Message};

#[derive(Debug)]
pub(super) struct SessionHost {
    sessions: HashMap<u64, Session>,
    cancelled: CancelledSessions,
    hard: bool,
}

impl SessionHost {
    /// With `hard`, a session that exceeds its memory limit by far ends the process.
    pub(super) fn new(cancelled: CancelledSessions, hard: bool) -> Self {
        Self { sessions: HashMap::new(), cancelled, hard }
    }

    /// Executes a command and returns its answer, if it has one.
    pub(super) fn handle(&mut self, command: Command) -> Option<Message> {
        match command {
            Command::Open { id, spec, snapshot } => {
                let (cancelled, hard) = (self.cancelled.clone(), self.hard);
                let opened = catch_unwind(AssertUnwindSafe(|| match snapshot {
                    Some(snapshot) => Session::load(id, spec, hard, cancelled, &snapshot),
                    None => Some(Session::new(id, spec, hard, cancelled)),
                }));
                let opened = opened.ok().flatten();
                let stands = opened.is_some();
                if let Some(session) = opened {
                    self.sessions.insert(id, session);
                }
                Some(Message::Opened(stands))
            }
            Command::Run { id, program } => Some(self.with_session(id, |session| session.run(program))),
            Command::Answer { id, answer, now_ms } => {
                Some(self.with_session(id, |session| session.answer(answer, now_ms)))
            }
            Command::Dump { id } => {
                let dumped = self.with_session(id, |session| Message::Dumped(session.dump()));
                Some(dumped)
            }
            // The program that the cancellation was meant for has seen it by now.
            Command::Cancel { id } => {
                self.cancelled.remove(id);
                None
            }
            Command::Free { id } => {
                if let Some(session) = self.sessions.remove(&id) {
                    let _ = catch_unwind(AssertUnwindSafe(|| drop(session)));
                }
                None
            }
        }
    }

    fn with_session(&mut self, id: u64, act: impl FnOnce(&mut Session) -> Message) -> Message {
        let Some(mut session) = self.sessions.remove(&id) else { return Message::Lost };
        match catch_unwind(AssertUnwindSafe(|| act(&mut session))) {
            Ok(message) => {
                self.sessions.insert(id, session);
                message
            }
            Err(_panic) => {
                std::mem::forget(session);
                Message::Lost
            }
        }
    }
}
