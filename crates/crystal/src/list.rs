//! How does every request carry the whole list, and none a copy of it?
//!
//! An entity's list only grows at its end (between two folds), so it is kept once: whoever sends or records a request
//! holds the list and the length it had. A vector behind a lock was turned down: a reader would hold up the writer for
//! as long as it takes to write a request to the wire, or copy every pointer to avoid that.
//!
//! What a wire made of a message stays with it: a request of a thousand messages is written by writing the two new ones
//! and copying the text of the others.

use std::borrow::Cow;
use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use cantrip_loom::Message;

use crate::limits::WRITTEN_BYTES_KEPT_MAX;

/// Places of the first stretch; each later one is twice as long as the one before.
const FIRST: usize = 16;
const STRETCHES: usize = 40;

type Stretch = Box<[OnceLock<Said>]>;

/// A message, and how the first wire that was asked wrote it.
struct Said {
    message: Arc<Message>,
    written: OnceLock<Written>,
}

struct Written {
    by: Arc<str>,
    text: Box<str>,
}

impl Written {
    fn is_by(&self, wire: &Arc<str>) -> bool {
        Arc::ptr_eq(&self.by, wire) || self.by == *wire
    }
}

/// A list of messages that is shared and only ever appended to. All clones are the same list.
///
/// Reading takes no lock and a message that was read stays where it is, whatever is appended meanwhile.
///
/// ```
/// # use cantrip_crystal::List;
/// # use cantrip_loom::Message;
/// let list = List::new();
/// list.push(Message::User { content: "count the words".into() });
/// let asked = list.all();
/// list.push(Message::User { content: "and the lines".into() });
/// assert_eq!((asked.len(), list.len()), (1, 2));
/// ```
#[derive(Clone, Default)]
pub struct List(Arc<Stretches>);

struct Stretches {
    stretches: [OnceLock<Stretch>; STRETCHES],
    length: AtomicUsize,
    writing: Mutex<()>,
}

impl Default for Stretches {
    fn default() -> Self {
        Self { stretches: [const { OnceLock::new() }; STRETCHES], length: AtomicUsize::new(0), writing: Mutex::new(()) }
    }
}

/// The stretch that holds place `at`, and the place within it.
fn place(at: usize) -> (usize, usize) {
    let stretch = (at / FIRST + 1).ilog2();
    (stretch as usize, at - FIRST * ((1 << stretch) - 1))
}

impl List {
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
        let _ = places[within].set(Said { message: message.into(), written: OnceLock::new() });
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
        self.said(at).map(|said| &said.message)
    }

    fn said(&self, at: usize) -> Option<&Said> {
        let (stretch, within) = place(at);
        self.0.stretches.get(stretch)?.get()?.get(within)?.get()
    }

    /// The list as it is now.
    pub fn all(&self) -> Messages {
        self.first(self.len())
    }

    /// The first `length` messages, or as many as there are.
    pub fn first(&self, length: usize) -> Messages {
        Messages { list: self.clone(), length: length.min(self.len()), aside: Arc::default() }
    }
}

impl fmt::Debug for List {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("List").field("length", &self.len()).finish()
    }
}

/// What one request sends: the beginning of a shared list, and what is said for this one attempt only.
#[derive(Clone)]
pub struct Messages {
    list: List,
    length: usize,
    aside: Arc<[Message]>,
}

impl Messages {
    /// The same messages and then these, which enter no list: a demand for a call that did not come.
    #[must_use]
    pub fn with_aside(self, aside: impl Into<Arc<[Message]>>) -> Self {
        Self { aside: aside.into(), ..self }
    }

    /// The list they are the beginning of.
    pub fn list(&self) -> &List {
        &self.list
    }

    /// How many of them are the list's.
    pub fn list_length(&self) -> usize {
        self.length
    }

    /// How many there are, those said aside included.
    pub fn len(&self) -> usize {
        self.length + self.aside.len()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The message at `at`, counted from 0.
    pub fn get(&self, at: usize) -> Option<&Message> {
        if at < self.length { self.list.get(at).map(|message| &**message) } else { self.aside.get(at - self.length) }
    }

    /// The messages as a wire writes them, first to last. What was written for an earlier request of the same list is not
    /// written again; that holds for the wire that asks first (`by`, which says all that its writing depends on beside the
    /// message), any other writes anew. A text that is too long to be kept twice is written anew as well.
    pub fn written<E>(
        &self,
        by: &Arc<str>,
        mut write: impl FnMut(&Message) -> Result<String, E>,
        mut take: impl FnMut(&str),
    ) -> Result<(), E> {
        for said in (0..self.length).filter_map(|at| self.list.said(at)) {
            let text = match said.written.get() {
                Some(written) if written.is_by(by) => Cow::Borrowed(&*written.text),
                Some(_) => Cow::Owned(write(&said.message)?),
                None => {
                    let text = write(&said.message)?;
                    if text.len() <= WRITTEN_BYTES_KEPT_MAX {
                        let _ = said.written.set(Written { by: Arc::clone(by), text: text.as_str().into() });
                    }
                    Cow::Owned(text)
                }
            };
            take(&text);
        }
        for message in &*self.aside {
            take(&write(message)?);
        }
        Ok(())
    }

    /// How many bytes [`written`](Self::written) will give at least, separators included.
    pub(crate) fn written_bytes(&self, by: &Arc<str>) -> usize {
        let said = (0..self.length).filter_map(|at| self.list.said(at)?.written.get());
        said.filter(|written| written.is_by(by)).map(|written| written.text.len() + 1).sum()
    }

    /// First to last.
    pub fn iter(&self) -> impl Iterator<Item = &Message> {
        (0..self.len()).filter_map(|at| self.get(at))
    }
}

impl fmt::Debug for Messages {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Messages").field("list", &self.length).field("aside", &self.aside.len()).finish()
    }
}
