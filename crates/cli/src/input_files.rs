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
    fs::read_to_string(path).map_err(|error| unread(&path.display().to_string(), &error))
}

/// The text of a file, or of what is piped in for `-`, of which no more than so many bytes are read: more is refused.
pub(crate) fn bounded_text(path: &Path, bytes_max: usize) -> Result<String, Refusal> {
    let piped = path.as_os_str() == "-";
    let shown = if piped { "standard input".to_owned() } else { path.display().to_string() };
    let mut bytes = Vec::new();
    // One more than fits tells that it does not fit.
    let most = bytes_max as u64 + 1;
    let read = if piped {
        io::stdin().take(most).read_to_end(&mut bytes)
    } else {
        fs::File::open(path).and_then(|file| file.take(most).read_to_end(&mut bytes))
    };
    read.map_err(|error| unread(&shown, &error))?;
    if bytes.len() > bytes_max {
        return Err(codes::limit(shown, bytes.len(), bytes_max).into());
    }
    String::from_utf8(bytes).map_err(|_| codes::target_unusable(shown, "it is not text").into())
}

fn unread(shown: &str, error: &io::Error) -> Refusal {
    if error.kind() == io::ErrorKind::NotFound {
        codes::file_missing(shown).into()
    } else if error.kind() == io::ErrorKind::InvalidData {
        codes::target_unusable(shown, "it is not text").into()
    } else if error.kind() == io::ErrorKind::IsADirectory {
        codes::target_unusable(shown, "it is a folder, not a file").into()
    } else {
        codes::io_failed("read", shown, error.to_string()).into()
    }
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
    io::stdin().read_to_string(&mut text).map_err(|error| unread("standard input", &error))?;
    Ok(text)
}

/// Whether something was piped or redirected in. A terminal, or nothing at all, is no context.
pub(crate) fn is_piped() -> bool {
    use std::os::unix::fs::FileTypeExt;
    fs::metadata("/dev/stdin").is_ok_and(|input| input.file_type().is_fifo() || input.file_type().is_file())
}
