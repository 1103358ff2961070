//! The source of intents: a terminal or a pipe.

use std::io::{self, BufRead, Read as _};
use std::path::Path;

use cantrip_reply::{Refusal, codes};

use super::editor::LineEditor;
use super::entry::{self, Entry};
use cantrip_terminal::interrupt::Presses;
use cantrip_terminal::limits::TYPED_BYTES_MAX;

/// The next input.
pub(super) enum InputEvent {
    Intent(String),
    Command(String),
    Refused(Refusal),
    /// The user pressed Ctrl-C while a script was read.
    Interrupted,
    End,
}

impl From<Entry> for Option<InputEvent> {
    fn from(entry: Entry) -> Self {
        match entry {
            Entry::Nothing => None,
            Entry::Intent(intent) => Some(InputEvent::Intent(intent)),
            Entry::Command(line) => Some(InputEvent::Command(line)),
        }
    }
}

pub(super) enum Input {
    /// The editor; it is None while a read is in progress.
    Typed(Option<Box<LineEditor>>),
    Piped(Presses),
}

impl Input {
    pub(super) fn typed(name: &str, beside: Option<&Path>) -> Self {
        Self::Typed(LineEditor::new(name, beside).map(Box::new))
    }

    pub(super) fn piped() -> Self {
        Self::Piped(Presses::listen())
    }

    /// Waits for the next entry that is not empty.
    pub(super) async fn next(&mut self) -> InputEvent {
        loop {
            let read = match self {
                Self::Typed(typing) => read_typed(typing).await,
                Self::Piped(presses) => tokio::select! { biased;
                    () = presses.next() => return InputEvent::Interrupted,
                    // A read that is no longer awaited ends with the process.
                    read = blocking(|| read_piped(&mut io::stdin().lock())) => read,
                },
            };
            let given = match read {
                ReadResult::Entry(text) if text.len() > TYPED_BYTES_MAX => {
                    Some(InputEvent::Refused(too_long(text.len())))
                }
                ReadResult::Entry(text) => entry::parse_entry(&text).into(),
                ReadResult::TooLong(bytes) => Some(InputEvent::Refused(too_long(bytes))),
                ReadResult::NotText => {
                    Some(InputEvent::Refused(codes::target_unusable("an intent", "it is not text").into()))
                }
                ReadResult::Failed(cause) => {
                    tracing::error!(cause, "the input cannot be read");
                    Some(InputEvent::End)
                }
                ReadResult::End => Some(InputEvent::End),
            };
            if let Some(given) = given {
                return given;
            }
        }
    }
}

fn too_long(bytes: usize) -> Refusal {
    codes::limit("the intent", bytes, TYPED_BYTES_MAX).into()
}

/// The result of a read.
pub(super) enum ReadResult {
    Entry(String),
    TooLong(usize),
    NotText,
    Failed(String),
    End,
}

async fn blocking(read: impl FnOnce() -> ReadResult + Send + 'static) -> ReadResult {
    tokio::task::spawn_blocking(read).await.unwrap_or(ReadResult::End)
}

async fn read_typed(typing: &mut Option<Box<LineEditor>>) -> ReadResult {
    let Some(mut taken) = typing.take() else { return ReadResult::End };
    let read = tokio::task::spawn_blocking(move || {
        let read = taken.entry();
        (taken, read)
    });
    match read.await {
        Ok((taken, read)) => {
            *typing = Some(taken);
            read
        }
        Err(_) => ReadResult::End,
    }
}

/// Reads one entry: a line, or several lines that belong together. An entry that is too long is read to its end and
/// dropped, because its rest must not be taken for intents.
fn read_piped(from: &mut impl BufRead) -> ReadResult {
    let (mut all, mut bytes, mut block) = (Vec::new(), 0, false);
    loop {
        let mut line = Vec::new();
        let count = match from.by_ref().take(TYPED_BYTES_MAX as u64 + 1).read_until(b'\n', &mut line) {
            Ok(count) => count,
            Err(error) => return ReadResult::Failed(error.to_string()),
        };
        if count == 0 && bytes == 0 {
            return ReadResult::End;
        }
        let text = String::from_utf8_lossy(&line);
        // Only this line is checked, however long the entry is already; the first line decides what ends the entry.
        let open = if bytes == 0 {
            block = entry::is_block(&text);
            entry::is_open(text.trim_end_matches('\n'))
        } else {
            entry::continues(block, &text)
        };
        bytes += count;
        let fits = bytes <= TYPED_BYTES_MAX;
        let whole = text.ends_with('\n');
        if fits {
            all.append(&mut line);
        }
        // A line without a line break is the last one, or the start of a line that is too long. The next read shows
        // which.
        if count > 0 && (open || !whole) {
            continue;
        }
        if !fits {
            return ReadResult::TooLong(bytes);
        }
        return match String::from_utf8(all) {
            Ok(text) => ReadResult::Entry(text),
            Err(_) => ReadResult::NotText,
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entries(input: &[u8]) -> Vec<String> {
        let mut from = input;
        let mut found = Vec::new();
        loop {
            match read_piped(&mut from) {
                ReadResult::Entry(text) => found.push(text),
                ReadResult::TooLong(bytes) => found.push(format!("too long: {bytes}")),
                ReadResult::NotText => found.push("not text".to_owned()),
                ReadResult::Failed(cause) => panic!("{cause}"),
                ReadResult::End => return found,
            }
        }
    }

    #[test]
    fn a_pipe_gives_a_line_at_a_time_and_what_belongs_together() {
        assert_eq!(entries(b"one\n\ntwo\\\nlines\nlast"), ["one\n", "\n", "two\\\nlines\n", "last"]);
        assert_eq!(entries(b"\"\"\"\na\n\nb\n\"\"\"\nnext\n"), ["\"\"\"\na\n\nb\n\"\"\"\n", "next\n"]);
        assert_eq!(entries(b"\"\"\"\nopen"), ["\"\"\"\nopen"]);
        assert_eq!(entries(b""), Vec::<String>::new());
    }

    #[test]
    fn what_is_too_long_or_no_text_is_told_and_the_next_line_is_read() {
        let long = [b"x".repeat(TYPED_BYTES_MAX + 5), b"\nnext\n".to_vec()].concat();
        assert_eq!(entries(&long), [format!("too long: {}", TYPED_BYTES_MAX + 6), "next\n".to_owned()]);
        assert_eq!(entries(b"\xff\xfe\nnext\n"), ["not text", "next\n"]);
        let block = ["\"\"\"\n".to_owned(), "line\n".repeat(TYPED_BYTES_MAX / 4)].concat();
        let block = format!("{block}/quit\n\"\"\"\nnext\n");
        let found = entries(block.as_bytes());
        assert!(found.len() == 2 && found[0].starts_with("too long") && found[1] == "next\n", "{}", found.len());
    }
}
