//! Tests of signatures, receipts and pointers as their documentation describes them.

#![allow(clippy::unwrap_used, reason = "a test that cannot begin may stop")]

mod artifacts;
mod pointers;
mod promotion;
mod receipts;
mod signatures;
