//! From the words of a command line to values: stores, ids, spells, signatures, metrics, files.

pub(crate) mod ids;
pub(crate) mod input_files;
pub(crate) mod metrics;
pub(crate) mod signatures;
pub(crate) mod usage;
