//! What the caller gives beside the arguments: a file, or what is piped in.

use std::fs;
use std::io::{self, Read};
use std::path::Path;

use cantrip_reply::{Refusal, codes};
use serde_json::Value;

/// What a file holds, as context.
pub(crate) fn context_file(path: &Path) -> Result<Option<Value>, Refusal> {
    Ok(context(text_file(path)?))
}

/// The text of a file.
pub(crate) fn text_file(path: &Path) -> Result<String, Refusal> {
    fs::read_to_string(path).map_err(|error| {
        let shown = path.display().to_string();
        if error.kind() == io::ErrorKind::NotFound {
            Refusal::from(codes::file_missing(shown))
        } else if error.kind() == io::ErrorKind::InvalidData {
            codes::target_unusable(shown, "it is not text").into()
        } else if error.kind() == io::ErrorKind::IsADirectory {
            codes::target_unusable(shown, "it is a folder, not a file").into()
        } else {
            codes::io_failed("read", shown, error.to_string()).into()
        }
    })
}

/// JSON as a value, else the text; nothing of nothing.
pub(crate) fn context(text: String) -> Option<Value> {
    if text.is_empty() {
        return None;
    }
    Some(cantrip_canon::json::read(&text).unwrap_or(Value::String(text)))
}

pub(crate) fn standard_input() -> Result<String, Refusal> {
    let mut text = String::new();
    io::stdin().read_to_string(&mut text).map_err(|error| {
        if error.kind() == io::ErrorKind::InvalidData {
            return Refusal::from(codes::target_unusable("standard input", "it is not text"));
        }
        codes::io_failed("read", "standard input", error.to_string()).into()
    })?;
    Ok(text)
}

/// Whether something was piped or redirected in. A terminal, or nothing at all, is no context.
pub(crate) fn is_piped() -> bool {
    use std::os::unix::fs::FileTypeExt;
    fs::metadata("/dev/stdin").is_ok_and(|input| input.file_type().is_fifo() || input.file_type().is_file())
}
