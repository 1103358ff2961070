//! Drawings as SVG. Each has a title and a description, and stands beside a table with the same numbers.

mod chart;
mod curve;
pub(crate) mod spine;
mod threads;

pub(crate) use chart::{Bar, Dot, bars, difference, intervals};
pub(crate) use curve::steps;
pub(crate) use threads::{Row, is_child, rows, threads};
