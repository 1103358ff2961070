//! The text that a processor holds costs at most four times its length.
//!
//! Measured with a counting allocator, in a separate test binary: an estimate from the sizes of our own types would
//! leave out the overhead of the standard library, which for short texts is most of it.
//!
//! This is the only `unsafe` of the package, and it is sound because it adds nothing: both methods pass their arguments
//! unchanged to the system's allocator, whose contract is the same as the trait's, and only add up sizes beside it.
#![allow(unsafe_code, reason = "a GlobalAlloc cannot be implemented without it")]

#[allow(dead_code, reason = "each test crate uses its own part")]
mod common;

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicIsize, Ordering};

use cantrip_stream::{Emission, Gradient, Options, Processor};
use common::{at, delta, event, start};

struct Counting;

static LIVE: AtomicIsize = AtomicIsize::new(0);

// SAFETY: every call goes to `System` with the caller's own arguments.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        LIVE.fetch_add(layout.size() as isize, Ordering::Relaxed);
        // SAFETY: as above.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        LIVE.fetch_sub(layout.size() as isize, Ordering::Relaxed);
        // SAFETY: as above.
        unsafe { System.dealloc(at, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// The bytes held per byte of text, when a viewer keeps the last emission of each item.
fn held_per_byte(gradient: &[i64], items: usize, deltas: usize, piece: &str) -> f64 {
    let before = LIVE.load(Ordering::Relaxed);
    let mut processor = Processor::new(Options { gradient: Gradient::new(gradient), ..Options::default() });
    let mut kept: Vec<Option<Emission>> = vec![None; items];
    let mut out = Vec::new();
    for (item, kept) in kept.iter_mut().enumerate() {
        let id = format!("turn/{item}");
        processor.process(&event("turn", start(&id, "")), at(0), &mut out).expect("within every limit");
        let event = event("turn", delta(&id, piece));
        for _ in 0..deltas {
            processor.process(&event, at(0), &mut out).expect("within every limit");
            if let Some(last) = out.pop() {
                *kept = Some(last);
            }
        }
    }
    drop(out);
    let held = LIVE.load(Ordering::Relaxed) - before;
    held as f64 / (items * deltas * piece.len()) as f64
}

// A single test, so that no other thread allocates while it counts.
#[test]
fn held_text_costs_at_most_four_times_its_length() {
    for (what, gradient, items, deltas, piece) in [
        ("one long item, default gradient", &[][..], 1, 100_000, " word"),
        ("one long item, every word shown", &[0], 1, 100_000, " word"),
        ("one long item, every letter shown", &[0], 1, 100_000, " w"),
        ("one long item, never shown", &[1 << 40], 1, 100_000, " word"),
        ("one long item, a segment at a time", &[0], 1, 4_000, &" word".repeat(120)),
        ("items of 200 words, default gradient", &[], 500, 200, " word"),
        ("items of 200 words, every word shown", &[0], 500, 200, " word"),
    ] {
        let ratio = held_per_byte(gradient, items, deltas, piece);
        assert!(ratio <= 4.0, "{what}: {ratio:.2} bytes held per byte of text");
        println!("{what}: {ratio:.2}");
    }
}
