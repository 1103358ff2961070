//! The limits of one program.

use std::time::Duration;

use cantrip_reply::{Refusal, codes};
use serde::{Deserialize, Serialize};

use crate::limits::{CPU_MS, HEAP_BYTES, OUTPUT_BYTES_MAX, OUTPUT_SHOWN_BYTES, STACK_BYTES, WALL_MS};
use crate::ward::MediumLimits;

/// The limits of one program: the wards of the medium, with the defaults filled in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProgramLimits {
    pub memory_bytes: usize,
    pub cpu_ms: u64,
    /// Time inside gates does not count.
    pub wall_ms: u64,
    pub stack_bytes: usize,
    pub output_shown_bytes: usize,
    pub output_bytes: usize,
}

impl Default for ProgramLimits {
    fn default() -> Self {
        Self {
            memory_bytes: HEAP_BYTES,
            cpu_ms: CPU_MS,
            wall_ms: WALL_MS,
            stack_bytes: STACK_BYTES,
            output_shown_bytes: OUTPUT_SHOWN_BYTES,
            output_bytes: OUTPUT_BYTES_MAX,
        }
    }
}

impl ProgramLimits {
    /// Returns the limits that these wards set.
    pub fn within(wards: &MediumLimits) -> Self {
        let defaults = Self::default();
        let bytes = |ward: Option<u64>, default: usize| {
            ward.map_or(default, |bytes| usize::try_from(bytes).unwrap_or(usize::MAX))
        };
        let ms = |ward: Option<Duration>, default: u64| {
            ward.map_or(default, |time| u64::try_from(time.as_millis()).unwrap_or(u64::MAX))
        };
        Self {
            memory_bytes: bytes(wards.memory_bytes, defaults.memory_bytes),
            cpu_ms: ms(wards.cpu, defaults.cpu_ms),
            wall_ms: ms(wards.wall, defaults.wall_ms),
            stack_bytes: bytes(wards.stack_bytes, defaults.stack_bytes),
            output_shown_bytes: defaults.output_shown_bytes,
            output_bytes: bytes(wards.output_bytes, defaults.output_bytes),
        }
    }

    /// Returns the refusal for a program that reached this limit; none if it was cancelled from outside.
    pub(super) fn refusal(&self, limit: Limit) -> Option<Refusal> {
        Some(match limit {
            Limit::Memory => codes::memory_limit(self.memory_bytes, "heap").into(),
            Limit::Stack => codes::memory_limit(self.stack_bytes, "stack").into(),
            Limit::Cpu => codes::time_limit(self.cpu_ms, "cpu").into(),
            Limit::Wall => codes::time_limit(self.wall_ms, "wall").into(),
            Limit::Output => codes::output_limit(self.output_bytes).into(),
            Limit::Cancelled => return None,
        })
    }
}

/// A limit of the sandbox that a program reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Limit {
    /// The heap (MCP-EXEC-I-001).
    Memory,
    /// The interpreter's stack, if the program did not catch the error (MCP-EXEC-I-001).
    Stack,
    /// Processor time (MCP-EXEC-I-002).
    Cpu,
    /// Wall time outside of gates (MCP-EXEC-I-002).
    Wall,
    /// The hard cap on output (MCP-EXEC-I-003).
    Output,
    /// The program was ended from outside: by a cancellation, a deadline or the end of its parent.
    Cancelled,
}

impl Limit {
    /// Returns true if this limit stops a program at a point that a second run would not reach. The sandbox must then
    /// return to its state before the program.
    pub const fn rolls_back(self) -> bool {
        match self {
            Self::Memory | Self::Cpu | Self::Wall | Self::Cancelled => true,
            Self::Stack | Self::Output => false,
        }
    }

    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Memory => "memory",
            Self::Stack => "stack",
            Self::Cpu => "cpu",
            Self::Wall => "wall",
            Self::Output => "output",
            Self::Cancelled => "cancelled",
        }
    }
}
