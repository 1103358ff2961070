//! The bounds of this crate.

use cantrip_service::cantrip::canon;

canon::limits! {
    /// The maximum size of one message from an editor. A prompt may contain whole files.
    ACP_LINE_BYTES_MAX: usize = 16 << 20, "bytes";
    /// The maximum number of open sessions of one editor.
    ACP_SESSIONS_MAX: usize = 256, "sessions";
    /// The number of sessions on one page of a list.
    ACP_LISTED_MAX: usize = 50, "sessions";
    /// The maximum length of the title of a session or a call, which is shown as one line.
    ACP_TITLE_CHARS_MAX: usize = 80, "characters";
    /// The maximum size of a file whose diff is shown before the file is changed.
    ACP_DIFF_BYTES_MAX: u64 = 1 << 20, "bytes";
}
