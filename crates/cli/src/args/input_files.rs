//! Input beside the arguments: a file, or standard input.

use std::fs;
use std::io::{self, Read};
use std::path::Path;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::Duration;

use cantrip::loom::{Body, Part};
use cantrip_reply::{Refusal, codes};
use cantrip_terminal::present::say;
use serde_json::Value;

use crate::limits::{IMAGE_BYTES_MAX, INPUT_NOTICE_MS};

/// The line for a standard input that stays open.
const INPUT_NOTICE: &str = "reading standard input until it is closed; if there is nothing to read, add: < /dev/null";

/// Reads a file as context.
pub(crate) fn context_file(path: &Path) -> Result<Option<Value>, Refusal> {
    Ok(context(text_file(path)?))
}

/// Reads the text of a file.
pub(crate) fn text_file(path: &Path) -> Result<String, Refusal> {
    fs::read_to_string(path).map_err(|error| unread(&path.display().to_string(), &error))
}

/// Reads an image file. Returns the part of an intent that shows it, and its bytes.
pub(crate) fn image_file(path: &Path) -> Result<(Part, Body), Refusal> {
    let shown = path.display().to_string();
    let mut bytes = Vec::new();
    // Read one byte more than allowed, to detect a file that is too long.
    let read = fs::File::open(path).and_then(|file| file.take(IMAGE_BYTES_MAX as u64 + 1).read_to_end(&mut bytes));
    read.map_err(|error| unread(&shown, &error))?;
    if bytes.len() > IMAGE_BYTES_MAX {
        return Err(codes::limit(shown, bytes.len(), IMAGE_BYTES_MAX).into());
    }
    let Some(media_type) = image_type(&bytes) else {
        return Err(codes::target_unusable(shown, "it is not a PNG, JPEG, GIF or WebP image").into());
    };
    let body = Body::new(bytes).map_err(|error| codes::target_unusable(shown, error.to_string()))?;
    Ok((Part::Image { media_type: media_type.to_owned(), image: body.reference() }, body))
}

/// Returns the media type of an image by its first bytes, because the name of a file may say anything.
fn image_type(bytes: &[u8]) -> Option<&'static str> {
    match bytes {
        [0x89, b'P', b'N', b'G', b'\r', b'\n', 0x1a, b'\n', ..] => Some("image/png"),
        [0xff, 0xd8, 0xff, ..] => Some("image/jpeg"),
        [b'G', b'I', b'F', b'8', ..] => Some("image/gif"),
        [b'R', b'I', b'F', b'F', _, _, _, _, b'W', b'E', b'B', b'P', ..] => Some("image/webp"),
        _ => None,
    }
}

/// Reads the text of a file, or of standard input for `-`. More than `bytes_max` bytes are refused.
pub(crate) fn bounded_text(path: &Path, bytes_max: usize) -> Result<String, Refusal> {
    let (shown, bytes) = bounded_bytes(path, bytes_max)?;
    String::from_utf8(bytes).map_err(|_| codes::target_unusable(shown, "it is not text").into())
}

/// Reads the name and the bytes of a file, or of standard input for `-`. More than `bytes_max` bytes are refused.
pub(crate) fn bounded_bytes(path: &Path, bytes_max: usize) -> Result<(String, Vec<u8>), Refusal> {
    let piped = path.as_os_str() == "-";
    let shown = if piped { "standard input".to_owned() } else { path.display().to_string() };
    let mut bytes = Vec::new();
    // Read one byte more than allowed, to detect input that is too long.
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
    Ok((shown, bytes))
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

/// Returns JSON as a value and any other text as a string; None for empty text.
pub(crate) fn context(text: String) -> Option<Value> {
    if text.is_empty() {
        return None;
    }
    Some(cantrip_canon::json::read(&text).unwrap_or(Value::String(text)))
}

/// Reads standard input to its end. If the end does not come soon, a line says that it is awaited, unless the output is
/// to be quiet: a program that starts this one may leave its own input open without knowing it.
pub(crate) fn standard_input(is_quiet: bool) -> Result<String, Refusal> {
    let (ended, is_ended) = mpsc::channel::<()>();
    std::thread::spawn(move || {
        let waited = is_ended.recv_timeout(Duration::from_millis(INPUT_NOTICE_MS));
        if waited == Err(RecvTimeoutError::Timeout) && !is_quiet {
            say(INPUT_NOTICE);
        }
    });
    let mut text = String::new();
    let read = io::stdin().read_to_string(&mut text);
    drop(ended);
    read.map_err(|error| unread("standard input", &error))?;
    Ok(text)
}

/// Returns true if standard input is a pipe or a file. A terminal, or no input at all, is not context.
pub(crate) fn is_piped() -> bool {
    use std::os::unix::fs::FileTypeExt;
    fs::metadata("/dev/stdin").is_ok_and(|input| input.file_type().is_fifo() || input.file_type().is_file())
}
