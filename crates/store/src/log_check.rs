//! Is the write-ahead log of a SQLite file whole?
//!
//! SQLite reads its log up to the first frame that does not match its checksum, and takes the rest for the remains of
//! an earlier use. So one damaged frame hides every transaction behind it without an error, and the last connection
//! that closes the file deletes the log with them. The log is therefore read here before SQLite opens the file, by the
//! format that SQLite documents.
//!
//! Not every transaction behind the readable frames was lost. A process that is killed between its last frame and the
//! index of the log has committed nothing; the next process writes over its frames, and what is longer stays behind. Such
//! remains look like damage, but the index, which the processes share, ends before them.

use std::path::Path;
use std::time::Duration;

use cantrip_loom::Error;

use crate::limits::LOG_READS_MAX;

const HEADER_BYTES: usize = 32;
const FRAME_HEADER_BYTES: usize = 24;
/// The first number of a log. Its lowest bit says in which byte order the checksums are computed.
const MAGIC: u32 = 0x377f_0682;
/// The page size of a file that has no header to read it from.
const PAGE_BYTES: usize = 1_024;
/// The time between two readings of a log that another process may be writing.
const BETWEEN_READS: Duration = Duration::from_millis(20);

/// The part of a damaged log that SQLite would leave out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct LostPages {
    /// The number of pages before the damage.
    kept: u64,
    pages: u64,
    transactions: u64,
    /// True if the last page before the damage ends a transaction, or there is none.
    follows_commit: bool,
}

/// Returns an error if transactions in the log of this file can no longer be read.
pub(crate) fn check_log(path: &Path) -> Result<(), Error> {
    let mut before = None;
    // A process that writes at this moment may have been seen between two of its writes, so only damage that is found
    // twice in the same log is reported.
    for _ in 0..LOG_READS_MAX {
        let Some((header, lost)) = read_log(path) else { return Ok(()) };
        if before == Some((header, lost)) {
            let at = format!("sqlite:{}", path.display());
            let LostPages { kept, pages, transactions, .. } = lost;
            return Err(Error::LogDamaged { at, kept, pages, transactions });
        }
        before = Some((header, lost));
        std::thread::sleep(BETWEEN_READS);
    }
    Ok(())
}

/// Returns the header of the log and what is lost in it; none if nothing is lost or there is no log.
fn read_log(path: &Path) -> Option<([u8; HEADER_BYTES], LostPages)> {
    let mut name = path.file_name()?.to_owned();
    name.push("-wal");
    let log = std::fs::read(path.with_file_name(name)).ok()?;
    let header = *log.first_chunk::<HEADER_BYTES>()?;
    let lost = find_lost(&log, || file_page_bytes(path))?;
    let are_remains = match committed_frames(path, &header) {
        Some(committed) => committed <= lost.kept,
        None => lost.transactions == 1 && lost.follows_commit,
    };
    (!are_remains).then_some((header, lost))
}

/// Returns the number of committed frames by the index of this log; none if there is no index of this use of the log.
fn committed_frames(path: &Path, log_header: &[u8; HEADER_BYTES]) -> Option<u64> {
    const INDEX_HEADER_BYTES: usize = 48;
    let mut name = path.file_name()?.to_owned();
    name.push("-shm");
    let index = std::fs::read(path.with_file_name(name)).ok()?;
    // The header stands there twice. A writer changes one copy after the other.
    let (first, rest) = index.split_at_checked(INDEX_HEADER_BYTES)?;
    let is_whole = rest.get(..INDEX_HEADER_BYTES) == Some(first) && first[12] == 1;
    (is_whole && first[32..40] == log_header[16..24])
        .then(|| u64::from(u32::from_ne_bytes([first[16], first[17], first[18], first[19]])))
}

/// Returns the page size in the header of a database file.
fn file_page_bytes(path: &Path) -> usize {
    use std::io::Read as _;
    let mut header = [0; 18];
    let read = std::fs::File::open(path).and_then(|mut file| file.read_exact(&mut header));
    match (read, u16::from_be_bytes([header[16], header[17]])) {
        (Ok(()), 1) => 65_536,
        (Ok(()), bytes) if bytes.is_power_of_two() && bytes >= 512 => bytes.into(),
        (Ok(()) | Err(_), _) => PAGE_BYTES,
    }
}

/// Returns what is lost in a log. The page size of the file is needed only if the header of the log is damaged.
fn find_lost(log: &[u8], file_page_bytes: impl FnOnce() -> usize) -> Option<LostPages> {
    let (header, frames) = log.split_at_checked(HEADER_BYTES)?;
    let big_endian = number(header, 0) & 1 == 1;
    let mut sums = checksum(big_endian, (0, 0), &header[..24]);
    let header_is_sound = number(header, 0) & !1 == MAGIC && sums == (number(header, 24), number(header, 28));
    let page_bytes = if header_is_sound { number(header, 8) as usize } else { file_page_bytes() };
    // Frames of an earlier use of the same log have other salts.
    let salts_at = |bytes: &[u8], at: usize| (number(bytes, at), number(bytes, at + 4));
    let salts = if header_is_sound { salts_at(header, 16) } else { salts_at(frames, 8) };
    let (mut kept, mut is_sound, mut follows_commit) = (0, header_is_sound, true);
    let (mut last_commit, mut transactions, mut all) = (None, 0, 0);
    for (at, frame) in (0_u64..).zip(frames.chunks_exact(FRAME_HEADER_BYTES + page_bytes)) {
        all += 1;
        let (head, page) = frame.split_at(FRAME_HEADER_BYTES);
        let is_of_this_use = salts_at(head, 8) == salts;
        if is_sound && is_of_this_use {
            sums = checksum(big_endian, checksum(big_endian, sums, &head[..8]), page);
            if sums == (number(head, 16), number(head, 20)) {
                kept += 1;
                follows_commit = number(head, 4) != 0;
                continue;
            }
        }
        is_sound = false;
        // The frame that ends a transaction has the size of the file after it.
        if is_of_this_use && number(head, 4) != 0 {
            last_commit = Some(at);
            transactions += 1;
        }
    }
    match last_commit {
        Some(last) => Some(LostPages { kept, pages: last + 1 - kept, transactions, follows_commit }),
        // SQLite writes the header of a log before its first page.
        None if !header_is_sound && all > 0 => Some(LostPages { kept: 0, pages: all, transactions: 0, follows_commit }),
        None => None,
    }
}

/// Returns the number at a position; 0 behind the end.
fn number(bytes: &[u8], at: usize) -> u32 {
    bytes.get(at..).and_then(|bytes| bytes.first_chunk::<4>()).map_or(0, |four| u32::from_be_bytes(*four))
}

/// Continues the checksum of SQLite's log over these bytes.
fn checksum(big_endian: bool, (mut first, mut second): (u32, u32), bytes: &[u8]) -> (u32, u32) {
    let word = |bytes: &[u8], at: usize| {
        let word = number(bytes, at);
        if big_endian { word } else { word.swap_bytes() }
    };
    for pair in bytes.chunks_exact(8) {
        first = first.wrapping_add(word(pair, 0)).wrapping_add(second);
        second = second.wrapping_add(word(pair, 4)).wrapping_add(first);
    }
    (first, second)
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: usize = 512;

    /// Makes a log of transactions with these numbers of pages.
    fn log(transactions: &[u32]) -> Vec<u8> {
        let mut log = Vec::new();
        for word in [MAGIC, 3_007_000, 512, 0, 11, 12] {
            log.extend(word.to_be_bytes());
        }
        let mut sums = checksum(false, (0, 0), &log);
        log.extend(sums.0.to_be_bytes());
        log.extend(sums.1.to_be_bytes());
        for (number, pages) in (1_u32..).zip(transactions) {
            for page in 1..=*pages {
                let size = if page == *pages { 9 } else { 0 };
                let head: Vec<u8> = [page, size].iter().flat_map(|word| word.to_be_bytes()).collect();
                let data = [u8::try_from(number).expect("a small number"); PAGE];
                sums = checksum(false, checksum(false, sums, &head), &data);
                log.extend(&head);
                for word in [11, 12, sums.0, sums.1] {
                    log.extend(u32::to_be_bytes(word));
                }
                log.extend(data);
            }
        }
        log
    }

    fn frame(at: usize) -> usize {
        HEADER_BYTES + at * (FRAME_HEADER_BYTES + PAGE)
    }

    #[test]
    fn a_changed_byte_loses_the_transactions_behind_it() {
        let whole = log(&[2, 3, 1]);
        assert_eq!(find_lost(&whole, || PAGE), None);
        let lost =
            |kept, pages, transactions, follows_commit| Some(LostPages { kept, pages, transactions, follows_commit });
        for (at, expected) in [
            (frame(0) + 30, lost(0, 6, 3, true)),
            (frame(2) + 100, lost(2, 4, 2, true)),
            // The salts of a frame.
            (frame(4) + 9, lost(4, 2, 1, false)),
            (frame(5) + 100, lost(5, 1, 1, true)),
            // The header of the log.
            (17, lost(0, 6, 3, true)),
        ] {
            let mut damaged = whole.clone();
            damaged[at] ^= 0x40;
            assert_eq!(find_lost(&damaged, || PAGE), expected, "byte {at}");
        }
    }

    #[test]
    fn an_unfinished_transaction_and_the_remains_of_an_earlier_use_are_no_damage() {
        let whole = log(&[2, 3]);
        // A process was killed before the last frame of the second transaction, or in the middle of it.
        for cut in [frame(4), frame(4) + 100, frame(2), 20, 0] {
            assert_eq!(find_lost(&whole[..cut], || PAGE), None, "cut at {cut}");
        }
        let mut reused = log(&[1]);
        let mut earlier = log(&[2, 3]);
        for at in 0..5 {
            earlier[frame(at) + 8] ^= 0x40;
        }
        reused.extend_from_slice(&earlier[frame(1)..]);
        assert_eq!(find_lost(&reused, || PAGE), None);
    }

    /// Makes an index of the log that ends after this many frames.
    fn index(log: &[u8], frames: u32) -> Vec<u8> {
        let mut header = [0; 48];
        header[12] = 1;
        header[16..20].copy_from_slice(&frames.to_ne_bytes());
        header[32..40].copy_from_slice(&log[16..24]);
        header.repeat(2)
    }

    #[test]
    fn the_frames_of_a_killed_writer_that_the_next_one_wrote_over_in_part_are_no_damage() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("loom.db");
        // The killed writer's three pages stand behind one transaction; the next writer's single page is over the first.
        let (killed, mut next) = (log(&[1, 3]), log(&[1, 1]));
        next.extend_from_slice(&killed[frame(2)..]);
        std::fs::write(folder.path().join("loom.db-wal"), &next).expect("a log");
        std::fs::write(folder.path().join("loom.db-shm"), index(&next, 2)).expect("an index");
        check_log(&path).expect("the index ends before the remains");
        std::fs::remove_file(folder.path().join("loom.db-shm")).expect("an index");
        check_log(&path).expect("one transaction behind a commit may be remains");
        // By the index the frames were committed: they were damaged since.
        std::fs::write(folder.path().join("loom.db-shm"), index(&next, 4)).expect("an index");
        let damaged = check_log(&path).expect_err("two pages are lost");
        assert!(matches!(damaged, Error::LogDamaged { kept: 2, pages: 2, transactions: 1, .. }), "{damaged:?}");
    }
}
