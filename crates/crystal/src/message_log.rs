//! How does every request carry the whole list without a copy of it?
//!
//! An entity's list only grows at its end (between two folds), so it is stored once: a request, or its record, holds
//! the list and the length that it had. A vector behind a lock was turned down: a reader would block the writer while
//! it serializes a request, or copy every pointer to avoid that.
//!
//! The serialized text stays with the list, in pieces that requests share. So a request of a thousand messages
//! serializes only the two new ones, copies the text that does not fill a piece yet, and takes a reference to each of
//! the other pieces.

use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use bytes::Bytes;
use cantrip_loom::Message;

use crate::limits::WRITTEN_BYTES_KEPT_MAX;

/// The number of slots in the first segment; each later segment is twice as long as the one before.
const FIRST: usize = 16;
const STRETCHES: usize = 40;

type Stretch = Box<[OnceLock<Arc<Message>>]>;

/// The approximate size of a shared piece of serialized text. A larger size makes each request copy more text that does
/// not fill a piece yet; a smaller one makes it count more pieces.
const PIECE_BYTES: usize = 16 << 10;

/// The text of a list as the first protocol serialized it: its messages with a comma before each but the first.
struct RenderedMessages {
    by: Arc<str>,
    whole: Vec<Piece>,
    /// The text after the pieces, up to `length`.
    rest: String,
    /// The number of serialized messages.
    length: usize,
}

enum Piece {
    Kept(Bytes),
    /// The index of a message that is too long to be kept twice.
    Long(usize),
}

impl RenderedMessages {
    fn new(by: &Arc<str>) -> Self {
        Self { by: Arc::clone(by), whole: Vec::new(), rest: String::new(), length: 0 }
    }

    fn is_by(&self, wire: &Arc<str>) -> bool {
        Arc::ptr_eq(&self.by, wire) || self.by == *wire
    }

    /// Adds the text of the next message. Returns true if the text is kept.
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
            // Shrinks the text to its length. With ten thousand agents, each would otherwise keep the capacity that its
            // text once grew to.
            self.whole.push(Piece::Kept(std::mem::take(&mut self.rest).into_bytes().into_boxed_slice().into()));
        }
    }
}

/// Adds a comma before every element but the first.
fn separate(text: &mut String, before: usize) {
    if before > 0 {
        text.push(',');
    }
}

/// A shared list of messages that is only ever appended to. All clones are the same list.
///
/// Reading takes no lock, and a message that was read stays in place, whatever is appended meanwhile.
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

/// Returns the segment that holds index `at`, and the index within it.
fn place(at: usize) -> (usize, usize) {
    let stretch = (at / FIRST + 1).ilog2();
    (stretch as usize, at - FIRST * ((1 << stretch) - 1))
}

impl MessageLog {
    pub fn new() -> Self {
        Self::default()
    }

    /// Appends a message and returns the new length.
    pub fn push(&self, message: impl Into<Arc<Message>>) -> usize {
        let _writing = self.0.writing.lock().unwrap_or_else(PoisonError::into_inner);
        let at = self.0.length.load(Ordering::Acquire);
        let (stretch, within) = place(at);
        let places = self.0.stretches[stretch].get_or_init(|| (0..FIRST << stretch).map(|_| OnceLock::new()).collect());
        // Slots are filled in order under the lock, so this one is free.
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

    /// Returns the message at index `at`, counted from 0.
    pub fn get(&self, at: usize) -> Option<&Arc<Message>> {
        let (stretch, within) = place(at);
        self.0.stretches.get(stretch)?.get()?.get(within)?.get()
    }

    /// Returns the list as it is now.
    pub fn all(&self) -> Messages {
        self.first(self.len())
    }

    /// Returns the first `length` messages, or all if there are fewer.
    pub fn first(&self, length: usize) -> Messages {
        Messages { list: self.clone(), length: length.min(self.len()), extra: Arc::default() }
    }
}

impl fmt::Debug for MessageLog {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MessageLog").field("length", &self.len()).finish()
    }
}

/// The messages of one request: a prefix of a shared list, and extra messages for this attempt only.
#[derive(Clone)]
pub struct Messages {
    list: MessageLog,
    length: usize,
    extra: Arc<[Message]>,
}

impl Messages {
    /// Adds messages that do not enter the list, such as a demand for a missing call.
    #[must_use]
    pub fn with_extra(self, aside: impl Into<Arc<[Message]>>) -> Self {
        Self { extra: aside.into(), ..self }
    }

    /// Returns the list that these messages are a prefix of.
    pub fn list(&self) -> &MessageLog {
        &self.list
    }

    /// Returns the number of messages from the list.
    pub fn list_length(&self) -> usize {
        self.length
    }

    /// Returns the number of messages, extra messages included.
    pub fn len(&self) -> usize {
        self.length + self.extra.len()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the message at index `at`, counted from 0.
    pub fn get(&self, at: usize) -> Option<&Message> {
        if at < self.length { self.list.get(at).map(|message| &**message) } else { self.extra.get(at - self.length) }
    }

    /// Serializes the messages in order, with commas between them, in pieces. Text that was serialized for an earlier
    /// request of the same list is reused. That holds for the first protocol that asks (`by` names everything that its
    /// text depends on besides the message), and for requests that are not shorter than the last one; any other request
    /// serializes all messages again. A message that is too long to be kept twice is also serialized again.
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

    /// Iterates over the messages in order.
    pub fn iter(&self) -> impl Iterator<Item = &Message> {
        (0..self.len()).filter_map(|at| self.get(at))
    }
}

/// Returns an array element that follows `before` others.
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
