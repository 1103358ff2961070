//! Watching a canary: when is it looked at, and when is it worse?
//!
//! A guard looks when the canary has 50, 100, 200, 400 ... labelled units, each time at a smaller level, so that all
//! looks together call a canary worse that is not in at most 5 % of the cases. A look takes the first so many units and
//! those of the primary until then. So its result follows from the receipts and not from the moment at which somebody
//! looked, and two processes that look at once find the same. Looking at whatever is there each minute was turned down:
//! after a thousand looks at one number chance alone has passed every bound.
//!
//! A guard never promotes. It tells, and it can remove a canary.

mod keeper;
mod look;

pub use keeper::{GuardKeeper, GuardSetting, LiveStanding, LiveView};
pub use look::{GuardEvent, GuardLook, Worse, look_at_units, units_of_look};
