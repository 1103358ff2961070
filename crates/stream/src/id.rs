//! How does an event name its turn, item or call? By text that is validated once.
//!
//! Most ids are created here, but some come from a provider (`callId`) or from a file of recorded events. So they are
//! opaque text of 1 to 256 bytes and not the typed ids of `canon`, which convert into them. Each is reference-counted:
//! an upsert names its turn, session and item without copying them.

use std::borrow::Borrow;
use std::fmt;
use std::sync::Arc;

use serde::Serialize;

use crate::limits;

/// The text is empty or longer than an id may be.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("an id has 1 to {max} bytes, this text has {bytes}", max = limits::ID_BYTES_MAX)]
pub struct NotAnId {
    pub bytes: usize,
}

macro_rules! ids {
    ($($(#[$doc:meta])* $name:ident;)+) => {$(
        $(#[$doc])*
        #[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
        #[serde(transparent)]
        pub struct $name(Arc<str>);

        impl $name {
            /// Validates the text and makes an id from it.
            pub fn new(text: &str) -> Result<Self, NotAnId> {
                if (1..=limits::ID_BYTES_MAX).contains(&text.len()) {
                    Ok(Self(text.into()))
                } else {
                    Err(NotAnId { bytes: text.len() })
                }
            }

            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Debug::fmt(&self.0, f)
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }

        impl Borrow<str> for $name {
            fn borrow(&self) -> &str {
                &self.0
            }
        }

        impl std::str::FromStr for $name {
            type Err = NotAnId;

            fn from_str(text: &str) -> Result<Self, Self::Err> {
                Self::new(text)
            }
        }
    )+};
}

ids! {
    /// One event; nothing here orders or compares by it.
    EventId;
    /// A run: one cast with its children.
    SessionId;
    /// An utterance with all it caused, named by its first turn in the loom.
    TurnId;
    /// One thing that a viewer shows: a message, a stretch of thinking, a call.
    ItemId;
    /// A call, unique within its turn.
    CallId;
    /// An entity, on the turns of a child.
    EntityId;
    /// A model, as its provider names it.
    ModelId;
    /// The provider that runs the model.
    ProviderId;
}

macro_rules! from_canon {
    ($($canon:ident => $name:ident;)+) => {$(
        impl From<&cantrip_canon::$canon> for $name {
            /// Our own ids are far shorter than the bound, so this cannot fail.
            fn from(id: &cantrip_canon::$canon) -> Self {
                Self(id.to_string().into())
            }
        }
    )+};
}

from_canon! {
    RunId => SessionId;
    TurnId => TurnId;
    EntityId => EntityId;
}

impl EventId {
    /// Makes an id from these bits, as 32 hexadecimal digits.
    pub fn from_bits(bits: u128) -> Self {
        let mut digits = [0; 32];
        for (at, digit) in digits.iter_mut().enumerate() {
            *digit = b"0123456789abcdef"[(bits >> (4 * (31 - at)) & 15) as usize];
        }
        Self(std::str::from_utf8(&digits).expect("digits are ASCII").into())
    }
}

impl ItemId {
    /// The id of the n-th item of a turn.
    pub fn nth(turn: &TurnId, n: u64) -> Result<Self, NotAnId> {
        Self::new(&format!("{turn}/{n}"))
    }
}
