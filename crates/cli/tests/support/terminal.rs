//! A terminal without a person: keys go in, the drawn output comes out.
//!
//! The binary gets a real terminal as its controlling terminal, so that keys, signals and modes work as they do for
//! people. A test waits for expected output, never for time.

use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::process::{Child, Command};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{Winsize, tcsetwinsize};

use super::Folder;

/// A machine that is slower than this is broken.
const PATIENCE: Duration = Duration::from_secs(180);

pub const ENTER: &str = "\r";
pub const UP: &str = "\u{1b}[A";
pub const TAB: &str = "\t";
pub const CTRL_C: &str = "\u{3}";
pub const CTRL_D: &str = "\u{4}";

/// Returns the bytes that a terminal sends for pasted text.
pub fn paste(text: &str) -> String {
    format!("\u{1b}[200~{text}\u{1b}[201~")
}

pub struct Terminal {
    child: Child,
    keys: File,
    drawn: Receiver<Vec<u8>>,
    bytes: Vec<u8>,
    /// The position in the text after the last match.
    seen: usize,
}

impl Terminal {
    /// Runs the binary on a terminal of 80 columns.
    pub fn run(folder: &Folder, arguments: &[&str]) -> Self {
        Self::start(folder, arguments, &[], None)
    }

    /// Like `run`, with these variables.
    pub fn run_with(folder: &Folder, arguments: &[&str], variables: &[(&str, String)]) -> Self {
        Self::start(folder, arguments, variables, None)
    }

    /// Like `run`, with standard output going into a file.
    pub fn run_into(folder: &Folder, arguments: &[&str], output: File) -> Self {
        Self::start(folder, arguments, &[], Some(output))
    }

    fn start(folder: &Folder, arguments: &[&str], variables: &[(&str, String)], output: Option<File>) -> Self {
        let master: OwnedFd = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).expect("a terminal");
        grantpt(&master).expect("it is ours");
        unlockpt(&master).expect("it can be opened");
        let size = Winsize { ws_row: 40, ws_col: 80, ws_xpixel: 0, ws_ypixel: 0 };
        tcsetwinsize(&master, size).expect("it has a size");
        let name = ptsname(&master, Vec::new()).expect("it has a name").into_string().expect("UTF-8");
        let open = || OpenOptions::new().read(true).write(true).open(&name).expect("its other side");
        // setsid makes this the controlling terminal of the binary, so that Ctrl-C reaches it as a signal.
        let mut command = Command::new("setsid");
        command.args(["--ctty", "--wait", env!("CARGO_BIN_EXE_cantrip")]).args(arguments);
        folder.around(&mut command);
        command.envs(variables.iter().map(|(name, value)| (name, value)));
        let output = output.unwrap_or_else(open);
        command.env("TERM", "xterm-256color").stdin(open()).stdout(output).stderr(open());
        let child = command.spawn().expect("the binary runs");
        drop(command);
        let keys = File::from(master);
        let mut screen = keys.try_clone().expect("a second handle");
        let (to, drawn) = channel();
        std::thread::spawn(move || {
            let mut piece = [0; 4_096];
            // When the binary has ended, the other side is closed; the read error is the end.
            while let Ok(count) = screen.read(&mut piece) {
                if count == 0 || to.send(piece[..count].to_vec()).is_err() {
                    break;
                }
            }
        });
        Self { child, keys, drawn, bytes: Vec::new(), seen: 0 }
    }

    pub fn send(&mut self, keys: &str) {
        self.keys.write_all(keys.as_bytes()).expect("the terminal takes keys");
    }

    /// Types a line.
    pub fn line(&mut self, text: &str) {
        self.send(&format!("{text}{ENTER}"));
    }

    /// Returns the output so far, with escape sequences.
    pub fn raw(&self) -> String {
        String::from_utf8_lossy(&self.bytes).into_owned()
    }

    /// Returns the output so far, without escape sequences.
    pub fn text(&self) -> String {
        plain(&String::from_utf8_lossy(&self.bytes))
    }

    /// Waits until this text appears after the previous match.
    #[track_caller]
    pub fn wait_for(&mut self, wanted: &str) {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let text = self.text();
            let rest = text.get(self.seen..).unwrap_or_default();
            if let Some(at) = rest.find(wanted) {
                self.seen += at + wanted.len();
                return;
            }
            match self.drawn.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
                Ok(piece) => self.bytes.extend(piece),
                Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => {
                    panic!("{wanted:?} was not drawn; this was:\n{text}")
                }
            }
        }
    }

    /// Waits until the binary has ended. Returns the output after the previous match, and the exit status.
    #[track_caller]
    pub fn end(mut self) -> (String, Option<i32>) {
        let deadline = Instant::now() + PATIENCE;
        loop {
            match self.drawn.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
                Ok(piece) => self.bytes.extend(piece),
                Err(RecvTimeoutError::Disconnected) => break,
                Err(RecvTimeoutError::Timeout) => panic!("it did not end; this was drawn:\n{}", self.text()),
            }
        }
        let status = self.child.wait().expect("it ended");
        let text = self.text();
        (text.get(self.seen..).unwrap_or_default().to_owned(), status.code())
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        // If the process has ended, there is nothing to kill.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Returns the text without colours, cursor movements and carriage returns.
fn plain(drawn: &str) -> String {
    let mut text = String::new();
    let mut chars = drawn.chars().peekable();
    while let Some(char) = chars.next() {
        match char {
            '\u{1b}' if chars.next_if_eq(&'[').is_some() => {
                while chars.next().is_some_and(|char| !('\u{40}'..='\u{7e}').contains(&char)) {}
            }
            '\u{1b}' => {
                chars.next();
            }
            '\r' | '\u{7}' => {}
            char => text.push(char),
        }
    }
    text
}
