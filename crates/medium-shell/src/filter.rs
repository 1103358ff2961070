//! The system calls that a cage refuses.
//!
//! A file that is written in a cage stays in the project afterwards, and it belongs to the person who runs the cage. A
//! setuid program made there would give that person's rights to every user of the machine, so no file may get such a
//! bit in the first place. The kernel offers one way to enforce that for all programs of a cage: a seccomp filter.
//! bubblewrap loads it before the first program starts, and no program can remove it.
//!
//! The filter sees the number and the arguments of a system call but cannot follow a pointer. So:
//!
//! - calls that carry a mode in a register are refused with `EPERM` when the mode has the setuid, setgid or sticky bit;
//! - `mknod` makes files, pipes and sockets only; every other kind gets `EPERM`;
//! - `openat2` and `io_uring` carry modes behind pointers and get `ENOSYS`; programs fall back to the older calls;
//! - extended attributes (file capabilities are one of them) get `EOPNOTSUPP`, as on a file system that has none, which
//!   `cp -a` and `tar` accept without an error;
//! - calls that are newer than this table get `ENOSYS`, as on an older kernel;
//! - calls of another architecture (32-bit programs) would need their own table and end the program.
//!
//! The program is written here as data, because it is small: a library for it would be larger than the table.

use std::io;
use std::os::fd::OwnedFd;

use cantrip_circle::child_process;

/// The setuid, setgid and sticky bits.
const SPECIAL_BITS: u32 = 0o7000;
/// `O_CREAT` and the bit that distinguishes `O_TMPFILE` from `O_DIRECTORY`: `open` uses its mode only with these.
const CREATING_FLAGS: u32 = 0o100 | 0o20_000_000;
const FILE_TYPE_MASK: u32 = 0o170_000;
/// The kinds of file that `mknod` may make: a plain file (which has two encodings), a pipe and a socket.
const NODE_TYPES_ALLOWED: [u32; 4] = [0, 0o100_000, 0o010_000, 0o140_000];

const EPERM: u32 = 1;
const ENOSYS: u32 = 38;
const EOPNOTSUPP: u32 = 95;

/// The newest system call that this table was checked against (`file_setattr`). New calls have the same number on every
/// architecture.
const NEWEST_KNOWN_CALL: u32 = 469;

/// The action of the filter for a system call. The numbers are positions of arguments, from 0.
#[derive(Debug, Clone, Copy)]
enum Rule {
    /// Returns this error.
    Refuse(u32),
    /// Refuses a mode with special bits.
    Mode(u32),
    /// Refuses a mode with special bits if the flags can create a file.
    Create { flags: u32, mode: u32 },
    /// Refuses a mode with special bits or of a file type that is not allowed.
    Node(u32),
}

/// The calls that have the same number on every architecture.
const RULES_SHARED: [(u32, Rule); 6] = [
    (425, Rule::Refuse(ENOSYS)),     // io_uring_setup
    (426, Rule::Refuse(ENOSYS)),     // io_uring_enter
    (427, Rule::Refuse(ENOSYS)),     // io_uring_register
    (437, Rule::Refuse(ENOSYS)),     // openat2
    (452, Rule::Mode(2)),            // fchmodat2
    (463, Rule::Refuse(EOPNOTSUPP)), // setxattrat
];

#[cfg(target_arch = "x86_64")]
const ARCHITECTURE: Option<u32> = Some(0xc000_003e);
#[cfg(target_arch = "x86_64")]
const RULES: [(u32, Rule); 13] = [
    (2, Rule::Create { flags: 1, mode: 2 }),   // open
    (257, Rule::Create { flags: 2, mode: 3 }), // openat
    (85, Rule::Mode(1)),                       // creat
    (90, Rule::Mode(1)),                       // chmod
    (91, Rule::Mode(1)),                       // fchmod
    (268, Rule::Mode(2)),                      // fchmodat
    (83, Rule::Mode(1)),                       // mkdir
    (258, Rule::Mode(2)),                      // mkdirat
    (133, Rule::Node(1)),                      // mknod
    (259, Rule::Node(2)),                      // mknodat
    (188, Rule::Refuse(EOPNOTSUPP)),           // setxattr
    (189, Rule::Refuse(EOPNOTSUPP)),           // lsetxattr
    (190, Rule::Refuse(EOPNOTSUPP)),           // fsetxattr
];

#[cfg(target_arch = "aarch64")]
const ARCHITECTURE: Option<u32> = Some(0xc000_00b7);
#[cfg(target_arch = "riscv64")]
const ARCHITECTURE: Option<u32> = Some(0xc000_00f3);
#[cfg(any(target_arch = "aarch64", target_arch = "riscv64"))]
const RULES: [(u32, Rule); 8] = [
    (56, Rule::Create { flags: 2, mode: 3 }), // openat
    (52, Rule::Mode(1)),                      // fchmod
    (53, Rule::Mode(2)),                      // fchmodat
    (34, Rule::Mode(2)),                      // mkdirat
    (33, Rule::Node(2)),                      // mknodat
    (5, Rule::Refuse(EOPNOTSUPP)),            // setxattr
    (6, Rule::Refuse(EOPNOTSUPP)),            // lsetxattr
    (7, Rule::Refuse(EOPNOTSUPP)),            // fsetxattr
];

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64", target_arch = "riscv64")))]
const ARCHITECTURE: Option<u32> = None;
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64", target_arch = "riscv64")))]
const RULES: [(u32, Rule); 0] = [];

/// One instruction of the kernel's packet filter: an operation, two jump distances and a constant.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Instruction {
    code: u16,
    jump_true: u8,
    jump_false: u8,
    constant: u32,
}

impl Instruction {
    const fn new(code: u16, jump_true: u8, jump_false: u8, constant: u32) -> Self {
        Self { code, jump_true, jump_false, constant }
    }

    /// Loads a word of the description of the call.
    const fn load(offset: u32) -> Self {
        Self::new(0x20, 0, 0, offset)
    }

    /// Loads the lower half of an argument; modes and flags have no upper half.
    const fn load_argument(position: u32) -> Self {
        Self::load(16 + 8 * position)
    }

    const fn mask(bits: u32) -> Self {
        Self::new(0x54, 0, 0, bits)
    }

    const fn jump_if_equal(value: u32, jump_true: u8, jump_false: u8) -> Self {
        Self::new(0x15, jump_true, jump_false, value)
    }

    const fn jump_if_greater(value: u32, jump_true: u8, jump_false: u8) -> Self {
        Self::new(0x25, jump_true, jump_false, value)
    }

    const fn jump_if_any_bit(bits: u32, jump_true: u8, jump_false: u8) -> Self {
        Self::new(0x45, jump_true, jump_false, bits)
    }

    const ALLOW: Self = Self::new(0x06, 0, 0, 0x7fff_0000);
    const KILL_PROCESS: Self = Self::new(0x06, 0, 0, 0x8000_0000);

    const fn answer(error: u32) -> Self {
        Self::new(0x06, 0, 0, 0x0005_0000 | error)
    }

    fn bytes(self) -> [u8; 8] {
        let ([a, b], [c, d, e, f]) = (self.code.to_ne_bytes(), self.constant.to_ne_bytes());
        [a, b, self.jump_true, self.jump_false, c, d, e, f]
    }
}

impl Rule {
    /// Returns the instructions for a call that this rule covers. Every path ends with an answer.
    fn instructions(self) -> Vec<Instruction> {
        use Instruction as I;
        match self {
            Self::Refuse(error) => vec![I::answer(error)],
            Self::Mode(mode) => {
                vec![I::load_argument(mode), I::jump_if_any_bit(SPECIAL_BITS, 0, 1), I::answer(EPERM), I::ALLOW]
            }
            Self::Create { flags, mode } => vec![
                I::load_argument(flags),
                I::jump_if_any_bit(CREATING_FLAGS, 0, 3),
                I::load_argument(mode),
                I::jump_if_any_bit(SPECIAL_BITS, 0, 1),
                I::answer(EPERM),
                I::ALLOW,
            ],
            Self::Node(mode) => {
                let [unsaid, file, pipe, socket] = NODE_TYPES_ALLOWED;
                vec![
                    I::load_argument(mode),
                    I::jump_if_any_bit(SPECIAL_BITS, 5, 0),
                    I::mask(FILE_TYPE_MASK),
                    I::jump_if_equal(unsaid, 4, 0),
                    I::jump_if_equal(file, 3, 0),
                    I::jump_if_equal(pipe, 2, 0),
                    I::jump_if_equal(socket, 1, 0),
                    I::answer(EPERM),
                    I::ALLOW,
                ]
            }
        }
    }
}

/// Builds the whole filter; `None` if the calls of this architecture are not known.
fn program() -> Option<Vec<Instruction>> {
    use Instruction as I;
    let mut program = vec![I::load(4), I::jump_if_equal(ARCHITECTURE?, 1, 0), I::KILL_PROCESS, I::load(0)];
    // The calls of x32 are those of x86_64 with a high bit set, so this refuses them too.
    program.extend([I::jump_if_greater(NEWEST_KNOWN_CALL, 0, 1), I::answer(ENOSYS)]);
    for (call, rule) in RULES.into_iter().chain(RULES_SHARED) {
        let body = rule.instructions();
        // A body has fewer than a dozen instructions.
        program.push(I::jump_if_equal(call, 0, body.len() as u8));
        program.extend(body);
    }
    program.push(I::ALLOW);
    Some(program)
}

/// Returns true if the system calls of this architecture are known. Without a filter no cage is started.
pub(super) fn is_supported() -> bool {
    ARCHITECTURE.is_some()
}

/// Writes the filter into a sealed file in memory.
pub(super) fn sealed_file() -> io::Result<OwnedFd> {
    let program = program().ok_or_else(|| io::Error::from(io::ErrorKind::Unsupported))?;
    let bytes: Vec<u8> = program.into_iter().flat_map(Instruction::bytes).collect();
    child_process::sealed_file(&bytes)
}
