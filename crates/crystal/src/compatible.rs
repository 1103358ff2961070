//! OpenAI's chat completions protocol, which most other servers speak too.
//!
//! `genai` implements this protocol. It was turned down after reading its streamer (0.7.2):
//!
//! * It takes `delta.tool_calls[].index` as the length of a vector: one chunk with a large index ends the process.
//! * Its chunks of calls carry no index, so two calls with one id become one, and the contract's rule about duplicate
//!   ids never sees them.
//! * It joins the bytes of a frame without a bound, and again for each read.
//! * A server that does not stream and answers with one JSON body looks like a server that sent nothing.
//!
//! So the protocol is parsed here, with a bound on every part of it. With an event reader in place, the protocols of
//! the other families are parsed here too: the additional code is small, and parts that a provider needs back verbatim
//! are kept where they are read.

mod body;
mod reader;

pub(crate) use reader::Chat;
