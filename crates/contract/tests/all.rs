//! Tests of signatures, receipts, pointers, datasets and evaluations as their documentation describes them.

#![allow(clippy::unwrap_used, reason = "a test that cannot begin may stop")]

mod artifacts;
mod compile_reports;
mod datasets;
mod evaluations;
mod improve_goldens;
mod metrics;
mod pointers;
mod promotion;
mod receipts;
mod signatures;
