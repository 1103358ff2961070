//! Renders the result of a tool for an entity.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use cantrip_loom::Body;
use rmcp::model::{CallToolResult, ContentBlock, ResourceContents};
use serde_json::{Value, json};

use cantrip_circle::gate::Effects;

/// Renders structured content unchanged, a single text as text, and anything else as a list of its parts. Binary
/// content is stored as a body, and the entity sees its kind and size: raw bytes in a context are useless.
pub(super) fn render_result(result: CallToolResult, effects: &Effects) -> Value {
    let CallToolResult { content, structured_content, .. } = result;
    // Servers repeat structured content as text, for clients that do not support it.
    let others = || content.iter().filter(|block| !matches!(block, ContentBlock::Text(_)));
    match structured_content {
        Some(structured) if others().next().is_none() => structured,
        Some(structured) => {
            let parts: Vec<Value> = others().map(|block| part(block, effects)).collect();
            json!({"structured": structured, "content": parts})
        }
        None => match content.as_slice() {
            [ContentBlock::Text(only)] => Value::String(only.text.clone()),
            blocks => blocks.iter().map(|block| part(block, effects)).collect(),
        },
    }
}

fn part(block: &ContentBlock, effects: &Effects) -> Value {
    match block {
        ContentBlock::Text(text) => json!({"type": "text", "text": text.text}),
        ContentBlock::Image(image) => bytes("image", &image.mime_type, &image.data, effects),
        ContentBlock::Audio(audio) => bytes("audio", &audio.mime_type, &audio.data, effects),
        ContentBlock::Resource(embedded) => match &embedded.resource {
            ResourceContents::TextResourceContents { uri, text, .. } => {
                json!({"type": "resource", "uri": uri, "text": text})
            }
            ResourceContents::BlobResourceContents { uri, mime_type, blob, .. } => {
                let mut shown = bytes("resource", mime_type.as_deref().unwrap_or_default(), blob, effects);
                shown["uri"] = json!(uri);
                shown
            }
            _ => json!({"type": "resource"}),
        },
        ContentBlock::ResourceLink(link) => json!({"type": "resource_link", "uri": link.uri, "name": link.name}),
        // A kind from a later revision of the protocol.
        _ => json!({"type": "unknown"}),
    }
}

fn bytes(kind: &str, mime_type: &str, data: &str, effects: &Effects) -> Value {
    match STANDARD.decode(data).ok().and_then(|bytes| Body::new(bytes).ok()) {
        Some(body) => {
            let (hash, length) = (body.hash().to_string(), body.bytes().len());
            effects.attach(body);
            json!({"type": kind, "mime_type": mime_type, "bytes": length, "body": hash})
        }
        None => json!({"type": kind, "mime_type": mime_type, "unreadable": true}),
    }
}

/// Returns all text of the result.
pub(super) fn result_text(result: &CallToolResult) -> String {
    let texts = result.content.iter().filter_map(|block| block.as_text().map(|text| text.text.as_str()));
    let said: Vec<&str> = texts.collect();
    if said.is_empty() { "an error without words".to_owned() } else { said.join("\n") }
}
