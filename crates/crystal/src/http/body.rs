//! The bytes of a request body, and the parts of it that several protocols write alike.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::fmt;
use std::pin::Pin;
use std::task::{Context, Poll};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use cantrip_loom::{Content, Part};
use http_body::{Frame, SizeHint};
use serde_json::{Map, Value};

use crate::Request;

/// The body of a request: a JSON object. Lists that make up most of it are written first, in pieces that are shared
/// with earlier requests; the other fields follow.
pub(crate) struct Body {
    pub fields: Value,
    pub lists: Vec<RenderedList>,
}

/// A list at the beginning of the object: its elements as text, with the commas between them.
pub(crate) struct RenderedList {
    pub name: &'static str,
    pub elements: Vec<Bytes>,
}

impl From<Value> for Body {
    fn from(fields: Value) -> Self {
        Self { fields, lists: Vec::new() }
    }
}

/// The bytes of a request body, in order. The pieces of a long list are shared with other requests and never joined.
#[derive(Debug, Clone)]
pub struct BodyChunks {
    left: VecDeque<Bytes>,
    bytes: u64,
}

impl BodyChunks {
    /// Returns the number of bytes.
    pub fn len(&self) -> u64 {
        self.bytes
    }

    pub fn is_empty(&self) -> bool {
        self.bytes == 0
    }
}

impl From<Body> for BodyChunks {
    fn from(Body { fields, lists }: Body) -> Self {
        let mut left = VecDeque::with_capacity(lists.iter().map(|list| list.elements.len() + 1).sum::<usize>() + 1);
        // The text between the elements of one list and those of the next, or the remaining fields.
        let mut between = String::from("{");
        for RenderedList { name, elements } in lists {
            between.push_str(&format!("\"{name}\":["));
            left.push_back(std::mem::replace(&mut between, String::from("],")).into());
            left.extend(elements);
        }
        let fields = fields.to_string();
        match (left.is_empty(), fields.strip_prefix('{')) {
            (true, _) | (false, None) => between = fields,
            (false, Some("}")) => between = String::from("]}"),
            // The fields after the opening brace of the object.
            (false, Some(rest)) => between.push_str(rest),
        }
        left.push_back(between.into());
        let bytes = left.iter().map(|piece| piece.len() as u64).sum();
        Self { left, bytes }
    }
}

impl fmt::Display for BodyChunks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Each piece is valid UTF-8.
        self.left.iter().try_for_each(|piece| f.write_str(&String::from_utf8_lossy(piece)))
    }
}

impl http_body::Body for BodyChunks {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let this = self.get_mut();
        let next = this.left.pop_front();
        this.bytes -= next.as_ref().map_or(0, |piece| piece.len() as u64);
        Poll::Ready(next.map(|piece| Ok(Frame::data(piece))))
    }

    fn is_end_stream(&self) -> bool {
        self.left.is_empty()
    }

    /// Returns the exact length: some gateways reject a body without a length.
    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.bytes)
    }
}

/// Renders a content as a list, with `text` for each text and `image` for each image, which gets its media type and its
/// bytes in Base64.
pub(crate) fn render_content(
    content: &Content,
    request: &Request,
    text: impl Fn(&str) -> Value,
    image: impl Fn(&str, String) -> Value,
) -> Result<Vec<Value>, String> {
    let parts = match content {
        Content::Text(only) => return Ok(vec![text(only)]),
        Content::Parts(parts) => parts,
    };
    let shown = parts.iter().map(|part| match part {
        Part::Text { text: said } => Ok(text(said)),
        Part::Image { media_type, image: stored } => {
            let bytes = request.bodies.body(&stored.hash);
            let bytes = bytes.map_err(|error| format!("an image cannot be read: {error}"))?;
            Ok(image(media_type, STANDARD.encode(bytes)))
        }
    });
    shown.collect()
}

/// Returns the arguments of a call for a protocol that accepts only an object. The tool result reports that other
/// arguments were none.
pub(crate) fn object_arguments(args: &Value) -> Value {
    match args {
        args @ Value::Object(_) => args.clone(),
        other @ (Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) | Value::Array(_)) => {
            Map::from_iter([("unreadable".to_owned(), other.clone())]).into()
        }
    }
}
