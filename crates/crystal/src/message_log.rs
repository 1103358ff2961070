//! How does every request carry the whole list, and none a copy of it?
//!
//! An entity's list only grows at its end (between two folds), so it is kept once: whoever sends or records a request
//! holds the list and the length it had. A vector behind a lock was turned down: a reader would hold up the writer for
//! as long as it takes to write a request to the wire, or copy every pointer to avoid that.
//!
//! What a wire wrote stays with the list, in pieces that requests share: a request of a thousand messages is written by
//! writing the two new ones, copying what has not yet come to a whole piece, and counting one more holder of the others.

use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use bytes::Bytes;
use cantrip_loom::Message;

use crate::limits::WRITTEN_BYTES_KEPT_MAX;

/// Places of the first stretch; each later one is twice as long as the one before.
const FIRST: usize = 16;
const STRETCHES: usize = 40;

type Stretch = Box<[OnceLock<Arc<Message>>]>;

/// What is kept of a wire's text is shared in pieces of about this size: a larger one makes each request copy more that has
/// not come to a piece yet, a smaller one makes it count more pieces.
const PIECE_BYTES: usize = 16 << 10;

/// What the first wire that was asked wrote of a list: its messages with a comma before each but the first.
struct RenderedMessages {
    by: Arc<str>,
    whole: Vec<Piece>,
    /// What follows the pieces, up to `length`.
    rest: String,
    /// How many messages are written.
    length: usize,
}

enum Piece {
    Kept(Bytes),
    /// The message at this place is too long to be kept twice.
    Long(usize),
}

impl RenderedMessages {
    fn new(by: &Arc<str>) -> Self {
        Self { by: Arc::clone(by), whole: Vec::new(), rest: String::new(), length: 0 }
    }

    fn is_by(&self, wire: &Arc<str>) -> bool {
        Arc::ptr_eq(&self.by, wire) || self.by == *wire
    }

    /// The next message, as it was written; says whether its text is kept.
    fn take(&mut self, text: &str) -> bool {
        let kept = text.len() <= WRITTEN_BYTES_KEPT_MAX;
        if kept {
            separate(&mut self.rest, self.length);
            self.rest.push_str(text);
            if self.rest.len() >= PIECE_BYTES {
                self.close();
            }
        } else {
            self.close();
            self.whole.push(Piece::Long(self.length));
        }
        self.length += 1;
        kept
    }

    fn close(&mut self) {
        if !self.rest.is_empty() {
            // To its length: of ten thousand agents, each would else hold the space that its text once grew into.
            self.whole.push(Piece::Kept(std::mem::take(&mut self.rest).into_bytes().into_boxed_slice().into()));
        }
    }
}

/// A comma before every element but the first.
fn separate(text: &mut String, before: usize) {
    if before > 0 {
        text.push(',');
    }
}

/// A list of messages that is shared and only ever appended to. All clones are the same list.
///
/// Reading takes no lock and a message that was read stays where it is, whatever is appended meanwhile.
///
/// ```
/// # use cantrip_crystal::MessageLog;
/// # use cantrip_loom::Message;
/// let list = MessageLog::new();
/// list.push(Message::User { content: "count the words".into() });
/// let asked = list.all();
/// list.push(Message::User { content: "and the lines".into() });
/// assert_eq!((asked.len(), list.len()), (1, 2));
/// ```
#[derive(Clone, Default)]
pub struct MessageLog(Arc<Segments>);

struct Segments {
    stretches: [OnceLock<Stretch>; STRETCHES],
    length: AtomicUsize,
    writing: Mutex<()>,
    written: Mutex<Option<RenderedMessages>>,
}

impl Default for Segments {
    fn default() -> Self {
        Self {
            stretches: [const { OnceLock::new() }; STRETCHES],
            length: AtomicUsize::new(0),
            writing: Mutex::new(()),
            written: Mutex::new(None),
        }
    }
}

/// The stretch that holds place `at`, and the place within it.
fn place(at: usize) -> (usize, usize) {
    let stretch = (at / FIRST + 1).ilog2();
    (stretch as usize, at - FIRST * ((1 << stretch) - 1))
}

impl MessageLog {
    pub fn new() -> Self {
        Self::default()
    }

    /// Appends a message and says how long the list is now.
    pub fn push(&self, message: impl Into<Arc<Message>>) -> usize {
        let _writing = self.0.writing.lock().unwrap_or_else(PoisonError::into_inner);
        let at = self.0.length.load(Ordering::Acquire);
        let (stretch, within) = place(at);
        let places = self.0.stretches[stretch].get_or_init(|| (0..FIRST << stretch).map(|_| OnceLock::new()).collect());
        // Places are filled in order under the lock, so this one is free.
        let _ = places[within].set(message.into());
        self.0.length.store(at + 1, Ordering::Release);
        at + 1
    }

    pub fn len(&self) -> usize {
        self.0.length.load(Ordering::Acquire)
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The message at `at`, counted from 0.
    pub fn get(&self, at: usize) -> Option<&Arc<Message>> {
        let (stretch, within) = place(at);
        self.0.stretches.get(stretch)?.get()?.get(within)?.get()
    }

    /// The list as it is now.
    pub fn all(&self) -> Messages {
        self.first(self.len())
    }

    /// The first `length` messages, or as many as there are.
    pub fn first(&self, length: usize) -> Messages {
        Messages { list: self.clone(), length: length.min(self.len()), extra: Arc::default() }
    }
}

impl fmt::Debug for MessageLog {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MessageLog").field("length", &self.len()).finish()
    }
}

/// What one request sends: the beginning of a shared list, and what is said for this one attempt only.
#[derive(Clone)]
pub struct Messages {
    list: MessageLog,
    length: usize,
    extra: Arc<[Message]>,
}

impl Messages {
    /// The same messages and then these, which enter no list: a demand for a call that did not come.
    #[must_use]
    pub fn with_extra(self, aside: impl Into<Arc<[Message]>>) -> Self {
        Self { extra: aside.into(), ..self }
    }

    /// The list they are the beginning of.
    pub fn list(&self) -> &MessageLog {
        &self.list
    }

    /// How many of them are the list's.
    pub fn list_length(&self) -> usize {
        self.length
    }

    /// How many there are, those said aside included.
    pub fn len(&self) -> usize {
        self.length + self.extra.len()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The message at `at`, counted from 0.
    pub fn get(&self, at: usize) -> Option<&Message> {
        if at < self.length { self.list.get(at).map(|message| &**message) } else { self.extra.get(at - self.length) }
    }

    /// The messages as a wire writes them, first to last, with commas between them, in pieces. What was written for an
    /// earlier request of the same list is not written again; that holds for the wire that asks first (`by`, which says all
    /// that its writing depends on beside the message), and for requests that are not shorter than the last one: any other
    /// writes anew. A text that is too long to be kept twice is written anew as well.
    pub fn render_with<E>(
        &self,
        by: &Arc<str>,
        mut write: impl FnMut(&Message) -> Result<String, E>,
    ) -> Result<Vec<Bytes>, E> {
        let mut kept = self.list.0.written.lock().unwrap_or_else(PoisonError::into_inner);
        let written = kept.get_or_insert_with(|| RenderedMessages::new(by));
        let mut anew;
        let written = if written.is_by(by) && written.length <= self.length {
            written
        } else {
            anew = RenderedMessages::new(by);
            &mut anew
        };
        let mut long = HashMap::new();
        while let Some(message) = self.list.get(written.length).filter(|_| written.length < self.length) {
            let (at, text) = (written.length, write(message)?);
            if !written.take(&text) {
                long.insert(at, text);
            }
        }
        let mut pieces = Vec::with_capacity(written.whole.len() + 1 + self.extra.len());
        for piece in &written.whole {
            pieces.push(match piece {
                Piece::Kept(bytes) => bytes.clone(),
                Piece::Long(at) => match (long.remove(at), self.list.get(*at)) {
                    (Some(text), _) => element(*at, &text),
                    (None, Some(message)) => element(*at, &write(message)?),
                    (None, None) => continue,
                },
            });
        }
        if !written.rest.is_empty() {
            pieces.push(Bytes::copy_from_slice(written.rest.as_bytes()));
        }
        for (at, message) in self.extra.iter().enumerate() {
            pieces.push(element(self.length + at, &write(message)?));
        }
        Ok(pieces)
    }

    /// First to last.
    pub fn iter(&self) -> impl Iterator<Item = &Message> {
        (0..self.len()).filter_map(|at| self.get(at))
    }
}

/// An element behind so many others.
pub(crate) fn element(before: usize, text: &str) -> Bytes {
    let mut element = String::with_capacity(text.len() + 1);
    separate(&mut element, before);
    element.push_str(text);
    element.into()
}

impl fmt::Debug for Messages {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Messages").field("list", &self.length).field("aside", &self.extra.len()).finish()
    }
}
