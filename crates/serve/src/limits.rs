//! The bounds of this room.

use cantrip_service::cantrip::canon;

canon::limits! {
    /// Who may follow one run at once within this process.
    FOLLOWERS_MAX: usize = 4_096, "followers";
}
