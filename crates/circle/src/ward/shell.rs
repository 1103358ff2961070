//! The bounds of a shell: its own, narrowed by the wards of its circle.

use std::time::Duration;

use super::MediumLimits;
use crate::limits::{
    OUTPUT_BYTES_MAX, SHELL_CPU_MS, SHELL_DISK_BYTES, SHELL_FILE_BYTES, SHELL_MEMORY_BYTES, SHELL_PROCESSES,
    SHELL_WALL_MS,
};

/// The limits of one command and of all processes that it starts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ShellBounds {
    /// The resident memory of all processes of the cage together.
    pub memory_bytes: u64,
    /// The processor time of one command, in all processes of the cage.
    pub cpu: Duration,
    /// The wall time of one command.
    pub wall: Duration,
    /// The number of bytes that one command may print.
    pub output_bytes: u64,
    /// The number of processes and threads in the cage at once.
    pub processes: u64,
    /// The size of one file that a command writes.
    pub file_bytes: u64,
    /// The disk space of the project's disk that one command may use up.
    pub disk_bytes: u64,
}

impl Default for ShellBounds {
    fn default() -> Self {
        Self {
            memory_bytes: SHELL_MEMORY_BYTES,
            cpu: Duration::from_millis(SHELL_CPU_MS),
            wall: Duration::from_millis(SHELL_WALL_MS),
            output_bytes: OUTPUT_BYTES_MAX as u64,
            processes: SHELL_PROCESSES,
            file_bytes: SHELL_FILE_BYTES,
            disk_bytes: SHELL_DISK_BYTES,
        }
    }
}

impl ShellBounds {
    /// Returns the narrower of these bounds and the wards, for each bound.
    #[must_use]
    pub fn within(self, wards: &MediumLimits) -> Self {
        let least = |own: u64, ward: Option<u64>| ward.map_or(own, |ward| own.min(ward));
        let sooner = |own: Duration, ward: Option<Duration>| ward.map_or(own, |ward| own.min(ward));
        Self {
            memory_bytes: least(self.memory_bytes, wards.memory_bytes),
            cpu: sooner(self.cpu, wards.cpu),
            wall: sooner(self.wall, wards.wall),
            output_bytes: least(self.output_bytes, wards.output_bytes),
            ..self
        }
    }
}
